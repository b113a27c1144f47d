/* SPDX-License-Identifier: MIT
 *
 * Pooled memory that somebody else sees, through a buffer or a DLPack tensor: free()
 * called by hand on it is put off to the last who does.
 */
#ifndef GMPY_EXPORTS_H
#define GMPY_EXPORTS_H

#include "compat.h"
#include "core/gm_base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gmpy_export gmpy_export;

typedef struct gmpy_exports {
    gmpy_mutex lock; // guards the rest
    gmpy_export **buckets;
    size_t bucket_count; // 0 or a power of two
    size_t count;        // of memory objects that are seen
} gmpy_exports;

/* One more sees `mem`. False where there is no host memory. */
GM_MUST_CHECK bool gmpy_exports_add(gmpy_exports *self, const void *mem);

/* One less. True with *ptr where it was the last one and freeing was put off: now is
 * the time. */
GM_MUST_CHECK bool
gmpy_exports_remove(gmpy_exports *self, const void *mem, uintptr_t *ptr);

/* Puts freeing off where somebody sees `mem`, whose address is `ptr`; false where
 * nobody does. */
GM_MUST_CHECK bool
gmpy_exports_put_off(gmpy_exports *self, const void *mem, uintptr_t ptr);

/* Whether anything is seen at all. */
static inline bool
gmpy_exports_any(const gmpy_exports *self)
{
    return GM_UNLIKELY(__atomic_load_n(&self->count, __ATOMIC_RELAXED) != 0);
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * What the files of wrappers around the backend table share: gm_backend.c and
 * gm_backend_vm.c, whose heads say what a wrapper does. For these two alone.
 */
#ifndef GM_BACKEND_PRIVATE_H
#define GM_BACKEND_PRIVATE_H

#include "gm_backend.h"

/* The call, or the default where the slot is empty. An expression: it hides no
 * return. */
#define CALL_OPTIONAL(b, slot, ...)                                                    \
    ((b)->slot != NULL ? (b)->slot((b)->self, __VA_ARGS__) : GM_ERR_UNSUPPORTED)

/* Hands an address or handle on; a backend may not succeed with none. */
static inline gm_status
take_nonzero(gm_status status, uintptr_t value, uintptr_t *out)
{
    if (status != GM_OK) {
        return status;
    }
    if (value == 0) {
        return GM_ERR_INTERNAL;
    }
    *out = value;
    return GM_OK;
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * Allocations of host memory that fail, for gm_host_set_fault().
 */
#ifndef HOST_FAULT_H
#define HOST_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/* After `*context` more, a size_t, the one that fails; all others succeed. */
static inline bool
fail_nth(void *context, size_t size)
{
    size_t *left = context;

    (void)size;
    return (*left)-- == 0;
}

#endif

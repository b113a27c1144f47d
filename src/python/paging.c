/* SPDX-License-Identifier: MIT
 *
 * Whether a pool maps its memory by page: `expandable_segments` of the pool types, and
 * GPUMEM_EXPANDABLE_SEGMENTS for pools that were made without it. core/gm_page.h says
 * what such a pool does.
 *
 * The variable is for whole programs, so it passes over pools that could not follow it:
 * those over a callable, and those that take large segments. An argument that cannot be
 * followed is an error.
 *
 * Threading: any thread; a device is asked detached from the interpreter.
 */
#include "memory_kinds.h" // gmpy_require_support
#include "pools.h"

#include <stdlib.h> // getenv
#include <string.h>

/* What of the setup takes memory in another way; NULL for nothing. */
static const char *
other_way(const gmpy_pool_setup *setup)
{
    return setup->callable                   ? "allocator"
           : setup->growth                   ? "growth"
           : setup->large.max_split_size     ? "max_split_size"
           : setup->large.large_segment_size ? "large_segment_size"
                                             : NULL;
}

int
gmpy_as_paging(PyObject *arg, PyObject *shareable, gmpy_pool_setup *setup)
{
    bool said = arg && arg != Py_None;
    int yes = said ? PyObject_IsTrue(arg) : 0;
    int shared = shareable ? PyObject_IsTrue(shareable) : 0;

    if (yes < 0 || shared < 0) {
        return -1;
    }
    if (shared) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "memory that other processes can map by its handle is not "
                        "offered yet: shareable must be False");
        return -1;
    }
    if (yes && other_way(setup)) {
        PyErr_Format(PyExc_ValueError,
                     "expandable_segments take memory from the device page by page, "
                     "and %s in another way: leave out one of them",
                     other_way(setup));
        return -1;
    }
    setup->paging = yes ? GMPY_PAGING_ON : said ? GMPY_PAGING_OFF : GMPY_PAGING_UNSAID;
    return 0;
}

/* What the environment says. 0, or -1 with ValueError. */
static int
read_environment(bool *on)
{
    const char *text = getenv("GPUMEM_EXPANDABLE_SEGMENTS");

    *on = text && strcmp(text, "1") == 0;
    if (text && !*on && strcmp(text, "0") != 0) {
        PyErr_Format(PyExc_ValueError,
                     "environment variable GPUMEM_EXPANDABLE_SEGMENTS is '%s'; "
                     "accepted: 0 or 1",
                     text);
        return -1;
    }
    return 0;
}

int
gmpy_paging_apply(gmpy_state *st, gm_pool *pool, const gmpy_pool_setup *setup)
{
    bool on = setup->paging == GMPY_PAGING_ON;
    gm_status status;

    if (gm_pool_device(pool) < 0) {
        return 0;
    }
    if (setup->paging == GMPY_PAGING_UNSAID && read_environment(&on) < 0) {
        return -1;
    }
    if (!on || other_way(setup)) {
        return 0;
    }
    if (gmpy_require_support(st, gm_pool_device(pool), GM_DEVICE_VIRTUAL_MEMORY,
                             "map memory page by page, as expandable segments need") <
        0) {
        return -1;
    }
    status = gm_pool_set_paging(pool);
    if (status != GM_OK) {
        gmpy_raise(st, status, "making a pool with expandable segments");
        return -1;
    }
    return 0;
}

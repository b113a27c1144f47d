/* SPDX-License-Identifier: MIT
 *
 * What a pool of device memory is made with: the arguments that MemoryPool and
 * SingleDeviceMemoryPool have in common, checked once, and handed to each native pool
 * before its first request.
 *
 * Threading: any; nothing here is shared.
 */
#include "pools.h"

/* What `allocator` means: *out is a borrowed callable, or NULL for plain device memory.
 * 0, or -1 with TypeError. */
static int
as_base_allocator(gmpy_state *st, PyObject *arg, PyObject **out)
{
    if (!arg || arg == Py_None || arg == st->raw_malloc) {
        *out = NULL;
        return 0;
    }
    if (!PyCallable_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "allocator must be callable or None, not %s",
                     Py_TYPE(arg)->tp_name);
        return -1;
    }
    *out = arg;
    return 0;
}

/* What `growth` means: false and NULL, not given, 0; true the core's step; else bytes.
 * 0, or -1 with an exception. */
static int
as_growth(PyObject *arg, size_t *out)
{
    *out = arg == Py_True ? GM_GROWTH_STEP : 0;
    return !arg || PyBool_Check(arg) ? 0 : gmpy_as_size(arg, "growth", out);
}

/* Bytes, or without the argument `absent`. 0, or -1 with an exception. */
static int
as_bytes(PyObject *arg, const char *name, size_t absent, size_t *out)
{
    *out = absent;
    return arg ? gmpy_as_size(arg, name, out) : 0;
}

/* Whether the options go together. 0, or -1 with ValueError. */
static int
check_setup(const gmpy_pool_setup *setup)
{
    size_t unit = setup->large.large_segment_size;

    if (unit % GM_UNIT || unit > GM_SIZE_MAX) {
        PyErr_Format(
            PyExc_ValueError,
            "large_segment_size must be a multiple of %zu below 2**63, not %zu",
            GM_UNIT, unit);
        return -1;
    }
    if (setup->growth && (unit || setup->large.max_split_size)) {
        PyErr_Format(PyExc_ValueError,
                     "a pool has growth or %s, not both: growth cuts small requests "
                     "off large segments",
                     unit ? "large_segment_size" : "max_split_size");
        return -1;
    }
    return 0;
}

int
gmpy_pool_setup_from(gmpy_state *st,
                     const char *type,
                     PyObject *args,
                     PyObject *kwargs,
                     gmpy_pool_setup *out)
{
    const gmpy_signature signature = {type,
                                      7,
                                      0,
                                      1,
                                      {"allocator", "growth", "max_split_size",
                                       "max_non_split_rounding", "large_segment_size",
                                       "expandable_segments", "shareable"}};
    gm_large_rules *large = &out->large;
    PyObject *given[7];

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        as_base_allocator(st, given[0], &out->callable) < 0 ||
        as_growth(given[1], &out->growth) < 0 ||
        as_bytes(given[2], "max_split_size", 0, &large->max_split_size) < 0 ||
        as_bytes(given[3], "max_non_split_rounding", GM_LARGE_ROUNDING,
                 &large->max_non_split_rounding) < 0 ||
        as_bytes(given[4], "large_segment_size", 0, &large->large_segment_size) < 0) {
        return -1;
    }
    return check_setup(out) < 0 ? -1 : gmpy_as_paging(given[5], given[6], out);
}

int
gmpy_pool_setup_apply(gmpy_state *st, const gmpy_pool_setup *setup, gm_pool *pool)
{
    if (setup->growth) {
        gm_pool_set_growth(pool, setup->growth);
    }
    else {
        gm_pool_set_large_rules(pool, &setup->large);
    }
    return gmpy_paging_apply(st, pool, setup);
}

/* SPDX-License-Identifier: MIT
 *
 * Memory of other libraries, as far as the protocols agree: an array becomes the bytes
 * it takes up, without its shape and type.
 *
 * So it has to take up all bytes from its first to its last, in whatever order of its
 * axes: a pointer knows of no holes, and what is in them may be somebody else's.
 *
 * Threading: any thread; asking about an address lets others run.
 */
#include "imports.h"

/* How many items there are, -1 where that makes no sense or is too many. */
static int64_t
count_items(const gmpy_array *array)
{
    int64_t count = 1;

    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] == 0) {
            return 0;
        }
        if (array->shape[i] < 0 ||
            __builtin_mul_overflow(count, array->shape[i], &count)) {
            return -1;
        }
    }
    return count;
}

/* The axis not yet in `seen` along which neighbours are `step` items apart; -1 where
 * there is none. */
static int
find_axis(const gmpy_array *array, uint64_t seen, int64_t step)
{
    for (int i = 0; i < array->ndim; i++) {
        if (!(seen >> i & 1) && array->strides[i] == step) {
            return i;
        }
    }
    return -1;
}

/* Whether the items lie side by side, of which there are some. */
static bool
is_dense(const gmpy_array *array)
{
    uint64_t seen = 0;
    int64_t step = 1;
    int left = 0;

    if (!array->strides) {
        return true;
    }
    for (int i = 0; i < array->ndim; i++) {
        if (array->shape[i] == 1) { // has no neighbours: its stride means nothing
            seen |= (uint64_t)1 << i;
        }
        else {
            left++;
        }
    }
    for (; left > 0; left--) {
        int axis = find_axis(array, seen, step);

        if (axis < 0) {
            return false;
        }
        seen |= (uint64_t)1 << axis;
        step *= array->shape[axis];
    }
    return true;
}

int
gmpy_array_size(const gmpy_array *array, size_t *out)
{
    int64_t count = count_items(array);
    size_t bits;

    if (count < 0 || __builtin_mul_overflow((size_t)count, array->item_bits, &bits)) {
        PyErr_SetString(
            PyExc_ValueError,
            "an axis of the array is negative, or it has more items than an "
            "address has room for");
        return -1;
    }
    if (count > 0 && !is_dense(array)) {
        PyErr_SetString(PyExc_BufferError,
                        "the array has gaps between its items, which a pointer cannot "
                        "tell of; make it contiguous first");
        return -1;
    }
    *out = bits / 8 + (bits % 8 != 0);
    return 0;
}

int
gmpy_import_device(gmpy_state *st, uintptr_t ptr, int *out)
{
    gm_pointer_info info = {.device = -1, .kind = GM_POINTER_DEVICE};
    unsigned support = 0;
    gm_status status = GM_OK;
    int device = gmpy_current_device(st);

    if (device < 0) {
        return -1;
    }
    if (ptr) {
        Py_BEGIN_ALLOW_THREADS
        status = gm_backend_pointer_info(st->backend, ptr, &info);
        if (status == GM_OK && info.kind == GM_POINTER_UNREGISTERED) {
            status = gm_backend_device_support(st->backend, device, &support);
        }
        Py_END_ALLOW_THREADS
    }
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking what kind of memory an address is");
        return -1;
    }
    if (info.kind == GM_POINTER_UNREGISTERED &&
        !(support & GM_DEVICE_PAGEABLE_ACCESS)) {
        PyErr_Format(PyExc_BufferError,
                     "%s is plain host memory, which device %d does not reach; "
                     "copy_from_host copies it",
                     gmpy_as_hex(ptr).text, device);
        return -1;
    }
    *out = info.device < 0 ? device : info.device;
    return 0;
}

PyObject *
gmpy_import_pointer(
    gmpy_state *st, uintptr_t ptr, size_t size, PyObject *owner, int device)
{
    return gmpy_pointer_to_new(st,
                               gmpy_unowned_memory_new(st, ptr, size, owner, device));
}

/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of pointers: MemoryPointer's and PinnedMemoryPointer's, which begin
 * alike and differ in what a sum is.
 *
 * p + n is a new pointer into the same memory, p += n moves the one object under all
 * its names. Where a pointer ends up is checked when it is used; it only has to stay an
 * address.
 *
 * Threading: sums read; in-place moves are for one thread.
 */
#include "module.h"
#include "pinned.h"
#include "pointer.h"

int
gmpy_address_add(uintptr_t address, ptrdiff_t offset, uintptr_t *out)
{
    if (address == 0 && offset != 0) {
        PyErr_Format(PyExc_AssertionError,
                     "a null pointer takes no offset but 0, not %zd", offset);
        return -1;
    }
    if (offset < 0 ? address < (uintptr_t)0 - (uintptr_t)offset
                   : address > UINTPTR_MAX - (uintptr_t)offset) {
        PyErr_Format(PyExc_OverflowError,
                     "%s moved by %zd bytes leaves the address range",
                     gmpy_as_hex(address).text, offset);
        return -1;
    }
    *out = address + (uintptr_t)offset;
    return 0;
}

static bool
is_any_pointer(gmpy_state *st, PyObject *op)
{
    return gmpy_is_pointer(st, op) || gmpy_is_pinned_pointer(st, op);
}

/* A new pointer `offset` bytes from `self`. */
static PyObject *
pointer_moved(gmpy_state *st, PyObject *op, ptrdiff_t offset)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *mem;
    uintptr_t ptr;

    if (gmpy_pointer_mem(self, &mem) < 0) {
        return NULL;
    }
    if (!mem) {
        PyErr_Format(PyExc_ValueError, "the %s was not initialized",
                     Py_TYPE(op)->tp_name);
        return NULL;
    }
    if (gmpy_address_add(self->ptr, offset, &ptr) < 0) {
        return NULL;
    }
    return gmpy_is_pointer(st, op)
               ? gmpy_pointer_new(st, Py_NewRef(mem), ptr, self->device_id)
               : gmpy_pinned_pointer_new(st, Py_NewRef(mem), ptr);
}

static int
negate(ptrdiff_t *offset)
{
    if (*offset == PTRDIFF_MIN) {
        PyErr_SetString(PyExc_OverflowError, "offset must be above -2**63");
        return -1;
    }
    *offset = -*offset;
    return 0;
}

/* The state behind whichever operand is a pointer; NULL, no exception, for neither. */
static gmpy_state *
operand_state(PyObject *op)
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(op), &gmpy_module_def);

    if (!module) {
        PyErr_Clear();
        return NULL;
    }
    return gmpy_state_of_module(module);
}

PyObject *
gmpy_pointer_add(PyObject *a, PyObject *b)
{
    gmpy_state *st = operand_state(a);
    PyObject *pointer = a;
    PyObject *number = b;
    ptrdiff_t offset;

    if (!st || !is_any_pointer(st, a)) {
        st = operand_state(b);
        pointer = b;
        number = a;
    }
    if (!st || !is_any_pointer(st, pointer) || !PyIndex_Check(number)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (gmpy_as_offset(number, "offset", &offset) < 0) {
        return NULL;
    }
    return pointer_moved(st, pointer, offset);
}

PyObject *
gmpy_pointer_subtract(PyObject *a, PyObject *b)
{
    gmpy_state *st = operand_state(a);
    ptrdiff_t offset;

    if (!st || !is_any_pointer(st, a) || !PyIndex_Check(b)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (gmpy_as_offset(b, "offset", &offset) < 0 || negate(&offset) < 0) {
        return NULL;
    }
    return pointer_moved(st, a, offset);
}

static PyObject *
pointer_move(PyObject *self, ptrdiff_t offset)
{
    gmpy_pointer *p = (gmpy_pointer *)self;

    return gmpy_address_add(p->ptr, offset, &p->ptr) < 0 ? NULL : Py_NewRef(self);
}

PyObject *
gmpy_pointer_inplace_add(PyObject *self, PyObject *number)
{
    ptrdiff_t offset;

    if (gmpy_as_offset(number, "offset", &offset) < 0) {
        return NULL;
    }
    return pointer_move(self, offset);
}

PyObject *
gmpy_pointer_inplace_subtract(PyObject *self, PyObject *number)
{
    ptrdiff_t offset;

    if (gmpy_as_offset(number, "offset", &offset) < 0 || negate(&offset) < 0) {
        return NULL;
    }
    return pointer_move(self, offset);
}

PyObject *
gmpy_pointer_int(PyObject *self)
{
    return PyLong_FromSize_t(((gmpy_pointer *)self)->ptr);
}

int
gmpy_pointer_keep_ufuncs_out(PyObject *type_object)
{
    PyTypeObject *type = (PyTypeObject *)type_object;

    // The type is immutable for everybody else; nobody has seen it yet.
    if (PyDict_SetItemString(type->tp_dict, "__array_ufunc__", Py_None) < 0) {
        return -1;
    }
    PyType_Modified(type);
    return 0;
}

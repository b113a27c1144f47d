/* SPDX-License-Identifier: MIT
 *
 * The capsules of exported tensors: how they are made, and how they end.
 *
 * One host allocation has the tensor in the layout that the consumer asked for, its
 * shape and what it keeps. It ends by the tensor's deleter: the consumer calls it, or
 * the capsule does where nobody unpacked it. What it keeps is a Python object, so the
 * deleter attaches to the interpreter, from whichever thread. Once that is ending, and
 * in a forked child, there is nothing to attach to and nothing to give back: then it
 * does nothing.
 *
 * Threading: a capsule is made attached; the deleter runs anywhere, once.
 */
#include "dlpack.h"

#include "core/gm_process.h" // gm_host_alloc, gm_process_is_frozen

typedef struct tensor {
    union {
        dlpack_managed managed;
        dlpack_versioned versioned;
    } as;
    int64_t shape;
    int64_t stride;
    gmpy_state *st;
    PyObject *mem;
    void *bytes;
} tensor;

/* Gives back what the tensor keeps. Changes no pending exception. */
static void
let_go(const tensor *self)
{
    PyGILState_STATE state = PyGILState_Ensure();
    GMPY_TAKE_ERROR(pending);

    gmpy_export_end(self->st, self->mem);
    Py_DECREF(self->mem);
    GMPY_GIVE_ERROR(pending);
    PyGILState_Release(state);
}

static void
tensor_free(tensor *self)
{
    if (gm_process_is_frozen() || !Py_IsInitialized()) {
        return;
    }
    if (self->mem) {
        let_go(self);
    }
    gm_host_free(self->bytes);
    gm_host_free(self);
}

static void
delete_managed(dlpack_managed *self)
{
    tensor_free(self->context);
}

static void
delete_versioned(dlpack_versioned *self)
{
    tensor_free(self->context);
}

/* The destructor of a capsule: what nobody unpacked ends with it. */
static void
capsule_end(PyObject *capsule)
{
    void *packed = NULL;

    if (PyCapsule_IsValid(capsule, DLPACK_NAME_VERSIONED)) {
        packed = PyCapsule_GetPointer(capsule, DLPACK_NAME_VERSIONED);
        delete_versioned(packed);
    }
    else if (PyCapsule_IsValid(capsule, DLPACK_NAME)) {
        packed = PyCapsule_GetPointer(capsule, DLPACK_NAME);
        delete_managed(packed);
    }
}

static dlpack_tensor
fill(tensor *self, const gmpy_dlpack_content *content)
{
    self->shape = (int64_t)content->size;
    self->stride = 1;
    self->st = content->st;
    self->mem = content->mem;
    self->bytes = content->bytes;
    return (dlpack_tensor){
        .data = content->size ? (void *)content->ptr : NULL,
        .device = content->device,
        .ndim = 1,
        .type = {.code = DLPACK_UINT, .bits = 8, .lanes = 1},
        .shape = &self->shape,
        .strides = &self->stride,
    };
}

PyObject *
gmpy_dlpack_capsule(const gmpy_dlpack_content *content)
{
    tensor *self = gm_host_zalloc(sizeof(*self));
    PyObject *capsule;

    if (!self) {
        return PyErr_NoMemory();
    }
    if (content->versioned) {
        self->as.versioned = (dlpack_versioned){
            .version = {DLPACK_MAJOR, DLPACK_MINOR},
            .context = self,
            .deleter = delete_versioned,
            .flags = content->copied ? DLPACK_IS_COPIED : 0,
            .tensor = fill(self, content),
        };
        capsule =
            PyCapsule_New(&self->as.versioned, DLPACK_NAME_VERSIONED, capsule_end);
    }
    else {
        self->as.managed = (dlpack_managed){
            .tensor = fill(self, content),
            .context = self,
            .deleter = delete_managed,
        };
        capsule = PyCapsule_New(&self->as.managed, DLPACK_NAME, capsule_end);
    }
    if (!capsule) {
        gm_host_free(self);
        return NULL;
    }
    Py_XINCREF(content->mem);
    return capsule;
}

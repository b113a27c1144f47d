/* SPDX-License-Identifier: MIT
 *
 * DLPack: what its specification lays down of structs, numbers and names, and what the
 * files that speak it share.
 *
 * A tensor travels in a capsule. The one who unpacks it gives the capsule another name
 * and calls the tensor's deleter when he is done, from any thread, with or without the
 * interpreter. A consumer that says nothing of versions gets the struct from before
 * there were any.
 */
#ifndef GMPY_DLPACK_H
#define GMPY_DLPACK_H

#include "exchange.h"

enum {
    DLPACK_MAJOR = 1, // what is written here, and the newest that is read
    DLPACK_MINOR = 1,
};

#define DLPACK_NAME "dltensor"
#define DLPACK_NAME_USED "used_dltensor"
#define DLPACK_NAME_VERSIONED "dltensor_versioned"
#define DLPACK_NAME_VERSIONED_USED "used_dltensor_versioned"

enum {
    DLPACK_CPU = 1,
    DLPACK_CUDA = 2,
    DLPACK_CUDA_HOST = 3, // pinned
    DLPACK_CUDA_MANAGED = 13,
};

enum {
    DLPACK_UINT = 1, // of the type codes the one that is written
};

enum {
    DLPACK_READ_ONLY = 1u << 0,
    DLPACK_IS_COPIED = 1u << 1,
    DLPACK_SUBBYTE_PADDED = 1u << 2, // each element has whole bytes of its own
};

typedef struct dlpack_device {
    int32_t type; // a DLPACK_*
    int32_t id;   // 0 for all memory of the host
} dlpack_device;

typedef struct dlpack_type {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dlpack_type;

typedef struct dlpack_tensor {
    void *data;
    dlpack_device device;
    int32_t ndim;
    dlpack_type type;
    int64_t *shape;
    int64_t *strides;     // in elements; NULL: row after row
    uint64_t byte_offset; // from data
} dlpack_tensor;

typedef struct dlpack_managed {
    dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self); // may be NULL
} dlpack_managed;

typedef struct dlpack_versioned {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *context;
    void (*deleter)(struct dlpack_versioned *self); // may be NULL
    uint64_t flags;
    dlpack_tensor tensor;
} dlpack_versioned;

GM_STATIC_ASSERT(sizeof(dlpack_tensor) == 48 && sizeof(dlpack_managed) == 64 &&
                     sizeof(dlpack_versioned) == 80 &&
                     offsetof(dlpack_versioned, deleter) == 16,
                 "the structs are laid out as the specification says");

/* ---- dlpack_export.c ---- */

/* __dlpack__ and __dlpack_device__ of both pointer types, for their tables of methods.
 */
PyObject *gmpy_pointer_dlpack(PyObject *op,
                              PyObject *const *args,
                              Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *gmpy_pointer_dlpack_device(PyObject *op, PyObject *ignored);
extern const char gmpy_pointer_dlpack_doc[];
extern const char gmpy_pointer_dlpack_device_doc[];

#define GMPY_DLPACK_METHODS                                                            \
    {"__dlpack__", (PyCFunction)(void (*)(void))gmpy_pointer_dlpack,                   \
     METH_FASTCALL | METH_KEYWORDS, gmpy_pointer_dlpack_doc},                          \
    {                                                                                  \
        "__dlpack_device__", gmpy_pointer_dlpack_device, METH_NOARGS,                  \
            gmpy_pointer_dlpack_device_doc                                             \
    }

/* ---- dlpack_capsule.c ---- */

/* What a capsule is made of. */
typedef struct gmpy_dlpack_content {
    gmpy_state *st;
    PyObject *mem; // whose export has begun; NULL where the tensor has its own bytes
    void *bytes;   // of gm_host_alloc_aligned; NULL where it has not
    uintptr_t ptr;
    size_t size;
    dlpack_device device;
    bool versioned;
    bool copied;
} gmpy_dlpack_content;

/* A capsule of it, which ends the export and has a reference to `mem` of its own, and
 * owns `bytes`; on failure all that is still the caller's. New reference. */
PyObject *gmpy_dlpack_capsule(const gmpy_dlpack_content *content);

/* ---- dlpack_copy.c ---- */

/* What a copy is put into: `bytes`, or a pointer to new memory. */
typedef struct gmpy_dlpack_copy {
    PyObject *pointer; // a reference; NULL for bytes
    void *bytes;       // NULL for a pointer
} gmpy_dlpack_copy;

/* Copies `size` > 0 bytes from the pointer to new memory of the kind and device that
 * `target` says, queued on `stream`, the current one of the pointer's device. 0 or -1.
 */
int gmpy_dlpack_copy_make(const gmpy_pointer *self,
                          size_t size,
                          const dlpack_device *target,
                          const gmpy_stream_ref *stream,
                          gmpy_dlpack_copy *out);

#endif

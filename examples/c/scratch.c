/* SPDX-License-Identifier: MIT
 *
 * An extension module that uses GPU memory from threads of its own: each takes scratch
 * memory from the program's default pool and gives it back, without the interpreter.
 * run.py compiles it and calls it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <gpumem.h>

#include <pthread.h>

enum {
    THREADS_MAX = 64,
    ROUNDS = 1000,
};

static const gpumem_api *gpumem; /* the table: one for the process, never changed */

typedef struct worker {
    pthread_t thread;
    gpumem_pool *pool;
    size_t size;
    int status;
    char error[512];
} worker;

static void *
work(void *context)
{
    worker *w = context;

    for (int i = 0; i < ROUNDS && w->status == GPUMEM_OK; i++) {
        void *scratch;

        w->status =
            gpumem->malloc(w->pool, w->size, GPUMEM_CURRENT_DEVICE, NULL, 0, &scratch);
        if (w->status == GPUMEM_OK) {
            /* Here kernels would be launched on the default stream. */
            w->status = gpumem->free(scratch);
        }
        if (w->status != GPUMEM_OK) { /* the text is this thread's: keep it */
            PyOS_snprintf(w->error, sizeof w->error, "%s", gpumem->last_error());
        }
    }
    return NULL;
}

/* run(size, threads): bytes that the pool holds afterwards. */
static PyObject *
scratch_run(PyObject *self, PyObject *args)
{
    const gpumem_options options = {.struct_size = sizeof options, .client = "scratch"};
    gpumem_stats stats = {.struct_size = sizeof stats};
    worker workers[THREADS_MAX] = {0};
    gpumem_pool *pool;
    Py_ssize_t size;
    int count;
    int status;

    (void)self;
    if (!PyArg_ParseTuple(args, "ni", &size, &count)) {
        return NULL;
    }
    if (size < 1 || count < 1 || count > THREADS_MAX) {
        PyErr_SetString(PyExc_ValueError, "size from 1, threads from 1 to 64");
        return NULL;
    }
    status = gpumem->pool_default(&options, &pool);
    if (status != GPUMEM_OK) {
        PyErr_SetString(PyExc_RuntimeError, gpumem->last_error());
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS /* a thread may need the interpreter when memory runs out */
    for (int i = 0; i < count; i++) {
        workers[i].pool = pool;
        workers[i].size = (size_t)size;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            count = i; /* fewer will do */
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    Py_END_ALLOW_THREADS
    status = gpumem->pool_stats(pool, GPUMEM_CURRENT_DEVICE, &stats);
    gpumem->pool_release(pool);
    for (int i = 0; i < count; i++) {
        if (workers[i].status != GPUMEM_OK) {
            PyErr_SetString(workers[i].status == GPUMEM_ERROR_OUT_OF_MEMORY
                                ? PyExc_MemoryError
                                : PyExc_RuntimeError,
                            workers[i].error);
            return NULL;
        }
    }
    if (status != GPUMEM_OK) {
        PyErr_SetString(PyExc_RuntimeError, gpumem->last_error());
        return NULL;
    }
    return PyLong_FromSize_t(stats.total_bytes);
}

static PyMethodDef scratch_methods[] = {
    {"run", scratch_run, METH_VARARGS, "run(size, threads)"},
    {0},
};

static int
scratch_exec(PyObject *module)
{
    (void)module;
    gpumem = gpumem_import();
    return gpumem ? 0 : -1;
}

static PyModuleDef_Slot scratch_slots[] = {
    {Py_mod_exec, (void *)scratch_exec},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* nothing here is shared but the table */
#endif
    {0, NULL},
};

static PyModuleDef scratch_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "scratch",
    .m_methods = scratch_methods,
    .m_slots = scratch_slots,
};

PyMODINIT_FUNC
PyInit_scratch(void)
{
    return PyModuleDef_Init(&scratch_module);
}

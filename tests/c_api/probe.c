/* SPDX-License-Identifier: MIT
 *
 * What ctypes cannot do with the C interface, for tests/test_c_api.py: calls from a
 * thread that Python never saw, and with an exception pending. Compiled as an
 * extension would be.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "gpumem.h"

#include <pthread.h>

typedef struct job {
    const gpumem_api *api;
    gpumem_pool *pool;
    size_t size;
    int status;
} job;

/* Takes memory and gives it back, twice. */
static void *
run(void *context)
{
    job *j = context;

    for (int i = 0; i < 2 && j->status == GPUMEM_OK; i++) {
        void *memory;

        j->status = j->api->malloc(j->pool, j->size, 0, NULL, 0, &memory);
        if (j->status == GPUMEM_OK) {
            j->status = j->api->free(memory);
        }
    }
    return NULL;
}

int in_a_thread(const gpumem_api *api, gpumem_pool *pool, size_t size);

int
in_a_thread(const gpumem_api *api, gpumem_pool *pool, size_t size)
{
    job j = {api, pool, size, GPUMEM_OK};
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, &j) != 0 ||
        pthread_join(thread, NULL) != 0) {
        return GPUMEM_ERROR_INTERNAL;
    }
    return j.status;
}

PyObject *
while_an_error_is_pending(const gpumem_api *api, gpumem_pool *pool, size_t size);

/* Always NULL, with the exception. The table is found as extensions find it. */
PyObject *
while_an_error_is_pending(const gpumem_api *api, gpumem_pool *pool, size_t size)
{
    void *memory = NULL;

    if (gpumem_import() != api) {
        PyErr_SetString(PyExc_AssertionError, "gpumem_import() found another table");
        return NULL;
    }
    PyErr_SetString(PyExc_KeyError, "pending");
    if (api->malloc(pool, size, 0, NULL, 0, &memory) != GPUMEM_ERROR_OUT_OF_MEMORY) {
        PyErr_SetString(PyExc_AssertionError, "it was to find no memory");
    }
    return NULL;
}

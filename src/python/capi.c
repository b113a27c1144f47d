/* SPDX-License-Identifier: MIT
 *
 * The C interface as a whole: its table, the capsule by which extensions find it, and
 * its beginning and end with the module.
 *
 * Contracts are in gpumem/include/gpumem.h. The functions are in capi_pool.c and
 * capi_memory.c; how they fail in capi_error.c.
 *
 * The end: nothing is torn down in a process that is exiting, for libraries give memory
 * back from their static destructors, after the interpreter. In one that goes on, the
 * module can end only when C code holds no pool, since a pool's type keeps it.
 */
#include "capi.h"

#include "core/gm_process.h"

static const gpumem_api table = {
    .struct_size = sizeof(gpumem_api),
    .version = GPUMEM_API_VERSION,
    .pool_default = gpumem_pool_default,
    .pool_create = gpumem_pool_create,
    .pool_borrow = gpumem_pool_borrow,
    .pool_release = gpumem_pool_release,
    .malloc = gpumem_malloc,
    .free = gpumem_free,
    .record_stream = gpumem_record_stream,
    .pointer_info = gpumem_pointer_info,
    .pool_stats = gpumem_pool_stats,
    .pool_set_limit = gpumem_pool_set_limit,
    .pool_trim = gpumem_pool_trim,
    .last_error = gpumem_last_error,
    .status_text = gpumem_status_text,
};

GPUMEM_EXPORT const gpumem_api *
gpumem_get_api(void)
{
    return &table;
}

int
gmpy_c_begin(gmpy_c_api **out)
{
    gm_status status = gm_process_status();

    *out = gm_process_binding();
    if (GM_UNLIKELY(status != GM_OK)) {
        return gmpy_c_fail(*out, status, "gpumem");
    }
    if (GM_UNLIKELY(!*out)) {
        return gmpy_c_fail_text(
            GPUMEM_ERROR_NOT_LOADED,
            "import the Python module gpumem before its C interface "
            "is used");
    }
    return GPUMEM_OK;
}

/* ---- life ---- */

int
gmpy_c_init(PyObject *module, gmpy_state *st)
{
    gmpy_c_api *api = gm_host_zalloc_aligned(_Alignof(gmpy_c_api), sizeof *api);
    PyObject *capsule;
    int result;

    if (!api || gm_clients_init(&api->clients) != GM_OK) {
        gm_host_free(api);
        PyErr_NoMemory();
        return -1;
    }
    gm_raw_table_init(&api->raws);
    api->st = st;
    gm_process_set_binding(api);
    // A capsule's pointer is not const; nobody writes through it.
    capsule = PyCapsule_New((void *)(uintptr_t)&table, "gpumem._core._C_API", NULL);
    result = capsule ? PyModule_AddObjectRef(module, "_C_API", capsule) : -1;
    Py_XDECREF(capsule);
    return result;
}

void
gmpy_c_fini(gmpy_state *st)
{
    gmpy_c_api *api = gm_process_binding();

    if (!api || api->st != st || gm_process_is_frozen()) {
        return;
    }
    gm_process_set_binding(NULL);
    gm_raw_table_fini(&api->raws);
    gm_clients_fini(&api->clients);
    gm_host_free(api);
}

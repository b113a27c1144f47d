/* SPDX-License-Identifier: MIT
 *
 * Memory for C code: asking for it, giving it back by its address, and what can be
 * asked about it.
 *
 * What is handed out stands in a table by address (core/gm_raw.h), for C code has no
 * handle. An entry keeps its pool's holder, and so the pool.
 *
 * A stream is known by its number, not by its handle, which the driver gives out again.
 * The caller may know the number; otherwise it is asked for at each request, which is
 * the slower and the only right way: an answer that is remembered by handle is wrong
 * once that stream was destroyed, and nobody says when. Default streams need no
 * question.
 *
 * Memory hooks and traces do not see C code's requests, since telling them takes the
 * interpreter; what the pool takes from the device for one, hooks are told.
 *
 * Cost: a hit and the free of it are those of the core and one entry of the table.
 * Threading: any thread, attached or not.
 */
#include "capi.h"
#include "out_of_memory.h"
#include "stream.h"

#include "core/gm_pending.h" // gm_pool_record_use

#include <string.h> // memcpy

/* ---- streams ---- */

/* What a pool on `device` has to know of a stream; `id` 0: it is asked for. */
static gm_status
use_of(const gm_backend *backend,
       int device,
       void *stream,
       uint64_t id,
       gm_stream_use *out)
{
    const gmpy_stream_ref ref = {
        .handle = (gm_stream)stream,
        .device = (gm_stream)stream == GM_STREAM_PER_THREAD ? device : -1,
        .of = device,
    };
    gm_status status = GM_OK;
    gm_device_mark back;

    *out = (gm_stream_use){
        .stream = ref.handle,
        .device = device,
        .announced = ref.handle <= GM_STREAM_LEGACY,
    };
    if (!out->announced && id == 0) {
        status = gmpy_stream_enter(backend, &ref, &back);
        if (status == GM_OK) {
            status = gm_backend_stream_id(backend, ref.handle, &id);
            gmpy_stream_leave(backend, &back);
        }
    }
    out->key = gm_stream_key_of(ref.handle, id);
    return status;
}

/* ---- asking for memory ---- */

/* Notes why a request failed. */
static int
fail_request(gpumem_pool *pool,
             gmpy_rescue *rescue,
             const gm_request *request,
             gm_status status)
{
    gm_shortage shortage;
    gmpy_shortage_text text;
    int answer = gmpy_c_fail(pool->api, status, "allocating from a memory pool");

    switch (status) {
    case GM_ERR_OUT_OF_MEMORY:
    case GM_ERR_LIMIT:
    case GM_ERR_TOO_LARGE:
    case GM_ERR_CAPTURING:
        gm_pool_explain(rescue->pool, request, status, &shortage);
        shortage.attempt = rescue->asked;
        gmpy_shortage_tell(&shortage, rescue->callback != NULL, &text);
        return gmpy_c_fail_text((gpumem_status)answer, "%s", text.chars);
    default:
        return answer;
    }
}

/* Drops what the search for memory left; attaches where there is something. */
static void
rescue_end(gmpy_rescue *rescue)
{
    PyGILState_STATE gil;

    gmpy_this_rescue = rescue->outer;
    if (!rescue->callback && !rescue->shortage) {
        return;
    }
    gil = PyGILState_Ensure();
    gmpy_drop(&rescue->callback);
    gmpy_drop(&rescue->shortage);
    PyGILState_Release(gil);
}

static int
malloc_detached(gpumem_pool *pool,
                gm_pool *native,
                const gm_request *request,
                const gm_stream_use *by,
                gm_capture *capture,
                gm_block **out)
{
    gmpy_rescue rescue = {
        .st = pool->api->st,
        .pool = native,
        .of_c = true,
        .alone = (pool->flags & GPUMEM_NO_PYTHON) != 0,
        .capture = capture,
        .outer = gmpy_this_rescue,
    };
    gm_status status;
    int answer = GPUMEM_OK;

    if (rescue.alone && gmpy_upstream_of(native)->callable) {
        return gmpy_c_fail_text(
            GPUMEM_ERROR_UNSUPPORTED,
            "the pool takes its memory from a Python callable, which "
            "GPUMEM_NO_PYTHON forbids to call");
    }
    gmpy_this_rescue = &rescue;
    status = gmpy_rescue_run(&rescue, request, by, out);
    if (status != GM_OK) {
        answer = fail_request(pool, &rescue, request, status);
    }
    rescue_end(&rescue);
    return answer;
}

/* The way of a request that the cache could not serve at once. */
GM_COLD static int
malloc_slow(gpumem_pool *pool,
            gm_pool *native,
            const gm_request *request,
            const gm_stream_use *by,
            gm_capture *capture,
            gm_block **out)
{
    int status;

    if (!GMPY_IS_ATTACHED()) {
        return malloc_detached(pool, native, request, by, capture, out);
    }
    {
        GMPY_TAKE_ERROR(pending); // what runs meanwhile must not find it
        Py_BEGIN_ALLOW_THREADS
        status = malloc_detached(pool, native, request, by, capture, out);
        Py_END_ALLOW_THREADS
        GMPY_GIVE_ERROR(pending);
    }
    return status;
}

/* Ends an entry and gives its block back. */
static void
entry_end(gm_raw *raw)
{
    gpumem_pool *pool = raw->owner;

    gm_pool_free(raw->pool, raw->block, raw->generation);
    gm_raw_free(raw);
    gmpy_c_unref(pool);
}

/* Makes `raw` the entry of a block that was handed out. */
static void
entry_begin(
    gpumem_pool *pool, gm_raw *raw, gm_pool *native, gm_block *block, size_t size)
{
    gm_raw *stale;

    raw->addr = block->addr;
    raw->pool = native;
    raw->block = block;
    raw->generation = block->generation;
    raw->requested = size;
    raw->owner = pool;
    gmpy_c_ref(pool);
    stale = gm_raw_put(&pool->api->raws, raw);
    if (GM_UNLIKELY(stale != NULL)) { // given back by its address, in Python
        entry_end(stale);
    }
}

int
gmpy_c_malloc(gpumem_pool *pool,
              size_t size,
              int device,
              void *stream,
              uint64_t stream_id,
              gm_capture *capture,
              void **out)
{
    gmpy_c_api *api;
    int answer = gmpy_c_begin(&api);
    gm_pool *native;
    gm_request request = {.size = size};
    gm_stream_use by;
    gm_block *block;
    gm_status status;
    gm_raw *raw;

    if (answer != GPUMEM_OK) {
        return answer;
    }
    if (!pool || !out || size == 0) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE, "%s",
                                !pool  ? "pool is NULL"
                                : !out ? "out is NULL"
                                       : "size is 0");
    }
    answer = gmpy_c_native(pool, device, true, &native, &device);
    if (answer != GPUMEM_OK) {
        return answer;
    }
    status = use_of(api->st->backend, device, stream, stream_id, &by);
    if (status != GM_OK) {
        return gmpy_c_fail(api, status, "asking which stream it is");
    }
    raw = gm_raw_new();
    if (!raw) {
        return gmpy_c_fail(api, GM_ERR_HOST_MEMORY, "allocating from a memory pool");
    }
    request.key = by.key;
    request.client = pool->named ? pool->client : gmpy_this_thread.client;
    if (GM_UNLIKELY(gm_pool_malloc(native, &request, &block) != GM_OK)) {
        answer = malloc_slow(pool, native, &request, &by, capture, &block);
        if (answer != GPUMEM_OK) {
            gm_raw_free(raw);
            return answer;
        }
    }
    entry_begin(pool, raw, native, block, size);
    *out = (void *)block->addr;
    return GPUMEM_OK;
}

GPUMEM_EXPORT int
gpumem_malloc(gpumem_pool *pool,
              size_t size,
              int device,
              void *stream,
              uint64_t stream_id,
              void **out)
{
    return gmpy_c_malloc(pool, size, device, stream, stream_id, NULL, out);
}

/* ---- giving it back ---- */

static int
fail_unknown(const void *ptr)
{
    return gmpy_c_fail_text(GPUMEM_ERROR_NOT_OWNED,
                            "no live memory of the C interface starts at %s: it was "
                            "given back already, or never came from here",
                            gmpy_as_hex((uintptr_t)ptr).text);
}

GPUMEM_EXPORT int
gpumem_free(void *ptr)
{
    gmpy_c_api *api;
    int status;
    gm_raw *raw;

    if (!ptr) {
        return GPUMEM_OK;
    }
    status = gmpy_c_begin(&api);
    if (status != GPUMEM_OK) {
        return status;
    }
    raw = gm_raw_take(&api->raws, (uintptr_t)ptr);
    if (GM_UNLIKELY(!raw)) {
        return fail_unknown(ptr);
    }
    entry_end(raw);
    return GPUMEM_OK;
}

/* ---- memory in use ---- */

/* Copies the entry; its holder gets a reference, so that the pool stays. */
static void
look(const gm_raw *raw, void *context)
{
    gmpy_c_ref(raw->owner);
    *(gm_raw *)context = *raw;
}

/* The entry at `ptr` as *out, with a reference to its holder. A gpumem_status. */
static int
begin_at(const void *ptr, gmpy_c_api **api, gm_raw *out)
{
    int status = gmpy_c_begin(api);

    if (status != GPUMEM_OK) {
        return status;
    }
    return gm_raw_find(&(*api)->raws, (uintptr_t)ptr, look, out) ? GPUMEM_OK
                                                                 : fail_unknown(ptr);
}

GPUMEM_EXPORT int
gpumem_record_stream(void *ptr, void *stream)
{
    PyThreadState *attached;
    gmpy_c_api *api;
    gm_raw raw;
    gm_stream_use by;
    gm_status status;
    int answer = begin_at(ptr, &api, &raw);

    if (answer != GPUMEM_OK) {
        return answer;
    }
    attached = gmpy_c_detach();
    status = use_of(api->st->backend, gm_pool_device(raw.pool), stream, 0, &by);
    if (status == GM_OK) {
        gmpy_upstream_note(gmpy_upstream_of(raw.pool));
        status = gm_pool_record_use(raw.pool, raw.block, raw.generation, &by);
    }
    if (status != GM_OK) {
        answer = gmpy_c_fail(api, status, "recording that a stream uses memory");
    }
    gmpy_c_attach(attached);
    gmpy_c_unref(raw.owner);
    return answer;
}

GPUMEM_EXPORT int
gpumem_pointer_info(const void *ptr, gpumem_info *out)
{
    PyThreadState *attached;
    gmpy_c_api *api;
    gm_raw raw;
    gm_range range = {0};
    gm_status status;
    int answer;

    if (!out || out->struct_size < sizeof out->struct_size) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE,
                                "out must have its struct_size");
    }
    answer = begin_at(ptr, &api, &raw);
    if (answer != GPUMEM_OK) {
        return answer;
    }
    attached = gmpy_c_detach();
    status = gm_pool_range(raw.pool, raw.block, raw.generation, &range);
    gmpy_c_attach(attached);
    if (status == GM_OK) {
        const gpumem_info info = {
            .struct_size = out->struct_size,
            .size = raw.block->size,
            .requested = raw.requested,
            .device = gm_pool_device(raw.pool),
            .base = (void *)range.base,
            .base_size = range.size,
        };

        memcpy(out, &info, Py_MIN(out->struct_size, sizeof info));
    }
    else {
        answer = gmpy_c_fail(api, status, "asking about memory");
    }
    gmpy_c_unref(raw.owner);
    return answer;
}

/* SPDX-License-Identifier: MIT
 *
 * Functions of the shapes that PyTorch takes an allocator's by, over the C interface.
 *
 * torch gives an allocator no context, so there is one pool for it a process, chosen
 * once (_torch_open). gpumem/interop/torch.py hands the functions to torch:
 *
 * - gpumem_torch_alloc and the rest as torch's allocator: torch has no cache of its own
 *   then. torch takes what it is given for memory, null included, and says that there
 *   is none by a C++ exception. So that is thrown: see below. What it says of graphs
 *   goes to capi_torch_graphs.c.
 * - gpumem_torch_pool_alloc below torch's own cache (torch.cuda.MemPool): called with
 *   torch's lock held, which threads want that have the interpreter, so it never waits
 *   for that. Null is understood there: torch gives back what it has cached and raises.
 *
 * Throwing from C: an exception is an object that the C++ runtime allocates and unwinds
 * for. torch's error is built by its own constructor, which is exported for the macros
 * in its headers, and made the derived class that Python sees as torch.OutOfMemoryError
 * by that class's table and type, which differ in nothing else. The addresses of all
 * that come from the libraries themselves, by name (torch.py); where one is missing
 * torch is refused. What is laid out here is laid down by the Itanium C++ ABI and that
 * of libstdc++. A frame that is unwound needs no clean-up: nothing is held in one.
 *
 * Threading: any thread; torch calls without the interpreter's lock.
 */
#include "capi.h"
#include "pools.h"

#include "core/gm_process.h" // gm_process_binding

#include <string.h>    // memcpy, strlen
#include <sys/types.h> // ssize_t

/* ---- exceptions ---- */

/* c10::SourceLocation. */
typedef struct place {
    const char *function;
    const char *file;
    uint32_t line;
} place;

/* std::string of libstdc++. */
typedef struct cxx_string {
    char *chars;
    size_t length;
    union {
        char local[16];
        size_t room;
    } u;
} cxx_string;

typedef void (*cxx_end)(void *object);

/* What torch.py looks up, in its order. */
struct gmpy_cxx {
    void *(*allocate_exception)(size_t size); // __cxa_allocate_exception
    void (*throw_exception)(void *object, void *type, cxx_end end); // __cxa_throw
    void *(*operator_new)(size_t size);
    void (*operator_delete)(void *memory);
    void (*make_error)(void *object, place where, cxx_string *text); // c10::Error()
    void *shortage_type;   // typeinfo of c10::OutOfMemoryError
    void **shortage_table; // its virtual table
    void (*check_fail)(const char *function,
                       const char *file,
                       uint32_t line,
                       const char *text); // throws c10::Error
};

enum {
    CXX_FUNCTIONS = sizeof(gmpy_cxx) / sizeof(uintptr_t),
    ERROR_SIZE = 1024, // several times c10::Error
    TABLE_HEAD = 2,    // words of a virtual table before its functions
};

/* A string that `destroy` ends. */
static cxx_string
make_string(const gmpy_cxx *cxx, const char *text)
{
    size_t length = strlen(text);
    cxx_string string = {.length = length};

    string.u.room = length < sizeof string.u.local ? sizeof string.u.local : length;
    string.chars = cxx->operator_new(string.u.room + 1);
    memcpy(string.chars, text, length + 1);
    return string;
}

/* Throws torch's error for want of memory: with the words by which programs know it,
 * and the text of the last error. */
static void
throw_shortage(const gmpy_cxx *cxx)
{
    char words[sizeof gmpy_this_c_error.text + sizeof "CUDA out of memory. "];
    const place where = {"gpumem_torch_alloc", __FILE__, __LINE__};
    void **object = cxx->allocate_exception(ERROR_SIZE);
    cxx_string text = {0};

    PyOS_snprintf(words, sizeof words, "CUDA out of memory. %s",
                  gmpy_this_c_error.text);
    text = make_string(cxx, words);
    cxx->make_error(object, where, &text);
    if (text.chars != text.u.local) { // it was copied, or there was nothing to it
        cxx->operator_delete(text.chars);
    }
    object[0] = cxx->shortage_table + TABLE_HEAD;
    /* The first function of the table is the destructor that leaves the memory. */
    cxx->throw_exception(object, cxx->shortage_type,
                         (cxx_end)(uintptr_t)cxx->shortage_table[TABLE_HEAD]);
}

/* Throws torch's error of any other kind. */
static void
throw_error(const gmpy_cxx *cxx, const char *text)
{
    cxx->check_fail("gpumem", __FILE__, __LINE__, text);
}

/* ---- what torch calls ---- */

/* A bit that no number of a stream has: see take. */
#define KEY_BY_HANDLE (UINT64_C(1) << 62)

/* The C interface where torch was given a pool; NULL before, and at the end. */
static gmpy_c_api *
opened(void)
{
    gmpy_c_api *api = NULL;

    return gmpy_c_begin(&api) == GPUMEM_OK && api->torch ? api : NULL;
}

/* The runtime does not tell which stream it is that is being recorded. torch's streams
 * are never destroyed, so there a handle will do: memory taken by it is its own. */
static uint64_t
key_of(const void *stream)
{
    return KEY_BY_HANDLE | (uintptr_t)stream;
}

static int
take(gpumem_pool *pool, size_t size, int device, void *stream, void **out)
{
    int status = gpumem_malloc(pool, size, device, stream, 0, out);

    return status == GPUMEM_ERROR_CAPTURING
               ? gpumem_malloc(pool, size, device, stream, key_of(stream), out)
               : status;
}

/* The same while torch records: memory of the graph's, where the stream takes part. */
GM_COLD static int
take_recording(gmpy_c_api *api, size_t size, int device, void *stream, void **out)
{
    gm_capture *capture = gmpy_torch_graphs_find(api, device, stream);
    int status;

    if (!capture) {
        return take(api->torch, size, device, stream, out);
    }
    status =
        gmpy_c_malloc(api->torch, size, device, stream, key_of(stream), capture, out);
    gm_capture_unref(capture);
    return status;
}

GPUMEM_EXPORT void *
gpumem_torch_alloc(ssize_t size, int device, void *stream)
{
    gmpy_c_api *api = opened();
    void *memory = NULL;
    int status;

    if (!api || size == 0) {
        return NULL; // the process ends, or nothing is wanted
    }
    status = GM_UNLIKELY(gmpy_torch_graphs_any(api))
                 ? take_recording(api, (size_t)size, device, stream, &memory)
                 : take(api->torch, (size_t)size, device, stream, &memory);
    if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
        throw_shortage(api->cxx);
    }
    if (status != GPUMEM_OK) {
        throw_error(api->cxx, gmpy_this_c_error.text);
    }
    return memory;
}

GPUMEM_EXPORT void *
gpumem_torch_pool_alloc(ssize_t size, int device, void *stream)
{
    gmpy_c_api *api = opened();
    void *memory = NULL;

    if (!api || size == 0 ||
        take(api->torch_alone, (size_t)size, device, stream, &memory) != GPUMEM_OK) {
        return NULL;
    }
    return memory;
}

/* torch has noted what it frees, so there is nothing to be told. */
GPUMEM_EXPORT void
gpumem_torch_free(void *ptr,
                  ssize_t Py_UNUSED(size),
                  int Py_UNUSED(device),
                  void *Py_UNUSED(stream))
{
    gmpy_c_api *api = opened();

    if (!api || !gmpy_torch_graphs_keep(api, ptr)) {
        (void)gpumem_free(ptr);
    }
}

GPUMEM_EXPORT void
gpumem_torch_record_stream(void *ptr, void *stream)
{
    gmpy_c_api *api = opened();
    int status = api && ptr ? gpumem_record_stream(ptr, stream) : GPUMEM_OK;

    if (status == GPUMEM_ERROR_CAPTURING && gmpy_torch_graphs_any(api)) {
        status = gmpy_torch_graphs_use(api, ptr) == GM_OK ? GPUMEM_OK : status;
    }
    if (status != GPUMEM_OK) {
        throw_error(api->cxx, gmpy_this_c_error.text);
    }
}

/* torch.cuda.empty_cache. */
GPUMEM_EXPORT void
gpumem_torch_empty_cache(void)
{
    gmpy_c_api *api = opened();

    if (api) {
        gmpy_torch_graphs_tidy(api);
    }
    for (int device = 0; api && device < api->torch->device_count; device++) {
        if (atomic_load(&api->torch->natives[device])) { // that torch used
            (void)gpumem_pool_trim(api->torch, device);
        }
    }
}

/* torch.cuda.set_per_process_memory_fraction. */
GPUMEM_EXPORT void
gpumem_torch_memory_fraction(double fraction, int device)
{
    gmpy_c_api *api = opened();
    size_t unused;
    size_t total = 0;
    gm_status status;

    if (!api) {
        return;
    }
    status = gm_backend_mem_info(api->st->backend, device, &unused, &total);
    if (status != GM_OK) {
        (void)gmpy_c_fail(api, status, "setting a fraction of the memory");
        throw_error(api->cxx, gmpy_this_c_error.text);
    }
    if (gpumem_pool_set_limit(api->torch, device, (size_t)((double)total * fraction)) !=
        GPUMEM_OK) {
        throw_error(api->cxx, gmpy_this_c_error.text);
    }
}

/* What memory of other processes is named by. */
GPUMEM_EXPORT void *
gpumem_torch_base_alloc(void *ptr, size_t *size)
{
    gpumem_info info = {.struct_size = sizeof info};

    if (gpumem_pointer_info(ptr, &info) != GPUMEM_OK) {
        return ptr;
    }
    if (size) {
        *size = info.base_size;
    }
    return info.base;
}

/* ---- graphs ---- */

/* torch is about to record a graph. What it passes last tells which streams take part,
 * which the driver is asked instead. */
GPUMEM_EXPORT void
gpumem_torch_begin_pool(int device, gpumem_torch_id id, void *Py_UNUSED(filter))
{
    gmpy_c_api *api = opened();
    PyThreadState *attached;
    gm_status status;

    if (!api) {
        return;
    }
    attached = gmpy_c_detach();
    status = gmpy_torch_graphs_begin(api, device, id);
    gmpy_c_attach(attached);
    if (status == GM_BUSY) {
        throw_error(api->cxx, "a graph is being recorded with this memory already; "
                              "give the other one a pool of its own");
    }
    if (status != GM_OK) {
        (void)gmpy_c_fail(api, status, "beginning to record a graph");
        throw_error(api->cxx, gmpy_this_c_error.text);
    }
}

GPUMEM_EXPORT void
gpumem_torch_end_pool(int device, gpumem_torch_id id)
{
    gmpy_c_api *api = opened();
    PyThreadState *attached;

    if (api) {
        attached = gmpy_c_detach();
        gmpy_torch_graphs_end(api, device, id);
        gmpy_c_attach(attached);
    }
}

GPUMEM_EXPORT void
gpumem_torch_release_pool(int device, gpumem_torch_id id)
{
    gmpy_c_api *api = opened();
    PyThreadState *attached;

    if (api) {
        attached = gmpy_c_detach();
        gmpy_torch_graphs_release(api, device, id);
        gmpy_c_attach(attached);
    }
}

/* ---- opening ---- */

/* 0 or -1. */
static int
read_functions(PyObject *tuple, gmpy_cxx *out)
{
    uintptr_t addresses[CXX_FUNCTIONS];

    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != CXX_FUNCTIONS) {
        PyErr_Format(PyExc_TypeError, "functions must be a tuple of %d addresses",
                     (int)CXX_FUNCTIONS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < CXX_FUNCTIONS; i++) {
        if (gmpy_as_function_address(PyTuple_GET_ITEM(tuple, i), "function",
                                     &addresses[i]) < 0) {
            return -1;
        }
    }
    memcpy(out, addresses, sizeof *out);
    return 0;
}

/* A holder of `object` for torch. 0, or -1 with RuntimeError. */
static int
hold_for_torch(PyObject *object, unsigned flags, gpumem_pool **out)
{
    const gpumem_options options = {
        .struct_size = sizeof options, .client = "torch", .flags = flags};

    if (gpumem_pool_borrow(object, &options, out) != GPUMEM_OK) {
        PyErr_SetString(PyExc_RuntimeError, gpumem_last_error());
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(
    torch_open_doc,
    "_torch_open(pool, functions, /)\n"
    "--\n"
    "\n"
    "Gives torch that pool: once. The functions are the addresses that the head\n"
    "of capi_torch.c tells of.");

static PyObject *
torch_open(PyObject *Py_UNUSED(module), PyObject *args)
{
    gmpy_c_api *api = gm_process_binding();
    gpumem_pool *pool = NULL;
    gpumem_pool *alone = NULL;
    PyObject *object;
    PyObject *functions;
    gmpy_torch_graphs *graphs;
    gmpy_cxx *cxx;

    if (!PyArg_UnpackTuple(args, "_torch_open", 2, 2, &object, &functions)) {
        return NULL;
    }
    if (api->torch) {
        if (api->torch->object != object) {
            PyErr_SetString(PyExc_RuntimeError,
                            "torch has a gpumem pool already, and one a process is all "
                            "that it can be given");
            return NULL;
        }
        Py_RETURN_NONE;
    }
    cxx = gm_host_zalloc(sizeof *cxx);
    if (!cxx) {
        return PyErr_NoMemory();
    }
    graphs = gmpy_torch_graphs_new();
    if (!graphs) {
        PyErr_NoMemory();
    }
    if (!graphs || read_functions(functions, cxx) < 0 ||
        hold_for_torch(object, 0, &pool) < 0 ||
        hold_for_torch(object, GPUMEM_NO_PYTHON, &alone) < 0) {
        gpumem_pool_release(pool);
        gm_host_free(graphs);
        gm_host_free(cxx);
        return NULL;
    }
    api->cxx = cxx;
    api->torch_graphs = graphs;
    api->torch_alone = alone;
    api->torch = pool; // the last: before it nobody looks at the others
    Py_RETURN_NONE;
}

PyMethodDef gmpy_c_torch_methods[] = {
    {"_torch_open", torch_open, METH_VARARGS, torch_open_doc},
    {0},
};

/* SPDX-License-Identifier: MIT
 *
 * Which backend is used: chosen from GPUMEM_BACKEND at first use, never at import, and
 * kept for the life of the module, because memory that is still out needs it.
 *
 * auto takes CUDA where there is a device. It falls back to the simulated device, with
 * a RuntimeWarning, only where no GPU could be meant: CUDA was left out of the build,
 * there is no driver, or there is no device. Anything else that is wrong with a driver
 * is an error: a program that was to run on a GPU must not run on a simulation
 * unnoticed.
 *
 * The simulated device is always used through the fault wrapper, so that a test can
 * make any of its calls fail; the CUDA backend never is.
 */
#include "module.h"

#include <stdlib.h> // getenv, strtol
#include <string.h>

#include "backends/backends.h"
#include "core/gm_process.h" // gm_process_opened

#define SIM_MEMORY_FORMS                                                               \
    GMPY_SIZE_FORMS ", from 1 byte to 16 TiB for all devices together"

enum {
    SIM_DEVICES_DEFAULT = 1,
};

/* As large as a big card; nothing is spent until it is used. */
static const size_t sim_memory_default = (size_t)80 << 30;

static int
bad_variable(const char *variable, const char *text, const char *accepted)
{
    PyErr_Format(PyExc_ValueError, "environment variable %s is '%s'; accepted: %s",
                 variable, text, accepted);
    return -1;
}

/* ---- reading the environment ---- */

static int
read_sim_options(gm_sim_options *options)
{
    const char *devices = getenv("GPUMEM_SIM_DEVICES");
    const char *memory = getenv("GPUMEM_SIM_MEMORY");

    *options = (gm_sim_options){
        .devices = SIM_DEVICES_DEFAULT,
        .memory = sim_memory_default,
    };
    if (devices) {
        char *end;
        long count = strtol(devices, &end, 10);

        if (!Py_ISDIGIT(Py_CHARMASK(*devices)) || *end || count < 1 ||
            count > GM_SIM_MAX_DEVICES) {
            return bad_variable("GPUMEM_SIM_DEVICES", devices,
                                "a whole number from 1 to 16");
        }
        options->devices = (int)count;
    }
    if (memory) {
        size_t most = GM_SIM_MAX_MEMORY / (size_t)options->devices;

        if (gmpy_parse_size(memory, strlen(memory), &options->memory) != GM_OK ||
            options->memory < 1 || options->memory > most) {
            return bad_variable("GPUMEM_SIM_MEMORY", memory, SIM_MEMORY_FORMS);
        }
    }
    return 0;
}

GM_STATIC_ASSERT(GM_SIM_MAX_DEVICES == 16, "a message above names the number");
GM_STATIC_ASSERT(GM_SIM_MAX_MEMORY == (size_t)16 << 40,
                 "a message above names the size");

typedef enum choice {
    CHOOSE_AUTO,
    CHOOSE_CUDA,
    CHOOSE_SIM,
} choice;

static int
read_choice(choice *out)
{
    const char *text = getenv("GPUMEM_BACKEND");

    if (!text || strcmp(text, "auto") == 0) {
        *out = CHOOSE_AUTO;
    }
    else if (strcmp(text, "cuda") == 0) {
        *out = CHOOSE_CUDA;
    }
    else if (strcmp(text, "sim") == 0) {
        *out = CHOOSE_SIM;
    }
    else {
        return bad_variable("GPUMEM_BACKEND", text, "auto, cuda or sim");
    }
    return 0;
}

/* ---- opening ---- */

/* A backend before it is published in the state. */
typedef struct opened {
    const gm_backend *backend;
    gm_backend *sim;
    gm_backend *fault;
} opened;

static void
opened_close(const opened *o)
{
    if (o->fault) {
        gm_backend_close(o->fault);
    }
    if (o->sim) {
        gm_backend_close(o->sim);
    }
}

static int
open_sim(gmpy_state *st, opened *out)
{
    gm_sim_options options;
    gm_status status;

    if (read_sim_options(&options) < 0) {
        return -1;
    }
    status = gm_backend_sim_open(&options, &out->sim);
    if (status == GM_OK) {
        status = gm_backend_fault_open(out->sim, &out->fault);
    }
    if (status != GM_OK) {
        gmpy_raise(st, status, "opening the simulated device");
        return -1;
    }
    out->backend = out->fault;
    return 0;
}

static int
raise_no_cuda(gm_status status, const gm_cuda_probe *probe)
{
    if (status == GM_ERR_UNSUPPORTED) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "this build of gpumem has no CUDA; build it where a CUDA toolkit "
            "is found, or set GPUMEM_BACKEND=sim");
    }
    else if (status == GM_ERR_DRIVER_TOO_OLD) {
        PyErr_Format(PyExc_RuntimeError,
                     "the NVIDIA driver supports CUDA %d.%d, but gpumem was built with "
                     "the CUDA %d.%d runtime; update the driver, build gpumem with an "
                     "older toolkit, or set GPUMEM_BACKEND=sim",
                     probe->driver / 1000, probe->driver % 1000 / 10,
                     probe->runtime / 1000, probe->runtime % 1000 / 10);
    }
    else if (status == GM_ERR_NO_DRIVER) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s; set GPUMEM_BACKEND=sim for the simulated device",
                     probe->driver ? "the NVIDIA driver sees no device"
                                   : "no NVIDIA driver is installed");
    }
    else {
        PyErr_Format(
            PyExc_RuntimeError,
            "the CUDA runtime cannot be used (error %d); set GPUMEM_BACKEND=sim "
            "for the simulated device",
            gm_status_is_device(status) ? gm_status_device_code(status) : probe->error);
    }
    return -1;
}

/* Whether a frame runs code of the package's own Python files. */
static bool
is_own_frame(PyFrameObject *frame)
{
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *package = PyDict_GetItemString(globals, "__package__");
    bool own = package && PyUnicode_Check(package) &&
               PyUnicode_CompareWithASCIIString(package, "gpumem") == 0;

    Py_DECREF(globals);
    return own;
}

/* The `stacklevel` that blames the code that called the package, not the package. */
static Py_ssize_t
callers_level(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    Py_ssize_t level = 1;

    Py_XINCREF(frame);
    while (frame && is_own_frame(frame)) {
        PyFrameObject *back = PyFrame_GetBack(frame);

        Py_DECREF(frame);
        frame = back;
        level++;
    }
    Py_XDECREF(frame);
    return level;
}

static int
warn_of_sim(const gm_cuda_probe *probe)
{
    const char *why = !probe->built   ? "this build has no CUDA"
                      : probe->driver ? "the NVIDIA driver sees no device"
                                      : "no NVIDIA driver is installed";

    return PyErr_WarnFormat(PyExc_RuntimeWarning, callers_level(),
                            "gpumem uses the simulated device: %s "
                            "(set GPUMEM_BACKEND=sim to choose it silently)",
                            why);
}

static int
open_chosen(gmpy_state *st, opened *out)
{
    gm_cuda_probe probe;
    gm_status status;
    choice chosen;

    if (read_choice(&chosen) < 0) {
        return -1;
    }
    if (chosen == CHOOSE_SIM) {
        return open_sim(st, out);
    }
    status = gm_backend_cuda_open(&out->backend);
    if (status == GM_OK) {
        return 0;
    }
    gm_backend_cuda_probe(&probe);
    if (chosen == CHOOSE_AUTO &&
        (status == GM_ERR_UNSUPPORTED || status == GM_ERR_NO_DRIVER)) {
        return warn_of_sim(&probe) < 0 ? -1 : open_sim(st, out);
    }
    return raise_no_cuda(status, &probe);
}

/* Publishes `o` unless another thread, or code that ran for the warning, was first. */
static int
publish(gmpy_state *st, const opened *o)
{
    gm_status status = gm_backend_validate(o->backend);
    uint64_t *lives;
    bool first;
    int count = 0;

    if (status == GM_OK) {
        status = gm_backend_device_count(o->backend, &count);
    }
    if (status != GM_OK) {
        PyErr_Format(PyExc_RuntimeError, "the %s backend cannot count its devices (%d)",
                     o->backend->name, status);
        return -1;
    }
    lives = PyMem_Calloc((size_t)count, sizeof *lives);
    if (!lives) {
        PyErr_NoMemory();
        return -1;
    }
    GMPY_LOCK(&st->opening);
    first = !st->backend;
    if (first) {
        st->lives = lives;
        st->sim = o->sim;
        st->fault = o->fault;
        st->device_count = count;
        __atomic_store_n(&st->backend, o->backend, __ATOMIC_RELEASE);
    }
    GMPY_UNLOCK(&st->opening);
    if (!first) {
        PyMem_Free(lives);
        opened_close(o);
        return 0;
    }
    gm_process_opened();
    return 0;
}

const gm_backend *
gmpy_open_backend(gmpy_state *st)
{
    opened o = {0};

    if (open_chosen(st, &o) < 0 || publish(st, &o) < 0) {
        opened_close(&o);
        return NULL;
    }
    return st->backend;
}

/* ---- devices ---- */

int
gmpy_current_device_slow(gmpy_state *st)
{
    const gm_backend *backend = gmpy_backend(st);
    int device = 0;
    gm_status status;

    if (!backend) {
        return -1;
    }
    if (st->device_count == 1) {
        return 0;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(st, GM_ERR_FORKED, "asking for the current device");
        return -1;
    }
    status = gm_backend_device_get(backend, &device);
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking for the current device");
        return -1;
    }
    return device;
}

static void
raise_no_device(const gmpy_state *st, PyObject *arg)
{
    PyObject *text = gmpy_number_text(arg);

    if (text && st->device_count == 1) {
        PyErr_Format(PyExc_ValueError,
                     "device must be 0, the only one there is, not %U", text);
    }
    else if (text) {
        PyErr_Format(PyExc_ValueError, "device must be from 0 to %d, not %U",
                     st->device_count - 1, text);
    }
    Py_XDECREF(text);
}

int
gmpy_as_device(gmpy_state *st, PyObject *arg, int *out)
{
    if (!gmpy_backend(st)) {
        return -1;
    }
    if (gmpy_as_int(arg, "device", out) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear(); // no device has such a number either
        *out = -1;
    }
    if (*out < 0 || *out >= st->device_count) {
        raise_no_device(st, arg);
        return -1;
    }
    return 0;
}

int
gmpy_as_device_or_current(gmpy_state *st, PyObject *arg, int *out)
{
    if (arg && arg != Py_None) {
        return gmpy_as_device(st, arg, out);
    }
    *out = gmpy_current_device(st);
    return *out < 0 ? -1 : 0;
}

/* ---- configuration ---- */

PyDoc_STRVAR(
    get_backend_doc,
    "get_backend()\n"
    "--\n"
    "\n"
    "Returns the name of the backend in use, 'cuda' or 'sim', choosing it if this\n"
    "is the first use.\n"
    "\n"
    "Raises:\n"
    "    ValueError: GPUMEM_BACKEND, GPUMEM_SIM_DEVICES or GPUMEM_SIM_MEMORY is\n"
    "        set to something that is not accepted.\n"
    "    RuntimeError: the backend asked for cannot be used.");

static PyObject *
runtime_get_backend(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);

    if (!gmpy_backend(st)) {
        return NULL;
    }
    return PyUnicode_FromString(st->sim ? "sim" : st->backend->name);
}

PyDoc_STRVAR(
    config_doc,
    "_config()\n"
    "--\n"
    "\n"
    "Returns what was built and what is in use, as a dictionary. Opens nothing.");

static PyObject *
runtime_config(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);
    gm_cuda_probe probe;

    gm_backend_cuda_probe(&probe);
    return Py_BuildValue("{s:O, s:s, s:i, s:i, s:i, s:z, s:i, s:s}", "built_with_cuda",
                         probe.built ? Py_True : Py_False, "cuda_toolkit",
                         GM_BUILD_CUDA_FROM, "cuda_runtime_version", probe.runtime,
                         "driver_version", probe.driver, "cuda_devices", probe.devices,
                         "backend",
                         st->sim       ? "sim"
                         : st->backend ? st->backend->name
                                       : NULL,
                         "devices", st->device_count, "compiler", Py_GetCompiler());
}

PyMethodDef gmpy_runtime_methods[] = {
    {"get_backend", runtime_get_backend, METH_NOARGS, get_backend_doc},
    {"_config", runtime_config, METH_NOARGS, config_doc},
    {0},
};

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

#include <ctype.h>  // isspace, isdigit
#include <math.h>   // isfinite
#include <stdlib.h> // getenv, strtod
#include <string.h>
#include <strings.h> // strcasecmp

#include "backends/backends.h"
#include "core/gm_process.h" // gm_process_opened

#define SIM_MEMORY_FORMS                                                               \
    "a number of bytes, or a number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB"

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

static const struct {
    const char *suffix;
    double bytes;
} units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1024.0},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
};

/* 0 where the text is a size of at least one byte that a size_t can hold. */
static int
parse_size(const char *text, size_t *out)
{
    char *end;
    double number;

    number = strtod(text, &end);
    if (!isdigit((unsigned char)*text) || end != text + strspn(text, "0123456789.")) {
        return -1;
    }
    while (isspace((unsigned char)*end)) {
        end++;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
        double bytes = number * units[i].bytes;

        if (strcasecmp(end, units[i].suffix) == 0) {
            if (!isfinite(bytes) || bytes < 1 || bytes >= 9.0e18) {
                return -1;
            }
            *out = (size_t)bytes;
            return 0;
        }
    }
    return -1;
}

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

        if (!isdigit((unsigned char)*devices) || *end || count < 1 ||
            count > GM_SIM_MAX_DEVICES) {
            return bad_variable("GPUMEM_SIM_DEVICES", devices,
                                "a whole number from 1 to 16");
        }
        options->devices = (int)count;
    }
    if (memory && parse_size(memory, &options->memory) < 0) {
        return bad_variable("GPUMEM_SIM_MEMORY", memory, SIM_MEMORY_FORMS);
    }
    return 0;
}

GM_STATIC_ASSERT(GM_SIM_MAX_DEVICES == 16, "the message above names the number");

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

static int
open_sim(gmpy_state *st)
{
    gm_sim_options options;
    gm_backend *sim = NULL;
    gm_backend *fault = NULL;
    gm_status status;

    if (read_sim_options(&options) < 0) {
        return -1;
    }
    status = gm_backend_sim_open(&options, &sim);
    if (status != GM_OK) {
        gmpy_raise(st, status, "opening the simulated device");
        return -1;
    }
    status = gm_backend_fault_open(sim, &fault);
    if (status != GM_OK) {
        gm_backend_close(sim);
        gmpy_raise(st, status, "opening the simulated device");
        return -1;
    }
    st->sim = sim;
    st->fault = fault;
    st->backend = fault;
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

static int
fall_back_to_sim(gmpy_state *st, const gm_cuda_probe *probe)
{
    const char *why = !probe->built   ? "this build has no CUDA"
                      : probe->driver ? "the NVIDIA driver sees no device"
                                      : "no NVIDIA driver is installed";

    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "gpumem uses the simulated device: %s "
                         "(set GPUMEM_BACKEND=sim to choose it silently)",
                         why) < 0) {
        return -1;
    }
    return open_sim(st);
}

static int
open_chosen(gmpy_state *st)
{
    gm_cuda_probe probe;
    gm_status status;
    choice chosen;

    if (read_choice(&chosen) < 0) {
        return -1;
    }
    if (chosen == CHOOSE_SIM) {
        return open_sim(st);
    }
    status = gm_backend_cuda_open(&st->backend);
    if (status == GM_OK) {
        return 0;
    }
    gm_backend_cuda_probe(&probe);
    if (chosen == CHOOSE_AUTO &&
        (status == GM_ERR_UNSUPPORTED || status == GM_ERR_NO_DRIVER)) {
        return fall_back_to_sim(st, &probe);
    }
    return raise_no_cuda(status, &probe);
}

const gm_backend *
gmpy_open_backend(gmpy_state *st)
{
    int count = 0;
    gm_status status;

    if (open_chosen(st) < 0) {
        return NULL;
    }
    status = gm_backend_device_count(st->backend, &count);
    if (status != GM_OK) {
        gmpy_raise(st, status, "counting devices");
        st->backend = NULL;
        return NULL;
    }
    st->device_count = count;
    gm_process_opened();
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
    status = gm_backend_device_get(backend, &device);
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking for the current device");
        return -1;
    }
    return device;
}

int
gmpy_as_device(gmpy_state *st, PyObject *arg, int *out)
{
    if (!gmpy_backend(st) || gmpy_as_int(arg, "device", out) < 0) {
        return -1;
    }
    if (*out < 0 || *out >= st->device_count) {
        PyErr_Format(PyExc_ValueError, "device must be from 0 to %d, not %d",
                     st->device_count - 1, *out);
        return -1;
    }
    return 0;
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

#ifndef GM_BUILD_CUDA_FROM
#define GM_BUILD_CUDA_FROM ""
#endif

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

/* SPDX-License-Identifier: MIT
 *
 * What gpumem.testing is made of, where it makes things happen to the simulated device:
 * streams that are held, slow calls, faults, resets, other programs' memory and errors.
 * The names and arguments for users are those of gpumem/testing.py; each function here
 * raises RuntimeError where another backend is in use.
 */
#include "testing.h"

#include "backends/backends.h"

/* None, or what `status` says went wrong with `what`. */
static PyObject *
none_or_raise(gmpy_state *st, gm_status status, const char *what)
{
    if (status != GM_OK) {
        return gmpy_raise(st, status, what);
    }
    Py_RETURN_NONE;
}

/* ---- streams that are held ---- */

PyDoc_STRVAR(
    hold_doc,
    "_sim_hold(stream, /)\n"
    "--\n"
    "\n"
    "Holds a stream, given by its handle: no work of it runs. Returns the number\n"
    "by which it is released.");

static PyObject *
testing_hold(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    unsigned long long stream;
    uint64_t hold = 0;
    gm_status status;

    if (!sim) {
        return NULL;
    }
    stream = PyLong_AsUnsignedLongLong(arg);
    if (stream == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    status = gm_sim_hold(sim, (gm_stream)stream, &hold);
    if (status == GM_BUSY) {
        PyErr_SetString(PyExc_ValueError, "the stream is held already");
        return NULL;
    }
    if (status != GM_OK) {
        return gmpy_raise(st, status, "holding a stream");
    }
    return PyLong_FromUnsignedLongLong(hold);
}

PyDoc_STRVAR(
    release_doc,
    "_sim_release(hold, /)\n"
    "--\n"
    "\n"
    "Releases a stream by the number that holding it gave; does nothing where it\n"
    "is not held any more.");

static PyObject *
testing_release(PyObject *module, PyObject *arg)
{
    const gm_backend *sim = gmpy_require_sim(gmpy_state_of_module(module));
    unsigned long long hold;

    if (!sim) {
        return NULL;
    }
    hold = PyLong_AsUnsignedLongLong(arg);
    if (hold == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    gm_sim_release(sim, hold);
    Py_RETURN_NONE;
}

/* ---- calls that take long ---- */

PyDoc_STRVAR(delay_doc,
             "_sim_set_delay(name, seconds, /)\n"
             "--\n"
             "\n"
             "Makes each call of that name take so much longer; 0 ends that. Returns\n"
             "what it was.");

static PyObject *
testing_set_delay(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    uint64_t before = 0;
    const char *name;
    gm_status status;
    double seconds;

    if (!sim || !PyArg_ParseTuple(args, "sd:_sim_set_delay", &name, &seconds)) {
        return NULL;
    }
    if (!(seconds >= 0 && seconds <= 1e6)) {
        PyErr_SetString(PyExc_ValueError, "seconds must be from 0 to a million");
        return NULL;
    }
    status = gm_sim_set_delay(sim, name, (uint64_t)(seconds * 1e9), &before);
    if (status == GM_ERR_INVALID_VALUE) {
        return PyErr_Format(
            PyExc_ValueError,
            "no call named '%s' reaches a device; call_log() shows the names", name);
    }
    if (status != GM_OK) {
        return gmpy_raise(st, status, "making calls slow");
    }
    return PyFloat_FromDouble((double)before / 1e9);
}

/* ---- faults, resets, contexts ---- */

PyDoc_STRVAR(set_fault_doc,
             "_sim_set_fault(device, code, /)\n"
             "--\n"
             "\n"
             "Makes all calls return one of the runtime's codes until the device is\n"
             "reset; 0 ends that.");

static PyObject *
testing_set_fault(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    PyObject *device_arg;
    gm_status status;
    int device;
    int code;

    if (!sim || !PyArg_ParseTuple(args, "Oi:_sim_set_fault", &device_arg, &code) ||
        gmpy_as_device(st, device_arg, &device) < 0) {
        return NULL;
    }
    status = gm_sim_set_fault(sim, device, code);
    if (status == GM_BUSY) {
        PyErr_SetString(PyExc_ValueError, "there is a fault already: the first sticks");
        return NULL;
    }
    return none_or_raise(st, status, "setting a fault");
}

PyDoc_STRVAR(reset_doc,
             "_sim_reset(device, /)\n"
             "--\n"
             "\n"
             "Resets a device behind the package's back.");

static PyObject *
testing_reset(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    gm_status status;
    int device;

    if (!sim || gmpy_as_device(st, arg, &device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_reset(sim, device);
    Py_END_ALLOW_THREADS
    return none_or_raise(st, status, "resetting a device");
}

PyDoc_STRVAR(context_doc,
             "_sim_context_created(device, /)\n"
             "--\n"
             "\n"
             "Returns whether a call made the device's context.");

static PyObject *
testing_context_created(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    int device;

    if (!sim || gmpy_as_device(st, arg, &device) < 0) {
        return NULL;
    }
    return PyBool_FromLong(gm_sim_context_created(sim, device));
}

/* ---- others ---- */

PyDoc_STRVAR(set_others_doc,
             "_sim_set_others(device, size, /)\n"
             "--\n"
             "\n"
             "Says how many bytes of a device somebody else holds.");

static PyObject *
testing_set_others(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    PyObject *device_arg;
    gm_status status;
    Py_ssize_t size;
    int device;

    if (!sim || !PyArg_ParseTuple(args, "On:_sim_set_others", &device_arg, &size) ||
        gmpy_as_device(st, device_arg, &device) < 0) {
        return NULL;
    }
    status =
        size < 0 ? GM_ERR_OUT_OF_MEMORY : gm_sim_set_others(sim, device, (size_t)size);
    if (status == GM_ERR_OUT_OF_MEMORY) {
        return PyErr_Format(PyExc_ValueError,
                            "others cannot hold %zd bytes of device %d: so much is not "
                            "free",
                            size, device);
    }
    return none_or_raise(st, status, "giving memory to others");
}

PyDoc_STRVAR(recycle_doc,
             "_sim_recycle_handles(recycle, /)\n"
             "--\n"
             "\n"
             "Says whether handles that were given back are given out again. Returns\n"
             "whether they were.");

static PyObject *
testing_recycle(PyObject *module, PyObject *arg)
{
    const gm_backend *sim = gmpy_require_sim(gmpy_state_of_module(module));
    int recycle = sim ? PyObject_IsTrue(arg) : -1;

    if (recycle < 0) {
        return NULL;
    }
    return PyBool_FromLong(gm_sim_recycle_handles(sim, recycle));
}

PyDoc_STRVAR(
    set_last_error_doc,
    "_sim_set_last_error(code, /)\n"
    "--\n"
    "\n"
    "Leaves an error in the calling thread's last-error slot; 0 takes it out.");

static PyObject *
testing_set_last_error(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    int code;

    if (!sim || gmpy_as_int(arg, "code", &code) < 0) {
        return NULL;
    }
    return none_or_raise(st, gm_sim_set_last_error(sim, code), "leaving an error");
}

/* ---- managed memory ---- */

PyDoc_STRVAR(
    managed_doc,
    "_sim_managed(address, /)\n"
    "--\n"
    "\n"
    "Returns what is known of managed memory at an address: where it was moved\n"
    "to, whether it is mostly read, where it is best, and by whom it is used as\n"
    "a sum of bits. Places are devices, -1 for the host, -2 for none.");

static PyObject *
testing_managed(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    unsigned long long address;
    gm_sim_managed known;
    gm_status status;

    if (!sim) {
        return NULL;
    }
    address = PyLong_AsUnsignedLongLong(arg);
    if (address == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    status = gm_sim_read_managed(sim, (uintptr_t)address, &known);
    if (status == GM_ERR_INVALID_VALUE) {
        PyErr_SetString(PyExc_ValueError, "the address is not in managed memory");
        return NULL;
    }
    if (status != GM_OK) {
        return gmpy_raise(st, status, "looking at managed memory");
    }
    return Py_BuildValue("(iOiI)", known.location,
                         known.read_mostly ? Py_True : Py_False, known.preferred,
                         known.accessed_by);
}

PyMethodDef gmpy_testing_drive_methods[] = {
    {"_sim_hold", testing_hold, METH_O, hold_doc},
    {"_sim_release", testing_release, METH_O, release_doc},
    {"_sim_set_delay", testing_set_delay, METH_VARARGS, delay_doc},
    {"_sim_set_fault", testing_set_fault, METH_VARARGS, set_fault_doc},
    {"_sim_reset", testing_reset, METH_O, reset_doc},
    {"_sim_context_created", testing_context_created, METH_O, context_doc},
    {"_sim_set_others", testing_set_others, METH_VARARGS, set_others_doc},
    {"_sim_recycle_handles", testing_recycle, METH_O, recycle_doc},
    {"_sim_set_last_error", testing_set_last_error, METH_O, set_last_error_doc},
    {"_sim_managed", testing_managed, METH_O, managed_doc},
    {0},
};

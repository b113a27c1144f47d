/* SPDX-License-Identifier: MIT
 *
 * What gpumem.testing is made of, where it looks into the simulated device: its ledger
 * and call log, injected failures, what it can do. What happens to the device is in
 * testing_drive.c. Each function raises RuntimeError where another backend is in use.
 */
#include "testing.h"

#include "backends/backends.h"

const gm_backend *
gmpy_require_sim(gmpy_state *st)
{
    if (!gmpy_backend(st)) {
        return NULL;
    }
    if (!st->sim) {
        PyErr_SetString(PyExc_RuntimeError, "only the simulated device offers this");
        return NULL;
    }
    return st->sim;
}

PyDoc_STRVAR(ledger_doc,
             "_sim_ledger()\n"
             "--\n"
             "\n"
             "Returns what was taken from the simulated device and not given back.");

static PyObject *
testing_ledger(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *sim = gmpy_require_sim(gmpy_state_of_module(module));
    gm_sim_ledger ledger;

    if (!sim) {
        return NULL;
    }
    gm_sim_read_ledger(sim, &ledger);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}",
        "allocations", (Py_ssize_t)ledger.allocations, "bytes",
        (Py_ssize_t)ledger.bytes, "streams", (Py_ssize_t)ledger.streams, "events",
        (Py_ssize_t)ledger.events, "graphs", (Py_ssize_t)ledger.graphs, "captures",
        (Py_ssize_t)ledger.captures, "imports", (Py_ssize_t)ledger.imports,
        "reservations", (Py_ssize_t)ledger.reservations, "reserved_bytes",
        (Py_ssize_t)ledger.reserved_bytes, "handles", (Py_ssize_t)ledger.handles,
        "handle_bytes", (Py_ssize_t)ledger.handle_bytes, "mappings",
        (Py_ssize_t)ledger.mappings, "mapped_bytes", (Py_ssize_t)ledger.mapped_bytes,
        "pending", (Py_ssize_t)ledger.pending, "errors", (Py_ssize_t)ledger.errors,
        "faults", (Py_ssize_t)ledger.faults, "peak_bytes",
        (Py_ssize_t)ledger.peak_bytes);
}

PyDoc_STRVAR(log_start_doc,
             "_sim_log_start()\n"
             "--\n"
             "\n"
             "Starts recording the calls that reach the simulated device. Returns by\n"
             "what number the recording is ended.");

static PyObject *
testing_log_start(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *sim = gmpy_require_sim(gmpy_state_of_module(module));

    if (!sim) {
        return NULL;
    }
    return PyLong_FromSize_t(gm_sim_log_start(sim));
}

/* What the runtime would have answered. */
static int
code_of(gm_status status)
{
    switch (status) {
    case GM_OK:
        return 0;
    case GM_NOT_READY:
        return 600;
    case GM_ERR_OUT_OF_MEMORY:
        return 2;
    case GM_ERR_INVALID_DEVICE:
        return 101;
    case GM_ERR_UNSUPPORTED:
        return 801;
    default:
        return gm_status_is_device(status) ? gm_status_device_code(status) : 999;
    }
}

PyDoc_STRVAR(
    log_stop_doc,
    "_sim_log_stop(start, /)\n"
    "--\n"
    "\n"
    "Ends a recording by its number. Returns its calls, oldest first, as tuples\n"
    "of name, device, address or handle, size, and the runtime's error number.");

static PyObject *
testing_log_stop(PyObject *module, PyObject *arg)
{
    const gm_backend *sim = gmpy_require_sim(gmpy_state_of_module(module));
    PyObject *list = NULL;
    gm_sim_call call;
    size_t start;

    if (!sim || gmpy_as_size(arg, "start", &start) < 0) {
        return NULL;
    }
    list = PyList_New(0);
    for (size_t i = start; list && gm_sim_log_get(sim, i, &call); i++) {
        PyObject *entry = Py_BuildValue("(siKni)", call.name, call.device,
                                        (unsigned long long)call.ptr,
                                        (Py_ssize_t)call.size, code_of(call.status));

        if (!entry || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    if (list) {
        gm_sim_log_stop(sim);
    }
    return list;
}

PyDoc_STRVAR(set_peer_doc,
             "_sim_set_peer(device, peer, can, /)\n"
             "--\n"
             "\n"
             "Says whether a simulated device can reach another's memory directly.");

static PyObject *
testing_set_peer(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    PyObject *device_arg;
    PyObject *peer_arg;
    gm_status status;
    int device;
    int peer;
    int can;

    if (!sim ||
        !PyArg_ParseTuple(args, "OOp:_sim_set_peer", &device_arg, &peer_arg, &can) ||
        gmpy_as_device(st, device_arg, &device) < 0 ||
        gmpy_as_device(st, peer_arg, &peer) < 0) {
        return NULL;
    }
    status = gm_sim_set_peer(sim, device, peer, can);
    if (status == GM_ERR_INVALID_DEVICE) {
        return PyErr_Format(PyExc_ValueError, "device %d is no peer of itself", device);
    }
    if (status != GM_OK) {
        return gmpy_raise(st, status, "saying who reaches whom");
    }
    Py_RETURN_NONE;
}

/* ---- injected failures ---- */

PyDoc_STRVAR(
    fail_doc,
    "_fail(name, nth, count, code, /)\n"
    "--\n"
    "\n"
    "Makes calls of the simulated device fail: the nth from now of that name (None\n"
    "for any) and count - 1 after it (0 for all), with the runtime's error code;\n"
    "2 is out of memory.");

static PyObject *
testing_fail(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    unsigned long long nth;
    unsigned long long count;
    const char *name;
    gm_status status;
    int code;

    if (!PyArg_ParseTuple(args, "zKKi:_fail", &name, &nth, &count, &code) ||
        !gmpy_require_sim(st)) {
        return NULL;
    }
    status = code == 2 ? GM_ERR_OUT_OF_MEMORY : GM_DEVICE_ERROR(code);
    status = gm_fault_plan(st->fault, name, nth, count, status);
    if (status == GM_ERR_FORKED) {
        return gmpy_raise(st, status, "injecting failures");
    }
    if (status != GM_OK) {
        return PyErr_Format(
            PyExc_ValueError,
            "the device has no call named '%s'; call_log() shows the names",
            name ? name : "");
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fail_stop_doc,
             "_fail_stop()\n"
             "--\n"
             "\n"
             "Ends the injected failures. Returns (calls seen, calls failed).");

static PyObject *
testing_fail_stop(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);
    uint64_t seen;
    uint64_t injected;

    if (!gmpy_require_sim(st)) {
        return NULL;
    }
    gm_fault_counts(st->fault, &seen, &injected);
    gm_fault_clear(st->fault);
    return Py_BuildValue("(KK)", (unsigned long long)seen,
                         (unsigned long long)injected);
}

/* ---- what a device can do ---- */

PyDoc_STRVAR(
    set_support_doc,
    "_sim_set_support(device, support, /)\n"
    "--\n"
    "\n"
    "Says what a simulated device can do, as a sum of bits: memory pools 1,\n"
    "managed memory 2, concurrent use of it 4, plain host memory 8, memory by\n"
    "page 16. Returns what it could do before.");

static PyObject *
testing_set_support(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    PyObject *device_arg;
    unsigned before = 0;
    unsigned support;
    gm_status status;
    int device;

    if (!sim || !PyArg_ParseTuple(args, "OI:_sim_set_support", &device_arg, &support) ||
        gmpy_as_device(st, device_arg, &device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_support(sim, device, &before);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "changing what a device can do");
    }
    gm_sim_set_support(sim, device, support);
    return PyLong_FromUnsignedLong(before);
}

PyDoc_STRVAR(make_pool_doc,
             "_sim_make_pool(device, /)\n"
             "--\n"
             "\n"
             "Makes one more pool of stream-ordered memory. Returns its handle.");

static PyObject *
testing_make_pool(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *sim = gmpy_require_sim(st);
    gm_mem_pool pool = 0;
    gm_status status;
    int device;

    if (!sim || gmpy_as_device(st, arg, &device) < 0) {
        return NULL;
    }
    status = gm_sim_make_pool(sim, device, &pool);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "making a pool of stream-ordered memory");
    }
    return PyLong_FromUnsignedLongLong(pool);
}

PyMethodDef gmpy_testing_sim_methods[] = {
    {"_sim_ledger", testing_ledger, METH_NOARGS, ledger_doc},
    {"_sim_log_start", testing_log_start, METH_NOARGS, log_start_doc},
    {"_sim_log_stop", testing_log_stop, METH_O, log_stop_doc},
    {"_sim_set_peer", testing_set_peer, METH_VARARGS, set_peer_doc},
    {"_fail", testing_fail, METH_VARARGS, fail_doc},
    {"_fail_stop", testing_fail_stop, METH_NOARGS, fail_stop_doc},
    {"_sim_set_support", testing_set_support, METH_VARARGS, set_support_doc},
    {"_sim_make_pool", testing_make_pool, METH_O, make_pool_doc},
    {0},
};

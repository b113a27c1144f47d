/* SPDX-License-Identifier: MIT
 *
 * What gpumem.testing is made of: where a block lies, whether a pool's invariants hold,
 * and the simulated device's ledger, call log and injected failures.
 */
#include "module.h"

#include "backends/backends.h"

/* ---- pools ---- */

PyDoc_STRVAR(
    placement_doc,
    "_placement(pointer, /)\n"
    "--\n"
    "\n"
    "Returns (segment serial, offset) of the block a MemoryPointer points into.");

static PyObject *
testing_placement(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gmpy_pooled_memory *mem;
    uint64_t serial;
    size_t offset;
    gm_status status;

    if (!gmpy_is_pointer(st, arg) || !((gmpy_pointer *)arg)->mem ||
        !Py_IS_TYPE(((gmpy_pointer *)arg)->mem, gmpy_type(st->PooledMemoryType))) {
        PyErr_SetString(PyExc_TypeError, "expected a MemoryPointer into pooled memory");
        return NULL;
    }
    mem = (const gmpy_pooled_memory *)((gmpy_pointer *)arg)->mem;
    status = mem->block ? gm_pool_placement(mem->pool, mem->block, mem->base.generation,
                                            &serial, &offset)
                        : GM_ERR_NOT_OWNED;
    if (status != GM_OK) {
        PyErr_SetString(PyExc_ValueError, "the memory was given back");
        return NULL;
    }
    return Py_BuildValue("(KK)", (unsigned long long)serial,
                         (unsigned long long)offset);
}

PyDoc_STRVAR(
    check_pool_doc,
    "_check_pool(pool, /)\n"
    "--\n"
    "\n"
    "Walks a pool's structures. Returns None, or the invariant that is broken.");

static PyObject *
testing_check_pool(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    gmpy_any_pool *self = (gmpy_any_pool *)arg;
    const char *broken = NULL;
    gm_pool *pool;
    int device;
    int found;

    if (!PyObject_TypeCheck(arg, gmpy_type(st->BasePoolType))) {
        PyErr_SetString(PyExc_TypeError, "expected a memory pool");
        return NULL;
    }
    found = self->find(self, false, &pool, &device);
    if (found < 0) {
        return NULL;
    }
    if (found) {
        Py_BEGIN_ALLOW_THREADS
        broken = gm_pool_check(pool);
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue("z", broken);
}

/* ---- the simulated device ---- */

/* The simulated device; NULL with RuntimeError where another backend is in use. */
static const gm_backend *
require_sim(gmpy_state *st)
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
    const gm_backend *sim = require_sim(gmpy_state_of_module(module));
    gm_sim_ledger ledger;

    if (!sim) {
        return NULL;
    }
    gm_sim_read_ledger(sim, &ledger);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "allocations", (Py_ssize_t)ledger.allocations,
        "bytes", (Py_ssize_t)ledger.bytes, "streams", (Py_ssize_t)ledger.streams,
        "events", (Py_ssize_t)ledger.events, "pending", (Py_ssize_t)ledger.pending,
        "errors", (Py_ssize_t)ledger.errors, "peak_bytes",
        (Py_ssize_t)ledger.peak_bytes);
}

PyDoc_STRVAR(log_start_doc,
             "_sim_log_start()\n"
             "--\n"
             "\n"
             "Starts recording the calls that reach the simulated device.");

static PyObject *
testing_log_start(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *sim = require_sim(gmpy_state_of_module(module));

    if (!sim) {
        return NULL;
    }
    gm_sim_log_start(sim);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(log_stop_doc,
             "_sim_log_stop()\n"
             "--\n"
             "\n"
             "Ends the recording. Returns the calls, oldest first, as tuples of name,\n"
             "device, address or handle, size and status.");

static PyObject *
testing_log_stop(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *sim = require_sim(gmpy_state_of_module(module));
    PyObject *list = sim ? PyList_New(0) : NULL;
    gm_sim_call call;

    for (size_t i = 0; list && gm_sim_log_get(sim, i, &call); i++) {
        PyObject *entry = Py_BuildValue("(siKni)", call.name, call.device,
                                        (unsigned long long)call.ptr,
                                        (Py_ssize_t)call.size, call.status);

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
    const gm_backend *sim = require_sim(gmpy_state_of_module(module));
    int device;
    int peer;
    int can;

    if (!sim || !PyArg_ParseTuple(args, "iip:_sim_set_peer", &device, &peer, &can)) {
        return NULL;
    }
    gm_sim_set_peer(sim, device, peer, can);
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
        !require_sim(st)) {
        return NULL;
    }
    status = code == 2 ? GM_ERR_OUT_OF_MEMORY : GM_DEVICE_ERROR(code);
    status = gm_fault_plan(st->fault, name, nth, count, status);
    if (status == GM_ERR_FORKED) {
        return gmpy_raise(st, status, "injecting failures");
    }
    if (status != GM_OK) {
        return PyErr_Format(PyExc_ValueError, "the device has no call named '%s'",
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

    if (!require_sim(st)) {
        return NULL;
    }
    gm_fault_counts(st->fault, &seen, &injected);
    gm_fault_clear(st->fault);
    return Py_BuildValue("(KK)", (unsigned long long)seen,
                         (unsigned long long)injected);
}

PyDoc_STRVAR(last_error_doc,
             "_last_error()\n"
             "--\n"
             "\n"
             "Returns the code in the calling thread's last-error slot, 0 when clean.");

static PyObject *
testing_last_error(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *backend = gmpy_backend(gmpy_state_of_module(module));

    return backend ? PyLong_FromLong(gm_backend_last_error(backend)) : NULL;
}

PyMethodDef gmpy_testing_methods[] = {
    {"_placement", testing_placement, METH_O, placement_doc},
    {"_check_pool", testing_check_pool, METH_O, check_pool_doc},
    {"_sim_ledger", testing_ledger, METH_NOARGS, ledger_doc},
    {"_sim_log_start", testing_log_start, METH_NOARGS, log_start_doc},
    {"_sim_log_stop", testing_log_stop, METH_NOARGS, log_stop_doc},
    {"_sim_set_peer", testing_set_peer, METH_VARARGS, set_peer_doc},
    {"_fail", testing_fail, METH_VARARGS, fail_doc},
    {"_fail_stop", testing_fail_stop, METH_NOARGS, fail_stop_doc},
    {"_last_error", testing_last_error, METH_NOARGS, last_error_doc},
    {0},
};

/* SPDX-License-Identifier: MIT
 *
 * The few spots where the supported CPython versions differ.
 */
#ifndef GMPY_COMPAT_H
#define GMPY_COMPAT_H

#include <Python.h>

/* The pending exception, taken from or given to the thread; one of its attributes (a
 * new reference or NULL), whether there is one, and the object itself (borrowed). */
#if PY_VERSION_HEX >= 0x030C0000
#define GMPY_TAKE_ERROR(error) PyObject *error = PyErr_GetRaisedException()
#define GMPY_GIVE_ERROR(error) PyErr_SetRaisedException(error)
#define GMPY_HAS_ERROR(error) ((error) != NULL)
#define GMPY_ERROR_VALUE(error) (error)
#define GMPY_ERROR_ATTRIBUTE(error, name) PyObject_GetAttrString(error, name)
#else
typedef struct gmpy_error {
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
} gmpy_error;
#define GMPY_TAKE_ERROR(error)                                                         \
    gmpy_error error;                                                                  \
    PyErr_Fetch(&error.type, &error.value, &error.traceback)
#define GMPY_ERROR_ATTRIBUTE(error, name)                                              \
    (PyErr_NormalizeException(&error.type, &error.value, &error.traceback),            \
     PyObject_GetAttrString(error.value, name))
#define GMPY_GIVE_ERROR(error) PyErr_Restore(error.type, error.value, error.traceback)
#define GMPY_HAS_ERROR(error) ((error).type != NULL)
#define GMPY_ERROR_VALUE(error)                                                        \
    (PyErr_NormalizeException(&(error).type, &(error).value, &(error).traceback),      \
     (error).value)
#endif

/* dict[name] = value, a reference that is taken over; NULL: there was an error. 0 or
 * -1.
 *
 * PyDict_SetItemString interns the name, and the table of such names is one for all
 * threads: where there is no interpreter lock they meet at it, and CPython 3.13 may
 * then never end a process whose daemon threads are at work (the table's lock is handed
 * to one of them when none of them runs any more). */
static inline int
gmpy_dict_put(PyObject *dict, const char *name, PyObject *value)
{
    PyObject *key = value ? PyUnicode_FromString(name) : NULL;
    int result = key ? PyDict_SetItem(dict, key, value) : -1;

    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

/* The pending exception as an object with its traceback, taken from the thread: new
 * reference, NULL for none. */
static inline PyObject *
gmpy_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type;
    PyObject *value;
    PyObject *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    if (!type) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) {
        (void)PyException_SetTraceback(value,
                                       traceback); // it is one, so it is accepted
    }
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Whether the calling thread is attached to the interpreter. Not PyGILState_Check,
 * which says yes to everybody once there was a subinterpreter. */
#if PY_VERSION_HEX >= 0x030D0000
#define GMPY_IS_ATTACHED() (PyThreadState_GetUnchecked() != NULL)
#else
static inline int
gmpy_is_attached(void)
{
    PyThreadState *own = PyGILState_GetThisThreadState();

    return own && own == _PyThreadState_UncheckedGet();
}
#define GMPY_IS_ATTACHED() gmpy_is_attached()
#endif

/* A lock for what the interpreter lock guards elsewhere. Held for some instructions
 * that run no Python code and call no device. */
#ifdef Py_GIL_DISABLED
typedef PyMutex gmpy_mutex;
#define GMPY_LOCK(mutex) PyMutex_Lock(mutex)
#define GMPY_UNLOCK(mutex) PyMutex_Unlock(mutex)
#else
typedef struct gmpy_mutex {
    char unused;
} gmpy_mutex;
#define GMPY_LOCK(mutex) ((void)(mutex))
#define GMPY_UNLOCK(mutex) ((void)(mutex))
#endif

/* What one thread sets, once, and others read without a lock. */
#ifdef Py_GIL_DISABLED
#define GMPY_PUBLISH(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
#define GMPY_SEE(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#else
#define GMPY_PUBLISH(place, value) ((void)(*(place) = (value)))
#define GMPY_SEE(place) (*(place))
#endif

/* Per-object locks of builds without the interpreter lock; nothing elsewhere. */
#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(op) {
#define Py_END_CRITICAL_SECTION() }
#endif

#endif

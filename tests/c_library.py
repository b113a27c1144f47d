# SPDX-License-Identifier: MIT
"""The C interface as a C program sees it, through ctypes: what gpumem.h declares.

Library() calls the exported symbols without the interpreter's lock, as a program does;
Library(attached=True) with it, as an extension may.
"""

import ctypes
import shutil
import subprocess
import sysconfig
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import pytest

import gpumem
from gpumem import _core

OK, OUT_OF_MEMORY, HOST_MEMORY, INVALID_VALUE, INVALID_DEVICE = range(5)
NOT_OWNED, CAPTURING, STREAM_GONE, FORKED, EXITING = range(5, 10)
NOT_LOADED, PYTHON, DEVICE, UNSUPPORTED, INTERNAL = range(10, 15)
NO_PYTHON = 1


class Options(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("client", c_char_p), ("flags", c_uint)]


class Stats(ctypes.Structure):
    _fields_ = [
        (name, c_size_t)
        for name in (
            *("struct_size", "requested_bytes", "used_bytes", "free_bytes"),
            *("pending_bytes", "captured_bytes", "total_bytes", "limit_bytes"),
            *("peak_used_bytes", "peak_total_bytes", "live_blocks"),
        )
    ]


class Info(ctypes.Structure):
    _fields_ = [
        *(("struct_size", c_size_t), ("size", c_size_t), ("requested", c_size_t)),
        *(("device", c_int), ("base", c_void_p), ("base_size", c_size_t)),
    ]


# By name, in the order of the table: what it returns, and its arguments.
FUNCTIONS = {
    "pool_default": (c_int, POINTER(Options), POINTER(c_void_p)),
    "pool_create": (c_int, POINTER(Options), POINTER(c_void_p)),
    "pool_borrow": (c_int, ctypes.py_object, POINTER(Options), POINTER(c_void_p)),
    "pool_release": (None, c_void_p),
    "malloc": (
        *(c_int, c_void_p, c_size_t, c_int, c_void_p, c_uint64, POINTER(c_void_p)),
    ),
    "free": (c_int, c_void_p),
    "record_stream": (c_int, c_void_p, c_void_p),
    "pointer_info": (c_int, c_void_p, POINTER(Info)),
    "pool_stats": (c_int, c_void_p, c_int, POINTER(Stats)),
    "pool_set_limit": (c_int, c_void_p, c_int, c_size_t),
    "pool_trim": (c_int, c_void_p, c_int),
    "last_error": (c_char_p,),
    "status_text": (c_char_p, c_int),
}


def table():
    """Address of the table that extensions import."""
    get = ctypes.pythonapi["PyCapsule_GetPointer"]
    get.restype, get.argtypes = c_void_p, (ctypes.py_object, c_char_p)
    return get(_core._C_API, b"gpumem._core._C_API")


def build_probe(folder):
    """probe.c as a library whose functions are called with the interpreter's lock, but
    for in_a_thread_detached. Skips where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    library = folder / "probe.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    includes = [f"-I{gpumem.get_include()}"]
    includes += ["-isystem", sysconfig.get_path("include")]
    source = Path(__file__).parent / "c_api" / "probe.c"
    subprocess.run(
        ["gcc", *flags, *includes, str(source), "-o", str(library)],
        check=True,
        timeout=120,
    )
    probe = ctypes.PyDLL(str(library))
    probe.in_a_thread_detached = ctypes.CDLL(str(library)).in_a_thread
    for name in ("in_a_thread", "in_a_thread_detached"):
        getattr(probe, name).argtypes = (c_void_p, c_void_p, c_size_t)
    probe.while_an_error_is_pending.restype = ctypes.py_object
    probe.while_an_error_is_pending.argtypes = (c_void_p, c_void_p, c_size_t)
    return probe


class Failed(Exception):
    """A call failed: args are the status and the last error's text."""


class Library:
    def __init__(self, attached=False):
        loader = ctypes.PyDLL if attached else ctypes.CDLL
        self.symbols = loader(_core.__file__)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(self.symbols, f"gpumem_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        # A PyObject * may be touched with the interpreter's lock alone.
        self.pool_borrow = ctypes.PyDLL(_core.__file__).gpumem_pool_borrow
        self.pool_borrow.restype, *self.pool_borrow.argtypes = FUNCTIONS["pool_borrow"]

    def check(self, status):
        if status != OK:
            raise Failed(status, self.last_error().decode())

    def hold(self, pool, client=None, flags=0):
        """A holder of a Python pool; None is the default one."""
        options = Options(ctypes.sizeof(Options), client, flags)
        out = c_void_p()
        if pool is None:
            self.check(self.pool_default(byref(options), byref(out)))
        else:
            self.check(self.pool_borrow(pool, byref(options), byref(out)))
        return out

    def take(self, holder, size, device=-1, stream=None, stream_id=0):
        out = c_void_p()
        self.check(self.malloc(holder, size, device, stream, stream_id, byref(out)))
        return out.value

    def give(self, address):
        self.check(self.free(address))

    def stats(self, holder, device=-1):
        stats = Stats(ctypes.sizeof(Stats))
        self.check(self.pool_stats(holder, device, byref(stats)))
        return stats

    def info(self, address):
        info = Info(ctypes.sizeof(Info))
        self.check(self.pointer_info(address, byref(info)))
        return info

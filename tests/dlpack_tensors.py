# SPDX-License-Identifier: MIT
"""DLPack as its specification lays it down, by ctypes: a consumer and a producer that
have nothing in common with the code under test.
"""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    pythonapi,
)

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT = 0, 1, 2
READ_ONLY, IS_COPIED, SUBBYTE_PADDED = 1, 2, 4
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class Type(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("type", Type),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Managed(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


STRUCTS = {LEGACY: Managed, VERSIONED: Versioned}

get_pointer = pythonapi["PyCapsule_GetPointer"]
get_pointer.restype, get_pointer.argtypes = (
    c_void_p,
    [ctypes.py_object, ctypes.c_char_p],
)
get_name = pythonapi["PyCapsule_GetName"]
get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
set_name = pythonapi["PyCapsule_SetName"]
set_name.restype, set_name.argtypes = ctypes.c_int, [ctypes.py_object, c_void_p]
new_capsule = pythonapi["PyCapsule_New"]
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [c_void_p, c_void_p, c_void_p]

# Names that capsules keep the address of.
NAMES = {
    name: ctypes.create_string_buffer(name)
    for name in (LEGACY, VERSIONED, b"used_" + LEGACY, b"used_" + VERSIONED)
}


class Taken:
    """What was in a capsule, which is used up."""

    def __init__(self, capsule):
        self.name = get_name(capsule)
        address = get_pointer(capsule, self.name)
        self.managed = STRUCTS[self.name].from_address(address)
        self.address = address
        assert set_name(capsule, ctypes.addressof(NAMES[b"used_" + self.name])) == 0

    @property
    def tensor(self):
        return self.managed.tensor

    @property
    def start(self):
        return (self.tensor.data or 0) + self.tensor.byte_offset

    def bytes(self, size=None):
        length = self.tensor.shape[0] if size is None else size
        return ctypes.string_at(self.start, length)

    def delete(self, without_interpreter=False):
        """Calls the deleter, once. ctypes lets go of the interpreter for the call, or
        keeps it."""
        kind = ctypes.CFUNCTYPE if without_interpreter else ctypes.PYFUNCTYPE
        kind(None, c_void_p)(self.managed.deleter)(self.address)


class Exporter:
    """An array library's object: `size` bytes at `data`, of one axis unless told
    otherwise. Records what it was asked and when its tensors ended."""

    def __init__(
        self,
        data,
        shape,
        *,
        strides=None,
        device=(CPU, 0),
        type=(UINT, 8, 1),
        offset=0,
        flags=0,
        version=(1, 0),
        name=VERSIONED,
        deleter=True,
        knows_versions=True,
    ):
        self.asked = []
        self.deleted = 0
        self.device = device
        self.name = name
        self.knows_versions = knows_versions
        self._shape = (c_int64 * len(shape))(*shape)
        self._strides = strides and (c_int64 * len(strides))(*strides)
        self._deleter = DELETER(self._delete)
        self.managed = STRUCTS[name]()
        if name == VERSIONED:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        if deleter:
            self.managed.deleter = ctypes.cast(self._deleter, c_void_p).value
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = data, offset
        tensor.device, tensor.type = Device(*device), Type(*type)
        tensor.ndim, tensor.shape = len(shape), self._shape
        if strides is not None:
            tensor.strides = self._strides

    def _delete(self, address):
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        if not self.knows_versions and "max_version" in asked:
            raise TypeError("max_version")
        self.asked.append(asked)
        name = ctypes.addressof(NAMES[self.name])
        return new_capsule(ctypes.addressof(self.managed), name, None)

# SPDX-License-Identifier: MIT
"""NumPy arrays in memory of a pool, on the simulated device: no copy, and no GPU.

Prints the bytes in use before, while there are arrays, and after.
"""

import os

os.environ.setdefault("GPUMEM_BACKEND", "sim")

import numpy  # noqa: E402

import gpumem  # noqa: E402

pool = gpumem.MemoryPool()


def array(shape, dtype):
    """An uninitialised array that holds its memory and gives it back when it dies."""
    size = numpy.dtype(dtype).itemsize * int(numpy.prod(shape))
    return numpy.from_dlpack(pool.malloc(size))[:size].view(dtype).reshape(shape)


print("before:", pool.used_bytes())
a = array((3, 4), "float64")
a[:] = numpy.arange(12).reshape(3, 4)
b = array((1000,), "int32")
print("arrays:", pool.used_bytes(), "sum", a.sum())
del a, b
print("after:", pool.used_bytes())

# SPDX-License-Identifier: MIT
"""Numba's device arrays in a gpumem pool: one line, before Numba uses the device.

Needs Numba with numba-cuda and a GPU. Prints the bytes in use before, while there are
arrays, and after.
"""

import gc

import numba.cuda
import numpy

import gpumem
import gpumem.interop.numba

pool = gpumem.MemoryPool()
gpumem.interop.numba.enable(pool)  # the line that matters

print("before:", pool.used_bytes())
array = numba.cuda.to_device(numpy.arange(1 << 20))
print("arrays:", pool.used_bytes(), "sum", array.copy_to_host().sum())
del array
gc.collect()
print("after:", pool.used_bytes())

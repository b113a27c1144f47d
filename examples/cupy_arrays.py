# SPDX-License-Identifier: MIT
"""CuPy's arrays in a gpumem pool: one line, and the program stays as it is.

Needs CuPy and a GPU. Prints the bytes in use before, while there are arrays, and after.
"""

import cupy

import gpumem
import gpumem.interop.cupy

pool = gpumem.MemoryPool()
gpumem.interop.cupy.enable(pool)  # the line that matters


def spectrum(size):
    signal = cupy.sin(cupy.arange(size) * 0.1)
    return cupy.abs(cupy.fft.rfft(signal))


print("before:", pool.used_bytes())
found = spectrum(1 << 20)
print("arrays:", gpumem.stats_by_client()["cupy"]["used_bytes"], int(found.argmax()))
del found
cupy.fft.config.get_plan_cache().clear()  # plans have work areas
print("after:", pool.used_bytes())

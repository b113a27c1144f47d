# SPDX-License-Identifier: MIT
"""RMM's buffers, and so those of cuDF and its siblings, in a gpumem pool: one line.

Needs RMM and a GPU. Prints the bytes in use before, while there is a buffer, and after.
"""

import rmm

import gpumem
import gpumem.interop.rmm

pool = gpumem.MemoryPool()
gpumem.interop.rmm.enable(pool)  # the line that matters

print("before:", pool.used_bytes())
buffer = rmm.DeviceBuffer.to_device(bytes(1 << 20))
print("buffer:", pool.used_bytes(), "sum", sum(buffer.tobytes()))
del buffer
print("after:", pool.used_bytes())

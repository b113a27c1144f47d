# SPDX-License-Identifier: MIT
"""cuda.core's buffers in a gpumem pool: one line.

Needs cuda.core and a GPU. Prints the bytes in use before, while there is a buffer, and
after.
"""

from cuda.core import Device

import gpumem
import gpumem.interop.cuda_core

device = Device()
device.set_current()
pool = gpumem.MemoryPool()
gpumem.interop.cuda_core.enable(pool)  # the line that matters

print("before:", pool.used_bytes())
stream = device.create_stream()
buffer = device.allocate(1 << 20, stream=stream)
buffer.fill(0, stream=stream)
print("buffer:", pool.used_bytes())
buffer.close()
stream.sync()
print("after:", pool.used_bytes())

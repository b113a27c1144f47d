# SPDX-License-Identifier: MIT
"""PyTorch's tensors in a gpumem pool: one line, before torch uses the GPU.

Needs PyTorch and a GPU. Prints the bytes in use before, while there are tensors, and
after.
"""

import torch

import gpumem
import gpumem.interop.torch

pool = gpumem.MemoryPool()
gpumem.interop.torch.enable(pool)  # the line that matters

print("before:", pool.used_bytes())
tensor = torch.ones(1 << 20, device="cuda")
print("tensors:", pool.used_bytes(), "sum", int(tensor.sum()))
del tensor
print("after:", pool.used_bytes())

# SPDX-License-Identifier: MIT
"""Adaptors: other libraries' memory from gpumem's pools.

Each module here is named after its library and imports that when it is used, not
before. What a library holds is on an account of its own: gpumem.stats_by_client()
tells them apart.

    import gpumem.interop.cupy
    gpumem.interop.cupy.enable()
"""

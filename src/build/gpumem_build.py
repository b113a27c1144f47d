# SPDX-License-Identifier: MIT
"""The build backend that pip calls: setuptools', plus the CUDA wheels where needed.

`pip install .` must give a build with CUDA on a machine that has no CUDA toolkit. So
where the search of cuda_toolkit.py comes back empty, the two wheels that carry the
headers and the static runtime are asked for as build requirements: pip puts them in
the isolated build environment, the search then finds them there, and they are gone
after the build. Nothing is asked for when a toolkit is there or GPUMEM_CUDA is 0.
"""

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that need no change

import cuda_toolkit


def get_requires_for_build_wheel(config_settings=None):
    base = build_meta.get_requires_for_build_wheel(config_settings)
    return base + cuda_toolkit.requirements()


def get_requires_for_build_editable(config_settings=None):
    base = build_meta.get_requires_for_build_editable(config_settings)
    return base + cuda_toolkit.requirements()

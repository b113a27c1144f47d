# SPDX-License-Identifier: MIT
"""Speed and memory, beside the allocators one would otherwise use.

`python -m benchmarks` from the root of the repository; README.md here says what each
figure means. Nothing here is installed with the package.
"""

# SPDX-License-Identifier: MIT
"""The version, for the package and its metadata alike."""

__version__ = "0.1.0"

# SPDX-License-Identifier: MIT
"""`python -m gpumem`: the command line, which is in _cli.py."""

import sys

from gpumem._cli import main

if __name__ == "__main__":
    sys.exit(main())

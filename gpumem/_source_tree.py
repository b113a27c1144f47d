# SPDX-License-Identifier: MIT
"""What `import gpumem` does in a source tree whose extension was not built there.

`python -m gpumem`, `python -m pytest` and `python -c` put the current folder first on
sys.path. In a checkout that folder holds this package without its extension, and hides
the one that `pip install .` has just put in site-packages. Python would stop at the
first `import`; instead the package hands over: its search path becomes that of the
installed package, so that the extension and every submodule, `__main__` included, come
from there and none from here. Mixing the two would run new Python over an old
extension.

Only `gpumem/__init__.py` itself has been read from the tree by then; it holds nothing
but re-exports. A tree with the extension in place (`setup.py build_ext --inplace`,
`pip install -e .`) never gets here, nor does an installed package.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def use_installed(path: list[str]) -> None:
    """Makes `path`, the package's __path__, that of the gpumem further on in sys.path.

    Raises ImportError, with what to do about it, when there is none. Leaves `path` as
    it is where the extension is in place but failed to import: then the next try says
    why.
    """
    if PathFinder.find_spec("gpumem._core", path) is not None:
        return
    here = Path(path[0]).resolve().parent
    further = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = PathFinder.find_spec("gpumem", further)
    found = list(spec.submodule_search_locations or []) if spec else []
    if PathFinder.find_spec("gpumem._core", found) is None:
        raise ImportError(
            f"gpumem in {here} has no extension for this Python"
            f" ({sys.implementation.cache_tag}), and none is installed. Either"
            " `pip install .`, or build it in place:"
            " `python3 setup.py build_ext --inplace`."
        ) from None
    path[:] = found

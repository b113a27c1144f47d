# SPDX-License-Identifier: MIT
"""client: on whose account memory is, for one thread and one stretch of code."""

from __future__ import annotations

from gpumem import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    _Params = ParamSpec("_Params")
    _Result = TypeVar("_Result")


class client:  # noqa: N801 - used like a function
    """Has memory that the calling thread asks for inside a with statement counted as
    that client's, as stats_by_client() tells.

    As a decorator, inside each call of the function. Nests, and may be entered again
    and by several threads; other threads, also those started inside, keep theirs.
    Memory stays on the account it was asked for on, wherever it is given back. Where
    scopes are left out of order, as generators do, the newest that is still entered
    counts.

    Args:
        name (str): 1 to 255 bytes in UTF-8. There can be 65,536 names in a process.

    Raises:
        TypeError: name is no string.
        ValueError: name is empty, too long, or has a null character.
    """

    __slots__ = ("_name", "_number")

    def __init__(self, name: str) -> None:
        self._number = _core._client_number(name)
        self._name = name

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    def __enter__(self) -> None:
        _core._push_client(self, self._number)

    def __exit__(self, *exc_info: object) -> None:
        _core._pop_client(self)

    def __call__(
        self, function: Callable[_Params, _Result]
    ) -> Callable[_Params, _Result]:
        from functools import wraps  # here, because importing gpumem does without it

        @wraps(function)
        def inside(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return inside

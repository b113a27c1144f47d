# SPDX-License-Identifier: MIT
"""using_allocator and client: settings for one thread and one stretch of code."""

from __future__ import annotations

from gpumem import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from gpumem._core import _Allocator

    _Params = ParamSpec("_Params")
    _Result = TypeVar("_Result")


class _Scope:
    """A with statement that is a decorator too."""

    __slots__ = ()

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(self, *exc_info: object) -> None:
        raise NotImplementedError

    def __call__(
        self, function: Callable[_Params, _Result]
    ) -> Callable[_Params, _Result]:
        from functools import wraps  # here, because importing gpumem does without it

        @wraps(function)
        def inside(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return inside


class using_allocator(_Scope):  # noqa: N801 - used like a function
    """Makes `allocator` the calling thread's allocator inside a with statement.

    As a decorator, inside each call of the function. Nests, and may be entered again
    and by several threads; other threads, also those started inside, keep the allocator
    they have. set_allocator raises ValueError inside.

    Where scopes are left out of order, as generators do, the newest that is still
    entered counts.

    Args:
        allocator (callable): as for set_allocator; None is malloc, which uses no pool.
    """

    __slots__ = ("_allocator",)

    def __init__(self, allocator: _Allocator | None = None) -> None:
        if allocator is not None and not callable(allocator):
            raise TypeError(
                "allocator must be callable or None, not " + type(allocator).__name__
            )
        self._allocator: _Allocator = _core.malloc if allocator is None else allocator

    def __enter__(self) -> None:
        _core._push_allocator(self, self._allocator)

    def __exit__(self, *exc_info: object) -> None:
        _core._pop_allocator(self)


class client(_Scope):  # noqa: N801 - used like a function
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
        RuntimeError: there are as many names already.
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

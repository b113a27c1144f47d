# SPDX-License-Identifier: MIT
"""using_allocator: an allocator for one thread and one stretch of code."""

from __future__ import annotations

from gpumem import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from gpumem._core import _Allocator

    _Params = ParamSpec("_Params")
    _Result = TypeVar("_Result")


class using_allocator:  # noqa: N801 - used like a function
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

    def __call__(
        self, function: Callable[_Params, _Result]
    ) -> Callable[_Params, _Result]:
        from functools import wraps  # here, because importing gpumem does without it

        @wraps(function)
        def inside(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return inside

# SPDX-License-Identifier: MIT
"""using_allocator: an allocator for one thread and one stretch of code."""

from __future__ import annotations

from gpumem import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpumem._core import _Allocator


class using_allocator:  # noqa: N801 - used like a function
    """Makes `allocator` the calling thread's allocator inside a with statement.

    Nests; other threads, also those started inside, keep the allocator they have.
    set_allocator raises ValueError inside. Not to be entered by two threads at once.

    Args:
        allocator (callable): as for set_allocator; None is malloc, which uses no pool.
    """

    __slots__ = ("_allocator", "_before")

    def __init__(self, allocator: _Allocator | None = None) -> None:
        if allocator is not None and not callable(allocator):
            raise TypeError(
                "allocator must be callable or None, not " + type(allocator).__name__
            )
        self._allocator: _Allocator = _core.malloc if allocator is None else allocator
        self._before: list[_Allocator | None] = []

    def __enter__(self) -> None:
        self._before.append(_core._get_thread_local_allocator())
        _core._set_thread_local_allocator(self._allocator)

    def __exit__(self, *exc_info: object) -> None:
        _core._set_thread_local_allocator(self._before.pop())

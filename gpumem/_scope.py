# SPDX-License-Identifier: MIT
"""using_allocator: an allocator for one thread and one stretch of code."""

from gpumem import _core


class using_allocator:  # noqa: N801 - used like a function
    """Makes `allocator` the calling thread's allocator inside a with statement.

    Nests; other threads, also those started inside, keep the allocator they have.
    set_allocator raises ValueError inside. Not to be entered by two threads at once.

    Args:
        allocator (callable): as for set_allocator; None is malloc, which uses no pool.
    """

    __slots__ = ("_allocator", "_before")

    def __init__(self, allocator=None):
        if allocator is not None and not callable(allocator):
            raise TypeError(
                "allocator must be callable or None, not " + type(allocator).__name__
            )
        self._allocator = _core.malloc if allocator is None else allocator
        self._before = []

    def __enter__(self):
        self._before.append(_core._get_thread_local_allocator())
        _core._set_thread_local_allocator(self._allocator)

    def __exit__(self, *exc_info):
        _core._set_thread_local_allocator(self._before.pop())

# SPDX-License-Identifier: MIT
"""MemoryHook: the base of objects that are told of allocations and frees, and the two
functions that let one see the whole process."""

from __future__ import annotations

from gpumem import _core

TYPE_CHECKING = False  # typing itself would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any, Self


class MemoryHook:
    """Told of what the calling thread takes from pools, inside a with statement.

    add_process_hook makes one see every thread instead.

    Derive from it and override the callbacks of interest. They get keyword arguments
    alone; those that end in preprocess run before, those in postprocess after, also
    where it failed (mem_ptr and pmem_id are 0 then). Several hooks may be active; they
    are called in the order in which they were entered. What a callback raises reaches
    the caller of a malloc, which then has allocated nothing; on the way of a free it
    goes to sys.unraisablehook.

    Attributes:
        name (hashable): a thread can have one active hook of each name.
    """

    name: Hashable = "MemoryHook"

    def __enter__(self) -> Self:
        """Adds the hook to the calling thread's.

        Raises:
            KeyError: the thread has a hook of that name.
        """
        _core._add_hook(self.name, self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Removes the hook.

        Raises:
            KeyError: the thread has no hook of that name.
        """
        _core._remove_hook(self.name)

    def alloc_preprocess(self, **kwargs: Any) -> None:
        """Before a pool takes memory from the device, once an attempt.

        Keyword Args:
            device_id (int): number of the device.
            mem_size (int): bytes, rounded.
        """

    def alloc_postprocess(self, **kwargs: Any) -> None:
        """After a pool took memory from the device.

        Keyword Args:
            device_id (int): number of the device.
            mem_size (int): bytes, rounded.
            mem_ptr (int): the address, 0 after a failure.
        """

    def malloc_preprocess(self, **kwargs: Any) -> None:
        """Before memory is allocated from a pool.

        Keyword Args:
            device_id (int): number of the device.
            size (int): bytes asked for.
            mem_size (int): bytes, rounded.
        """

    def malloc_postprocess(self, **kwargs: Any) -> None:
        """After memory was allocated from a pool.

        Keyword Args:
            device_id (int): number of the device.
            size (int): bytes asked for.
            mem_size (int): bytes, rounded.
            mem_ptr (int): the address, 0 after a failure.
            pmem_id (int): id() of the memory object, 0 after a failure.
        """

    def free_preprocess(self, **kwargs: Any) -> None:
        """Before memory goes back to its pool.

        Keyword Args:
            device_id (int): number of the device.
            mem_size (int): bytes, rounded.
            mem_ptr (int): the address.
            pmem_id (int): id() of the memory object.
        """

    def free_postprocess(self, **kwargs: Any) -> None:
        """After memory went back to its pool.

        Keyword Args:
            device_id (int): number of the device.
            mem_size (int): bytes, rounded.
            mem_ptr (int): the address.
            pmem_id (int): id() of the memory object.
        """


def add_process_hook(hook: MemoryHook) -> None:
    """Has a memory hook told of what every thread allocates and frees, from now on.

    Threads that run already are included, and so are frees by the garbage collector,
    wherever it runs. Each callback is called by the thread that allocates or frees, so
    several may run at once: the hook has to be safe for that. pmem_id pairs a free with
    its malloc; it is used again once the memory object is gone, never before the free
    was told. Hooks of the process are called before those that the thread has entered,
    in the order in which they were added; one that is both is called once.

    It stays until remove_process_hook. What is left at the end of the process, or in a
    forked child, is not freed, so it is not told either.

    Args:
        hook (MemoryHook): the hook; the process can have one of each name.

    Raises:
        KeyError: the process has a hook of that name.
        TypeError: it is no MemoryHook.
    """
    if not isinstance(hook, MemoryHook):
        raise TypeError("hook must be a MemoryHook, not " + type(hook).__name__)
    _core._add_process_hook(hook.name, hook)


def remove_process_hook(hook: MemoryHook) -> None:
    """Ends add_process_hook: the hook is told of nothing that begins from now on.

    A callback that another thread is in may still be running. With the last hook gone
    no request pays for hooks any more.

    Args:
        hook (MemoryHook): the hook that was added.

    Raises:
        KeyError: the process does not have this hook.
        TypeError: it is no MemoryHook.
    """
    if not isinstance(hook, MemoryHook):
        raise TypeError("hook must be a MemoryHook, not " + type(hook).__name__)
    _core._remove_process_hook(hook.name, hook)

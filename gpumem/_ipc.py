# SPDX-License-Identifier: MIT
"""IPCBufferDescriptor: what one process tells another of memory that both use."""

from __future__ import annotations

from gpumem import _core


class IPCBufferDescriptor:
    """Names device memory for another process, which opens it with IPCMemory.

    It can be pickled, and so travels by a queue or a pipe of multiprocessing. This
    object keeps the memory, which is not used for anything else meanwhile; a pickled
    copy does not. So keep it until the other process has let go of the memory, and wait
    for the stream that wrote the memory before it is sent. Objects do not change and
    may be shared by threads.

    Args:
        pointer (MemoryPointer): into device memory that is not in stream order. What
            is shared are the bytes from there to the end of its memory. The other
            process can reach the whole allocation that these are in.

    Raises:
        CUDARuntimeError: the device cannot share this memory.
        TypeError: pointer is no MemoryPointer.
        ValueError: it points into managed or host memory, or into none.

    Attributes:
        handle (bytes): of the allocation that the memory is in, as the CUDA runtime
            has it.
        offset (int): bytes from the start of that allocation to the memory.
        size (int): bytes of the memory.
    """

    __slots__ = ("_memory", "_named")
    _memory: _core.BaseMemory | None
    _named: tuple[bytes, int, int]

    def __init__(self, pointer: _core.MemoryPointer) -> None:
        self._named = _core._ipc_export(pointer)
        self._memory = pointer.mem

    @property
    def handle(self) -> bytes:
        """of the allocation that the memory is in"""
        return self._named[0]

    @property
    def offset(self) -> int:
        """bytes from the start of that allocation to the memory"""
        return self._named[1]

    @property
    def size(self) -> int:
        """bytes of the memory"""
        return self._named[2]

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _unpickle, (type(self), self._named)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} offset={self.offset} size={self.size}>"


def _unpickle(
    cls: type[IPCBufferDescriptor], named: tuple[bytes, int, int]
) -> IPCBufferDescriptor:
    self = cls.__new__(cls)
    self._memory, self._named = None, named
    return self

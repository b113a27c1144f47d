# SPDX-License-Identifier: MIT
"""CuPy, PyTorch, Numba and gpumem itself on one pool, as a program: what one has
written another reads on another stream, and memory that was read goes back while the
reading is queued.

    together.py SEED ordered      as the libraries' protocols have it
    together.py SEED unordered    by bare addresses, which say nothing of streams

Each piece of work is queued behind a kernel that takes milliseconds, so an order that
nobody made shows: bytes of another value are read. Prints as JSON how many reads there
were and which were wrong, and the bytes in use by client beside those of the pool.
"""

import json
import random
import sys
from contextlib import nullcontext
from functools import partial

import cupy
import numba.cuda
import torch
from numba.cuda.cudadrv.driver import device_memset

import gpumem
import gpumem.interop.cupy
import gpumem.interop.numba
import gpumem.interop.torch

SIZE = 1 << 20
ROUNDS = 6
DELAY = 20_000_000  # of the device's clock: some 10 ms

pool = gpumem.MemoryPool()
gpumem.interop.torch.enable(pool)
gpumem.interop.cupy.enable(pool)
gpumem.interop.numba.enable(pool)

writing, reading = gpumem.Stream(non_blocking=True), gpumem.Stream(non_blocking=True)
ordered = sys.argv[2] == "ordered"


class Address:
    """Memory that tells of no stream, and keeps nothing."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (SIZE,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def address_of(array):
    if isinstance(array, gpumem.MemoryPointer):
        return array.ptr
    if isinstance(array, torch.Tensor):
        return array.data_ptr()
    return array.__cuda_array_interface__["data"][0]


def in_torch(stream):
    return torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr))


def in_cupy(stream):
    return cupy.cuda.Stream.from_external(stream)


def in_gpumem(stream):
    return stream


# A library passes memory on behind the work of its own current stream.
CURRENT = {
    "torch": in_torch,
    "cupy": in_cupy,
    "numba": nullcontext,
    "gpumem": in_gpumem,
}


def delay(stream):
    with in_torch(stream):
        torch.cuda._sleep(DELAY)


def at_once(stream):
    pass


# ---- writing ----


def write_torch(stream, value, late):
    with in_torch(stream):
        array = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        late(stream)
        return array.fill_(value)


def write_cupy(stream, value, late):
    with in_cupy(stream):
        array = cupy.empty(SIZE, dtype="u1")
        late(stream)
        array.fill(value)
        return array


def write_numba(stream, value, late):
    native = numba.cuda.external_stream(stream.ptr)
    array = numba.cuda.device_array(SIZE, "u1", stream=native)
    late(stream)
    device_memset(array, value, SIZE, stream=native)
    return array


def write_gpumem(stream, value, late):
    with in_gpumem(stream):
        array = pool.malloc(SIZE)
        late(stream)
        array.memset_async(value, SIZE)
        return array


# ---- reading: a copy, and what it was read from ----


def read_torch(stream, array, late):
    with in_torch(stream):
        if not ordered:
            view = torch.as_tensor(Address(address_of(array)), device="cuda")
        elif hasattr(array, "__dlpack__"):
            view = torch.from_dlpack(array)
        else:
            writing.synchronize()  # torch reads no stream
            view = torch.as_tensor(array, device="cuda")
        late(stream)
        return view.clone(), view


def read_cupy(stream, array, late):
    with in_cupy(stream):
        if not ordered:
            view = cupy.asarray(Address(address_of(array)))
        elif hasattr(array, "__dlpack__"):
            view = cupy.from_dlpack(array)
        else:
            view = cupy.asarray(array)
        late(stream)
        return view.copy(), view


def read_numba(stream, array, late):
    native = numba.cuda.external_stream(stream.ptr)
    copy = numba.cuda.device_array(SIZE, "u1", stream=native)
    if not ordered:
        view = numba.cuda.as_cuda_array(Address(address_of(array)))
    else:
        if isinstance(array, torch.Tensor):
            writing.synchronize()  # torch names no stream
        view = numba.cuda.as_cuda_array(array)
    late(stream)
    copy.copy_to_device(view, stream=native)
    return copy, view


def read_gpumem(stream, array, late):
    with stream:
        copy = pool.malloc(SIZE)
        if not ordered:
            memory = gpumem.UnownedMemory(address_of(array), SIZE, None, 0)
            view = gpumem.MemoryPointer(memory, 0)
        elif hasattr(array, "__dlpack__"):
            view = gpumem.from_dlpack(array)
        else:
            view = gpumem.from_cuda_array_interface(array)
        late(stream)
        copy.copy_from_device_async(view, SIZE)
        return copy, view


def host(array):
    """The bytes, once all is done."""
    data = bytearray(SIZE)
    whole = gpumem.UnownedMemory(address_of(array), SIZE, array, 0)
    gpumem.MemoryPointer(whole, 0).copy_to_host(data, SIZE)
    return bytes(data)


WRITE = {
    "torch": write_torch,
    "cupy": write_cupy,
    "numba": write_numba,
    "gpumem": write_gpumem,
}
READ = {
    "torch": read_torch,
    "cupy": read_cupy,
    "numba": read_numba,
    "gpumem": read_gpumem,
}

wrong = {"order": [], "reuse": []}
clients = set()
unaccounted = set()
reads = 0


def check(what, name, copy, value):
    global reads
    reads += 1
    in_use = {name: use["used_bytes"] for name, use in pool.stats_by_client().items()}
    clients.update(in_use)
    unaccounted.add(sum(in_use.values()) - pool.used_bytes())
    if host(copy) != bytes([value]) * SIZE:
        wrong[what].append(name)


def passed_on(writer, reader, value):
    """What is written late on one stream is read on another."""
    array = WRITE[writer](writing, value, delay)
    with CURRENT[writer](writing):
        copy, view = READ[reader](reading, array, at_once)
    reading.synchronize()
    check("order", f"{writer} to {reader}", copy, value)
    writing.synchronize()
    del array, view


def given_back(writer, reader, value):
    """What is read late goes back before, and is asked for and written again."""
    array = WRITE[writer](writing, value, at_once)
    writing.synchronize()
    with CURRENT[writer](writing):
        copy, view = READ[reader](reading, array, delay)
    if ordered and writer == "torch":
        array.record_stream(torch.cuda.ExternalStream(reading.ptr))
    elif ordered and reader == "numba":
        array.record_stream(reading)  # it does not say which stream it uses
    del array, view
    again = WRITE[writer](writing, value ^ 255, at_once)
    reading.synchronize()
    check("reuse", f"{writer} to {reader}", copy, value)
    writing.synchronize()
    del again


def main():
    dice = random.Random(int(sys.argv[1]))
    pairs = [
        (writer, reader) for writer in WRITE for reader in READ if writer != reader
    ]
    cases = [partial(passed_on, *pair) for pair in pairs]
    cases += [partial(given_back, *p) for p in pairs if p[0] in ("gpumem", "torch")]
    warm = [write(writing, 1, delay) for write in WRITE.values() for _ in range(3)]
    gpumem.Device().synchronize()
    del warm
    for _ in range(ROUNDS):
        dice.shuffle(cases)
        for case in cases:
            case(dice.randrange(1, 255))
    found = {
        "reads": reads,
        "wrong": {what: sorted(set(names)) for what, names in wrong.items()},
        "unaccounted": sorted(unaccounted),
        "clients": sorted(clients),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

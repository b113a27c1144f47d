# SPDX-License-Identifier: MIT
"""CuPy, PyTorch and Numba on a GPU: arrays both ways, each on a stream of its own.

Before each piece of work that somebody has to wait for, its stream is given some
milliseconds of other work, and what is in the memory says whose turn it was. Where one
stream does not wait for the other, or memory is handed out under a reader, the bytes
are wrong.
"""

import pytest

import gpumem
from gpumem import MemoryPool, Stream

pytestmark = pytest.mark.gpu

SIZE = 1 << 20
ROUNDS = 40
LOAD = 1 << 30  # bytes whose filling takes a quarter of a millisecond


class CuPy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.load = self.cupy.empty(LOAD, "uint8")

    def current(self):
        return self.stream

    def view(self, pointer):
        return self.cupy.from_dlpack(pointer)

    def delay(self):
        for _ in range(10):
            self.load.fill(0)

    def full(self, value):
        array = self.cupy.empty(SIZE, "uint8")
        array.fill(value)
        return array

    def copy(self, array):
        return array.copy()

    def host(self, array):
        return array.get(stream=self.stream).tobytes()


class Torch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("this torch knows no GPU")
        self.stream = self.torch.cuda.Stream()
        self.load = self.torch.empty(LOAD, dtype=self.torch.uint8, device="cuda")

    def current(self):
        return self.torch.cuda.stream(self.stream)

    def view(self, pointer):
        return self.torch.from_dlpack(pointer)

    def delay(self):
        for _ in range(10):
            self.load.fill_(0)

    def full(self, value):
        return self.torch.full((SIZE,), value, dtype=self.torch.uint8, device="cuda")

    def copy(self, array):
        return array.clone()

    def host(self, array):
        self.stream.synchronize()
        return array.cpu().numpy().tobytes()


LIBRARIES = {"cupy": CuPy, "torch": Torch}


@pytest.fixture(params=LIBRARIES)
def library(request):
    made = LIBRARIES[request.param]()
    gpumem.Device().synchronize()
    return made


@pytest.fixture
def mine():
    """A stream of ours, current, and a function that gives it work."""
    stream, load = Stream(non_blocking=True), gpumem.malloc(LOAD)

    def delay():
        for _ in range(10):
            load.memset_async(0, LOAD, stream)

    with stream:
        yield stream, delay
    stream.synchronize()


def test_the_library_waits_for_us_and_is_waited_for(library, mine, pool):
    """It sees what we queued last, and what it reads is not handed out under it."""
    _, delay = mine
    for turn in range(1, ROUNDS):
        pointer = pool.malloc(SIZE)
        delay()
        pointer.memset_async(turn, SIZE)
        with library.current():
            view = library.view(pointer)
            library.delay()
            copy = library.copy(view)
        del view, pointer
        pool.malloc(SIZE).memset_async(255, SIZE)  # on our stream, to be read by nobody
        with library.current():
            assert library.host(copy) == bytes([turn]) * SIZE
    pool.free_all_blocks()


def test_we_wait_for_the_library(library, mine, pool):
    stream, _ = mine
    for turn in range(1, ROUNDS):
        with library.current():
            library.delay()
            array = library.full(turn)
            pointer = gpumem.from_dlpack(array)
        copy = pool.malloc(SIZE)
        copy.copy_from_async(pointer, SIZE)
        host = bytearray(SIZE)
        copy.copy_to_host_async(host, SIZE)
        stream.synchronize()
        assert host == bytes([turn]) * SIZE
        del pointer


def test_the_interface_is_read_by_cupy_and_its_arrays_are_taken_in(mine, pool):
    library = CuPy()
    stream, delay = mine
    for turn in range(1, ROUNDS):
        pointer = pool.malloc(SIZE)
        delay()
        pointer.memset_async(turn, SIZE)
        with library.current():
            copy = library.copy(library.cupy.asarray(pointer))
            assert library.host(copy) == bytes([turn]) * SIZE
            library.delay()
            copy.fill(255 - turn)
            taken = gpumem.from_cuda_array_interface(copy)
        host = bytearray(SIZE)
        taken.copy_to_host_async(host, SIZE)
        stream.synchronize()
        assert host == bytes([255 - turn]) * SIZE
        del taken


def test_torch_takes_the_interface(mine, pool):
    torch = Torch().torch
    stream, _ = mine
    pointer = pool.malloc(SIZE)
    pointer.memset_async(7, SIZE)
    stream.synchronize()  # torch reads no stream out of it
    tensor = torch.as_tensor(pointer, device="cuda")
    assert tensor.data_ptr() == pointer.ptr
    assert bool((tensor == 7).all())


def test_numba_waits_for_us_and_we_for_numba(mine, pool):
    cuda = pytest.importorskip("numba.cuda")
    numpy = pytest.importorskip("numpy")
    stream, delay = mine
    for turn in range(1, ROUNDS):
        pointer = pool.malloc(SIZE)
        delay()
        pointer.memset_async(turn, SIZE)
        array = cuda.as_cuda_array(pointer)
        assert (array.copy_to_host() == turn).all()
        theirs = cuda.stream()
        made = cuda.to_device(numpy.full(SIZE, 255 - turn, "uint8"), stream=theirs)
        taken = gpumem.from_cuda_array_interface(made)
        host = bytearray(SIZE)
        taken.copy_to_host_async(host, SIZE)
        stream.synchronize()
        assert host == bytes([255 - turn]) * SIZE


def test_three_libraries_see_one_block(mine):
    cupy, torch = CuPy(), Torch()
    cuda = pytest.importorskip("numba.cuda")
    pool, (stream, _) = MemoryPool(), mine
    pointer = pool.malloc(SIZE)
    pointer.memset_async(1, SIZE)
    stream.synchronize()
    views = [
        cupy.cupy.from_dlpack(pointer),
        torch.torch.from_dlpack(pointer),
        cuda.as_cuda_array(pointer),
    ]
    views[0] += 1
    gpumem.Device().synchronize()
    views[1] *= 3
    gpumem.Device().synchronize()
    assert (views[2].copy_to_host() == 6).all()
    assert pool.used_bytes() == SIZE
    del views, pointer
    stream.synchronize()
    gpumem.Device().synchronize()
    assert pool.used_bytes() == 0


@pytest.mark.parametrize("make", [gpumem.malloc_managed, gpumem.malloc_pinned])
def test_managed_and_pinned_memory_go_where_they_can(make):
    numpy = pytest.importorskip("numpy")
    cupy = pytest.importorskip("cupy")
    pointer = make(SIZE)
    numpy.from_dlpack(pointer)[:] = 5
    if make is gpumem.malloc_managed:
        assert int(cupy.from_dlpack(pointer).astype("int64").sum()) == 5 * SIZE
        assert (numpy.asarray(pointer) == 5).all()

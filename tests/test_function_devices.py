# SPDX-License-Identifier: MIT
"""Functions of the user's that leave another device current than the one they found."""

import pytest

import gpumem
from gpumem import Device, MemoryPool, SingleDeviceMemoryPool
from test_function_allocators import BOTH, UNIT, Functions, over_python


class Strays(Functions):
    """Functions that leave another device current, and may raise then."""

    error = None

    def stray(self):
        Device(1 - gpumem.get_device_id()).use()
        if self.error:
            raise self.error

    def malloc(self, size, device):
        pointer = super().malloc(size, device)
        self.stray()
        return pointer

    def free(self, ptr, device):
        super().free(ptr, device)
        self.stray()


@BOTH
@pytest.mark.two_devices
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("memorys", [0, 1])
def test_a_device_that_the_functions_leave_current_does_not_stay(
    over, current, memorys
):
    """Whether the memory's device was current before or not."""
    functions = Strays()
    with Device(memorys):
        pool = SingleDeviceMemoryPool(over(functions).malloc)
    with Device(current):
        pool.malloc(UNIT)
        assert gpumem.get_device_id() == current
        pool.free_all_blocks()
        assert gpumem.get_device_id() == current
        pointer = over(functions).malloc(UNIT)
        assert gpumem.get_device_id() == current
    with Device(memorys):
        del pointer
        assert gpumem.get_device_id() == memorys
    assert [device for device, _ in functions.saw] == [memorys, memorys] + 2 * [current]


@pytest.mark.two_devices
@pytest.mark.parametrize("current", [0, 1])
def test_it_does_not_stay_after_an_error_either(current, unraisable):
    functions = Strays()
    pointer = over_python(functions).malloc(UNIT)
    functions.error = KeyError("own")

    def wrong(size):
        Device(1 - gpumem.get_device_id()).use()
        return size

    with Device(current):
        with pytest.raises(KeyError):
            over_python(functions).malloc(UNIT)
        assert gpumem.get_device_id() == current
        with pytest.raises(TypeError):
            MemoryPool(wrong).malloc(UNIT)
        assert gpumem.get_device_id() == current
        del pointer
        assert gpumem.get_device_id() == current
    assert unraisable == [functions.error]

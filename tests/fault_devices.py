# SPDX-License-Identifier: MIT
"""What test_faults_python.py asks for where two devices make a difference: code of a
function, and the code that readies it."""

# Nothing may stay current but device 0.
STAYS = "def clean_up(): assert gpumem.get_device_id() == 0\n"
ON_TWO_DEVICES = {
    "memory of functions on another device": (
        "gpumem.PythonFunctionAllocatorMemory(10**6, take, give, 1)\n"
        "gpumem.CFunctionAllocatorMemory(10**6, 0, functions[0], functions[1], 1)",
        "def take(size, device):\n"
        "    return (1 << 40) * (gpumem.get_device_id() == device)\n"
        "def give(ptr, device): assert gpumem.get_device_id() == device",
    ),
    "a pool on another device over a function": (
        "there.malloc(10**6); there.malloc(UNIT); there.free_all_blocks()",
        "def take(size): return gpumem.malloc(size)\n"
        "with gpumem.Device(1): there = gpumem.SingleDeviceMemoryPool(take)\n"
        "def clean_up(): there.free_all_blocks(); assert gpumem.get_device_id() == 0",
    ),
    "the default stream of another device": (
        "stream = gpumem.ExternalStream(0, 1)\n"
        "stream.synchronize(); stream.done; event.record(stream)\n"
        "p.memset_async(0, 10, stream); stream.synchronize()",
        "with gpumem.Device(1):\n    event = gpumem.Event(); p = gpumem.malloc(UNIT)",
    ),
    "copies to another device": (
        "p.copy_from_device(q, UNIT); q.copy_from_device_async(p, UNIT)\n"
        "testing.set_peer(0, 1, False); testing.set_peer(1, 0, False)\n"
        "p.copy_from_device(q, UNIT); q.copy_from_device_async(p, UNIT)\n"
        "testing.set_peer(0, 1, True); testing.set_peer(1, 0, True)",
        "p = gpumem.malloc(UNIT)\nwith gpumem.Device(1): q = gpumem.malloc(UNIT)",
    ),
}

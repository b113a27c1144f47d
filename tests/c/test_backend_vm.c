/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of memory by page: physical memory is put at addresses,
 * at several, taken away and put elsewhere, with its bytes; and what is wrong is
 * refused with nothing left behind. Not tried here is what a driver does not survive:
 * handles that are dead.
 */
#include "conformance.h"

#include <string.h>

#define INVALID GM_DEVICE_ERROR(1)
#define NOT_SUPPORTED GM_DEVICE_ERROR(801)

static unsigned char bytes[4096];

/* The unit; ends the test where there is no such memory. */
static size_t
unit_of(const gm_backend *b)
{
    size_t unit = 0;
    if ((b->caps & GM_CAP_VIRTUAL_MEMORY) == 0) {
        CHECK_EQ(gm_backend_vm_granularity(b, 0, &unit), GM_ERR_UNSUPPORTED);
        SKIP("no virtual memory");
    }
    CHECK_EQ(gm_backend_vm_granularity(b, 0, &unit), GM_OK);
    return unit;
}

static uintptr_t
reserve(const gm_backend *b, size_t size)
{
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_vm_reserve(b, size, &ptr), GM_OK);
    return ptr;
}

static gm_handle
create(const gm_backend *b, size_t size)
{
    gm_handle handle = 0;
    CHECK_EQ(gm_backend_vm_create(b, 0, size, &handle), GM_OK);
    return handle;
}

/* Mapped, and within reach of the device. */
static void
map(const gm_backend *b, uintptr_t ptr, size_t size, gm_handle handle)
{
    CHECK_EQ(gm_backend_vm_map(b, ptr, size, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(b, ptr, size, 0), GM_OK);
}

static void
unmap(const gm_backend *b, uintptr_t ptr, size_t size)
{
    CHECK_EQ(gm_backend_vm_unmap(b, ptr, size), GM_OK);
}

static void
release(const gm_backend *b, gm_handle handle)
{
    CHECK_EQ(gm_backend_vm_release(b, handle), GM_OK);
}

static void
unreserve(const gm_backend *b, uintptr_t ptr, size_t size)
{
    CHECK_EQ(gm_backend_vm_unreserve(b, ptr, size), GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* Writes a pattern at an address, or sees that it is there. */
static void
put(const gm_backend *b, uintptr_t ptr, unsigned seed)
{
    fill(bytes, sizeof bytes, seed);
    CHECK_EQ(
        gm_backend_copy(b, ptr, (uintptr_t)bytes, sizeof bytes, GM_COPY_HOST_TO_DEVICE),
        GM_OK);
}

static void
check(const gm_backend *b, uintptr_t ptr, unsigned seed)
{
    memset(bytes, 0, sizeof bytes);
    CHECK_EQ(
        gm_backend_copy(b, (uintptr_t)bytes, ptr, sizeof bytes, GM_COPY_DEVICE_TO_HOST),
        GM_OK);
    check_filled(bytes, sizeof bytes, seed);
}

static void
check_refused(const gm_backend *b, gm_status status, gm_status expected)
{
    CHECK_EQ(status, expected);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

CONFORMANCE(vm_is_told_of_each_device)
{
    size_t unit = unit_of(b);
    int count = 0;
    CHECK(unit >= 4096 && (unit & (unit - 1)) == 0);
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    for (int device = 0; device < count; device++) {
        unsigned support = 0;
        size_t own = 0;
        CHECK_EQ(gm_backend_device_support(b, device, &support), GM_OK);
        gm_status status = gm_backend_vm_granularity(b, device, &own);
        CHECK_EQ(status, (support & GM_DEVICE_VIRTUAL_MEMORY) != 0
                             ? GM_OK
                             : GM_ERR_UNSUPPORTED);
    }
    check_refused(b, gm_backend_vm_granularity(b, -1, &unit), GM_ERR_INVALID_DEVICE);
    check_refused(b, gm_backend_vm_granularity(b, count, &unit), GM_ERR_INVALID_DEVICE);
}

CONFORMANCE(vm_memory_moves_with_its_bytes)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 8 * unit);
    gm_handle one = create(b, unit);
    gm_handle two = create(b, 2 * unit);

    CHECK_EQ(ptr % unit, 0);
    map(b, ptr, unit, one);
    map(b, ptr + unit, 2 * unit, two);
    put(b, ptr + unit - sizeof bytes, 1);
    put(b, ptr + 3 * unit - sizeof bytes, 2);
    put(b, ptr + unit - sizeof bytes / 2, 3); // over the border of both
    check(b, ptr + unit - sizeof bytes / 2, 3);

    put(b, ptr + unit, 4);
    unmap(b, ptr + unit, 2 * unit);
    map(b, ptr + 5 * unit, 2 * unit, two);
    check(b, ptr + 5 * unit, 4);
    check(b, ptr + 7 * unit - sizeof bytes, 2);
    unmap(b, ptr, unit);
    unmap(b, ptr + 5 * unit, 2 * unit);
    release(b, one);
    release(b, two);
    unreserve(b, ptr, 8 * unit);
}

CONFORMANCE(vm_memory_can_be_at_two_addresses)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 4 * unit);
    uintptr_t other = reserve(b, unit);
    gm_handle handle = create(b, unit);

    map(b, ptr + 2 * unit, unit, handle);
    map(b, other, unit, handle);
    put(b, ptr + 2 * unit, 5);
    check(b, other, 5);
    put(b, other, 6);
    check(b, ptr + 2 * unit, 6);
    unmap(b, ptr + 2 * unit, unit); // the other one stays
    check(b, other, 6);
    unmap(b, other, unit);
    release(b, handle);
    unreserve(b, other, unit);
    unreserve(b, ptr, 4 * unit);
}

CONFORMANCE(vm_memory_outlives_its_handle_where_it_is_mapped)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, unit);
    gm_handle handle = create(b, unit);

    map(b, ptr, unit, handle);
    put(b, ptr, 7);
    release(b, handle);
    check(b, ptr, 7);
    unmap(b, ptr, unit);
    unreserve(b, ptr, unit);
}

CONFORMANCE(vm_calls_take_several_mappings_at_once)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 4 * unit);
    gm_handle handles[3];

    for (size_t i = 0; i < 3; i++) {
        handles[i] = create(b, unit);
        CHECK_EQ(gm_backend_vm_map(b, ptr + i * unit, unit, handles[i]), GM_OK);
    }
    CHECK_EQ(gm_backend_vm_set_access(b, ptr, 3 * unit, 0), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(b, ptr, 3 * unit, 0), GM_OK);
    CHECK_EQ(gm_backend_set(b, ptr, 0x41, 3 * unit), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, ptr + 3 * unit - sizeof bytes,
                             sizeof bytes, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_all(bytes, sizeof bytes, 0x41);
    unmap(b, ptr, 3 * unit);
    for (size_t i = 0; i < 3; i++) {
        release(b, handles[i]);
    }
    unreserve(b, ptr, 4 * unit);
}

/* The same stream-ordered work as anywhere, on memory by page. */
CONFORMANCE(vm_memory_is_used_in_streams)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 2 * unit);
    gm_handle handle = create(b, 2 * unit);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);

    map(b, ptr, 2 * unit, handle);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0x42, unit, stream), GM_OK);
    CHECK_EQ(gm_backend_copy_async(b, ptr + unit, ptr, unit, GM_COPY_DEVICE_TO_DEVICE,
                                   stream),
             GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, ptr + 2 * unit - sizeof bytes,
                             sizeof bytes, GM_COPY_DEFAULT),
             GM_OK);
    check_all(bytes, sizeof bytes, 0x42);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    unmap(b, ptr, 2 * unit);
    release(b, handle);
    unreserve(b, ptr, 2 * unit);
}

CONFORMANCE(vm_addresses_tell_whose_they_are)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 4 * unit);
    gm_handle handle = create(b, 2 * unit);
    gm_pointer_info info;

    map(b, ptr + unit, 2 * unit, handle);
    CHECK_EQ(gm_backend_pointer_info(b, ptr + 2 * unit + 8, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_DEVICE);
    CHECK_EQ(info.device, 0);
    CHECK_EQ(info.base, ptr + unit);
    CHECK_EQ(info.size, 2 * unit);
    CHECK_EQ(gm_backend_pointer_info(b, ptr, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_UNREGISTERED);
    CHECK_EQ(gm_backend_last_error(b), 0);
    unmap(b, ptr + unit, 2 * unit);
    release(b, handle);
    unreserve(b, ptr, 4 * unit);
}

CONFORMANCE(vm_refuses_sizes_off_the_unit)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = 0;
    gm_handle handle = 0;

    check_refused(b, gm_backend_vm_reserve(b, unit + 4096, &ptr), INVALID);
    check_refused(b, gm_backend_vm_reserve(b, 512, &ptr), INVALID);
    check_refused(b, gm_backend_vm_create(b, 0, unit + 4096, &handle), INVALID);
    check_refused(b, gm_backend_vm_create(b, 0, 512, &handle), INVALID);
    check_refused(b, gm_backend_vm_create(b, -1, unit, &handle), GM_ERR_INVALID_DEVICE);
    check_refused(b, gm_backend_vm_create(b, 99, unit, &handle), GM_ERR_INVALID_DEVICE);
}

CONFORMANCE(vm_runs_out_of_memory_and_of_addresses)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = 0;
    gm_handle handle = 0;
    size_t free_bytes = 0, total = 0;

    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total), GM_OK);
    size_t more = (total / unit + 1) * unit;
    check_refused(b, gm_backend_vm_create(b, 0, more, &handle), GM_ERR_OUT_OF_MEMORY);
    check_refused(b, gm_backend_vm_reserve(b, (size_t)1 << 60, &ptr),
                  GM_ERR_OUT_OF_MEMORY);
}

CONFORMANCE(vm_refuses_what_does_not_fit)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 8 * unit);
    gm_handle one = create(b, unit);
    gm_handle two = create(b, 2 * unit);

    check_refused(b, gm_backend_vm_map(b, ptr + 4096, unit, one), INVALID);
    check_refused(b, gm_backend_vm_map(b, ptr + 8 * unit, unit, one), INVALID);
    check_refused(b, gm_backend_vm_map(b, ptr, unit, two), NOT_SUPPORTED);
    check_refused(b, gm_backend_vm_map(b, ptr, 2 * unit, one), NOT_SUPPORTED);
    check_refused(b, gm_backend_vm_set_access(b, ptr, unit, 0), INVALID);

    map(b, ptr + 2 * unit, 2 * unit, two);
    put(b, ptr + 2 * unit, 8);
    check_refused(b, gm_backend_vm_map(b, ptr + 3 * unit, unit, one), INVALID);
    check_refused(b, gm_backend_vm_map(b, ptr + unit, 2 * unit, two), INVALID);
    check_refused(b, gm_backend_vm_unmap(b, ptr + 2 * unit, unit), INVALID);
    check_refused(b, gm_backend_vm_unmap(b, ptr + 3 * unit, unit), INVALID);
    check_refused(b, gm_backend_vm_unmap(b, ptr + unit, 2 * unit), INVALID);
    check_refused(b, gm_backend_vm_unmap(b, ptr + 8 * unit, unit), INVALID);
    check_refused(b, gm_backend_vm_set_access(b, ptr + 2 * unit, 3 * unit, 0), INVALID);
    check_refused(b, gm_backend_vm_set_access(b, ptr + 2 * unit, unit, -1),
                  GM_ERR_INVALID_DEVICE);
    check_refused(b, gm_backend_vm_unreserve(b, ptr, 8 * unit), INVALID);
    check(b, ptr + 2 * unit, 8);

    unmap(b, ptr + 2 * unit, 2 * unit);
    check_refused(b, gm_backend_vm_unreserve(b, ptr, unit), INVALID);
    check_refused(b, gm_backend_vm_unreserve(b, ptr + unit, 7 * unit), INVALID);
    release(b, one);
    release(b, two);
    unreserve(b, ptr, 8 * unit);
}

/* Nothing is there, or nobody may reach it: refused, and the device goes on. */
CONFORMANCE(vm_copies_need_something_within_reach)
{
    size_t unit = unit_of(b);
    uintptr_t ptr = reserve(b, 4 * unit);
    gm_handle one = create(b, unit);
    gm_handle two = create(b, unit);
    uintptr_t host = (uintptr_t)bytes;

    map(b, ptr, unit, one);
    CHECK_EQ(gm_backend_vm_map(b, ptr + unit, unit, two), GM_OK);
    for (size_t i = 1; i < 3; i++) { // mapped; only reserved
        uintptr_t at = ptr + i * unit;
        check_refused(b, gm_backend_set(b, at, 1, 8), INVALID);
        check_refused(b, gm_backend_copy(b, at, host, 8, GM_COPY_HOST_TO_DEVICE),
                      INVALID);
        check_refused(b, gm_backend_copy(b, host, at, 8, GM_COPY_DEVICE_TO_HOST),
                      INVALID);
    }
    check_refused(b, gm_backend_set(b, ptr, 1, unit + 1), INVALID);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    put(b, ptr, 9);
    check(b, ptr, 9);
    unmap(b, ptr, 4 * unit); // gaps and all
    release(b, one);
    release(b, two);
    unreserve(b, ptr, 4 * unit);
}

CONFORMANCE(vm_memory_is_taken_from_the_device_and_comes_back)
{
    size_t unit = unit_of(b);
    size_t before = 0, during = 0, after = 0, total = 0;
    uintptr_t ptr = reserve(b, 8 * unit);

    CHECK_EQ(gm_backend_mem_info(b, 0, &before, &total), GM_OK);
    gm_handle handle = create(b, 8 * unit);
    map(b, ptr, 8 * unit, handle);
    CHECK_EQ(gm_backend_mem_info(b, 0, &during, &total), GM_OK);
    release(b, handle);
    unmap(b, ptr, 8 * unit);
    CHECK_EQ(gm_backend_mem_info(b, 0, &after, &total), GM_OK);
    if (is_simulated(b)) { // others share a GPU
        CHECK_EQ(before - during, 8 * unit);
        CHECK_EQ(after, before);
    }
    unreserve(b, ptr, 8 * unit);
}

CONFORMANCE(vm_leaves_the_current_device_alone)
{
    size_t unit = unit_of(b);
    int count = 0, current = -1;
    gm_handle handle = 0;

    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    uintptr_t ptr = reserve(b, unit);
    int last = count - 1;
    CHECK_EQ(gm_backend_vm_create(b, last, unit, &handle), GM_OK);
    CHECK_EQ(gm_backend_vm_map(b, ptr, unit, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(b, ptr, unit, last), GM_OK);
    unmap(b, ptr, unit);
    release(b, handle);
    unreserve(b, ptr, unit);
    CHECK_EQ(gm_backend_device_get(b, &current), GM_OK);
    CHECK_EQ(current, 0);
}

/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of devices, memory, copies and sets. Streams and events
 * are in test_backend_streams.c; what the simulated device adds is in test_sim.c.
 */
#include "conformance.h"

#include <pthread.h>
#include <string.h>

/* ---- identity and devices ---- */

CONFORMANCE(identity)
{
    CHECK_EQ(gm_backend_validate(b), GM_OK);
    CHECK(b->name[0] != '\0');
    CHECK(strcmp(gm_backend_error_name(b, 0), "cudaSuccess") == 0);
    CHECK(strcmp(gm_backend_error_name(b, 2), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(gm_backend_error_text(b, 2), "out of memory") == 0);
    CHECK(strcmp(gm_backend_error_name(b, 400), "cudaErrorInvalidResourceHandle") == 0);
    CHECK(strcmp(gm_backend_error_text(b, 1), "invalid argument") == 0);
    CHECK(gm_backend_error_name(b, 123456)[0] != '\0');
    CHECK_EQ(gm_backend_last_error(b), 0);

    int driver = -1, runtime = -1;
    CHECK_EQ(gm_backend_versions(b, &driver, &runtime), GM_OK);
    if (is_simulated(b)) {
        CHECK_EQ(driver, 0);
        CHECK_EQ(runtime, 0);
    }
    else {
        CHECK(driver >= 12000 && runtime >= 12000);
    }
}

CONFORMANCE(devices)
{
    int count = 0, device = -1;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    CHECK(count >= 1);
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, 0);
    for (int i = 0; i < count; i++) {
        char name[64], shortened[2] = "?";
        CHECK_EQ(gm_backend_device_set(b, i), GM_OK);
        CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
        CHECK_EQ(device, i);
        CHECK_EQ(gm_backend_device_name(b, i, name, sizeof name), GM_OK);
        CHECK(name[0] != '\0' && memchr(name, '\0', sizeof name) != NULL);
        CHECK_EQ(gm_backend_device_name(b, i, shortened, 2), GM_OK);
        CHECK_EQ(shortened[0], name[0]);
        CHECK_EQ(shortened[1], 0);
        CHECK_EQ(gm_backend_device_name(b, i, name, 0), GM_ERR_INVALID_VALUE);
    }
    CHECK_EQ(gm_backend_device_set(b, 0), GM_OK);
}

/* Whatever is made current in between, and however deep. */
CONFORMANCE(popping_a_device_puts_back_what_was)
{
    int count = 0, device = -1;
    gm_device_mark outer, inner;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    for (int first = 0; first < count; first++) {
        CHECK_EQ(gm_backend_device_set(b, first), GM_OK);
        for (int second = 0; second < count; second++) {
            CHECK_EQ(gm_backend_device_push(b, second, &outer), GM_OK);
            CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
            CHECK_EQ(device, second);
            CHECK_EQ(gm_backend_device_push(b, first, &inner), GM_OK);
            CHECK_EQ(gm_backend_device_set(b, (first + 1) % count), GM_OK);
            gm_backend_device_pop(b, &inner);
            CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
            CHECK_EQ(device, second);
            CHECK_EQ(gm_backend_device_set(b, (second + 1) % count), GM_OK);
            gm_backend_device_pop(b, &outer);
            CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
            CHECK_EQ(device, first);
        }
    }
    CHECK_EQ(gm_backend_device_push(b, count, &outer), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_device_push(b, -1, &outer), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, count - 1);
}

CONFORMANCE(no_such_device)
{
    int count = 0;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    CHECK_EQ(gm_backend_device_set(b, count - 1), GM_OK);
    const int wrong[] = {-1, count, 1 << 20};
    for (size_t i = 0; i < 3; i++) {
        int bad = wrong[i];
        size_t free_bytes = 7, total_bytes = 7;
        uintptr_t out = 7;
        CHECK_EQ(gm_backend_device_set(b, bad), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_device_synchronize(b, bad), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_mem_info(b, bad, &free_bytes, &total_bytes),
                 GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_mem_alloc(b, bad, GM_MEM_DEVICE, 512, &out),
                 GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_stream_create(b, bad, 0, 0, &out), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_event_create(b, bad, 0, &out), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(free_bytes, 7);
        CHECK_EQ(total_bytes, 7);
        CHECK_EQ(out, 7);
        int device = -1;
        CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
        CHECK_EQ(device, count - 1);
        CHECK_EQ(gm_backend_last_error(b), 0);
    }
}

/* Work on one device while another is current, also work that fails. */
CONFORMANCE(current_device_stays)
{
    int count = 0, device = -1;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    CHECK_EQ(gm_backend_device_set(b, count - 1), GM_OK);

    uintptr_t ptr = take(b, GM_MEM_DEVICE, MIB);
    gm_stream stream = take_stream(b, 0);
    gm_event event = take_event(b, 0);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, MIB, stream), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
    CHECK_EQ(gm_backend_event_synchronize(b, event), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    uintptr_t none = 0;
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, total_bytes + 1, &none),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);

    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, count - 1);
}

static void *
read_device(void *arg)
{
    const gm_backend *b = arg;
    int device = -1;
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, 0);
    return NULL;
}

CONFORMANCE(current_device_is_per_thread)
{
    int count = 0;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    CHECK_EQ(gm_backend_device_set(b, count - 1), GM_OK);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, read_device, (void *)(uintptr_t)b), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* ---- memory ---- */

CONFORMANCE(memory)
{
    const size_t sizes[] = {1, 511, 512, 513, 4096, MIB + 1};
    enum {
        N = sizeof sizes / sizeof sizes[0]
    };
    uintptr_t ptrs[N];
    for (size_t i = 0; i < N; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, sizes[i]);
        CHECK_EQ(ptrs[i] % 512, 0);
        for (size_t j = 0; j < i; j++) {
            CHECK(ptrs[i] >= ptrs[j] + sizes[j] || ptrs[j] >= ptrs[i] + sizes[i]);
        }
    }
    for (size_t i = 0; i < N; i++) {
        give(b, GM_MEM_DEVICE, ptrs[i]);
    }
}

CONFORMANCE(memory_info_follows)
{
    const size_t size = 16 * MIB;
    // The first allocation may cost the device something for itself.
    give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, size));
    size_t before = 0, during = 0, after = 0, total = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &before, &total), GM_OK);
    CHECK(before <= total && before >= size);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, size);
    CHECK_EQ(gm_backend_mem_info(b, 0, &during, &total), GM_OK);
    CHECK(before - during >= size && before - during < size + 2 * MIB);
    give(b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(gm_backend_mem_info(b, 0, &after, &total), GM_OK);
    CHECK_EQ(after, before);
}

/* Four pieces, every other one to be given back: exact where the device tells, never
 * less than what a piece alone makes room for. */
CONFORMANCE(memory_largest_counts_what_goes_back)
{
    const size_t size = 4 * MIB;
    uintptr_t ptrs[4];
    size_t none = 0, some = 0, bytes = 7;
    for (size_t i = 0; i < 4; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, size);
    }
    gm_range back[2] = {{ptrs[0], size}, {ptrs[2], size}};
    if (ptrs[2] < ptrs[0]) {
        back[0].base = ptrs[2];
        back[1].base = ptrs[0];
    }
    CHECK_EQ(gm_backend_mem_largest(b, 0, NULL, 0, &none), GM_OK);
    CHECK_EQ(gm_backend_mem_largest(b, 0, back, 2, &some), GM_OK);
    CHECK(some >= none && some >= size && some <= none + 2 * size);
    if (is_simulated(b)) {
        give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, none));
        CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, none + 1, &ptrs[0]),
                 GM_ERR_OUT_OF_MEMORY);
    }
    CHECK_EQ(gm_backend_mem_largest(b, -1, NULL, 0, &bytes), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(bytes, 7);
    for (size_t i = 0; i < 4; i++) {
        give(b, GM_MEM_DEVICE, ptrs[i]);
    }
}

CONFORMANCE(memory_sizes_refused)
{
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    uintptr_t out = 7;
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 0, &out), GM_ERR_INVALID_VALUE);
    const size_t huge[] = {total_bytes + 1, (size_t)1 << 60, SIZE_MAX / 2 + 1,
                           SIZE_MAX - 511, SIZE_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, huge[i], &out),
                 GM_ERR_OUT_OF_MEMORY);
        CHECK_EQ(gm_backend_last_error(b), 0);
        give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, MIB)); // as well as ever
    }
    CHECK_EQ(out, 7);
}

/* Fill the device with pieces, free one, and its place is there again. */
CONFORMANCE(out_of_memory_recovers)
{
    enum {
        PIECES = 64
    };
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    size_t piece = (free_bytes / PIECES + 511) & ~(size_t)511;
    uintptr_t ptrs[PIECES + 1];
    size_t count = 0;
    gm_status status = GM_OK;
    while (count <= PIECES) {
        status = gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, piece, &ptrs[count]);
        if (status != GM_OK) {
            break;
        }
        count++;
    }
    CHECK_EQ(status, GM_ERR_OUT_OF_MEMORY);
    CHECK(count > PIECES / 2);
    CHECK_EQ(gm_backend_last_error(b), 0);
    give(b, GM_MEM_DEVICE, ptrs[count / 2]);
    ptrs[count / 2] = take(b, GM_MEM_DEVICE, piece);
    for (size_t i = 0; i < count; i++) {
        give(b, GM_MEM_DEVICE, ptrs[i]);
    }
}

CONFORMANCE(pinned_memory)
{
    unsigned char *host = (unsigned char *)take(b, GM_MEM_PINNED, 4096);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 4096);
    fill(host, 4096, 5);
    CHECK_EQ(gm_backend_copy(b, ptr, (uintptr_t)host, 4096, GM_COPY_HOST_TO_DEVICE),
             GM_OK);
    memset(host, 0, 4096);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)host, ptr, 4096, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_filled(host, 4096, 5);
    give(b, GM_MEM_DEVICE, ptr);
    give(b, GM_MEM_PINNED, (uintptr_t)host);
}

CONFORMANCE(managed_memory)
{
    if ((b->caps & GM_CAP_MANAGED) == 0) {
        SKIP("no managed memory");
    }
    unsigned char *both = (unsigned char *)take(b, GM_MEM_MANAGED, 4096);
    CHECK_EQ(gm_backend_set(b, (uintptr_t)both, 0x42, 4096), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    check_all(both, 4096, 0x42);
    give(b, GM_MEM_MANAGED, (uintptr_t)both);
}

static void
check_pointer(const gm_backend *b,
              uintptr_t ptr,
              gm_pointer_kind kind,
              uintptr_t base,
              size_t size)
{
    gm_pointer_info info;
    CHECK_EQ(gm_backend_pointer_info(b, ptr, &info), GM_OK);
    CHECK_EQ(info.kind, kind);
    CHECK_EQ(info.device, kind == GM_POINTER_UNREGISTERED ? -1 : 0);
    if (info.base != 0) { // a backend may not know
        CHECK_EQ(info.base, base);
        CHECK(info.size >= size);
    }
}

CONFORMANCE(pointers)
{
    uintptr_t device = take(b, GM_MEM_DEVICE, 1000);
    uintptr_t pinned = take(b, GM_MEM_PINNED, 1000);
    check_pointer(b, device, GM_POINTER_DEVICE, device, 1000);
    check_pointer(b, device + 999, GM_POINTER_DEVICE, device, 1000);
    check_pointer(b, pinned, GM_POINTER_HOST, pinned, 1000);
    check_pointer(b, (uintptr_t)&device, GM_POINTER_UNREGISTERED, 0, 0);
    if ((b->caps & GM_CAP_MANAGED) != 0) {
        uintptr_t managed = take(b, GM_MEM_MANAGED, 1000);
        check_pointer(b, managed, GM_POINTER_MANAGED, managed, 1000);
        give(b, GM_MEM_MANAGED, managed);
    }
    give(b, GM_MEM_PINNED, pinned);
    give(b, GM_MEM_DEVICE, device);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* ---- copies and sets ---- */

/* Host to a, a to c, c to host, by the plain or the async form, with one kind each or
 * all by GM_COPY_DEFAULT. */
static void
round_trip(const gm_backend *b, size_t size, bool async, bool guess, gm_stream stream)
{
    const gm_copy_kind kinds[] = {
        guess ? GM_COPY_DEFAULT : GM_COPY_HOST_TO_DEVICE,
        guess ? GM_COPY_DEFAULT : GM_COPY_DEVICE_TO_DEVICE,
        guess ? GM_COPY_DEFAULT : GM_COPY_DEVICE_TO_HOST,
    };
    unsigned char *from = malloc(size), *to = calloc(1, size);
    CHECK(from != NULL && to != NULL);
    fill(from, size, (unsigned)size);
    uintptr_t a = take(b, GM_MEM_DEVICE, size), c = take(b, GM_MEM_DEVICE, size);
    const uintptr_t places[] = {(uintptr_t)from, a, c, (uintptr_t)to};
    for (size_t i = 0; i < 3; i++) {
        gm_status status =
            async ? gm_backend_copy_async(b, places[i + 1], places[i], size, kinds[i],
                                          stream)
                  : gm_backend_copy(b, places[i + 1], places[i], size, kinds[i]);
        CHECK_EQ(status, GM_OK);
    }
    if (async) {
        CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    }
    check_filled(to, size, (unsigned)size);
    give(b, GM_MEM_DEVICE, c);
    give(b, GM_MEM_DEVICE, a);
    free(to);
    free(from);
}

CONFORMANCE(copies)
{
    const size_t sizes[] = {1, 513, MIB + 3};
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    const gm_stream streams[] = {GM_STREAM_NULL, GM_STREAM_LEGACY, GM_STREAM_PER_THREAD,
                                 stream};
    for (size_t i = 0; i < 3; i++) {
        round_trip(b, sizes[i], false, false, 0);
        round_trip(b, sizes[i], false, true, 0);
        for (size_t j = 0; j < 4; j++) {
            round_trip(b, sizes[i], true, false, streams[j]);
            round_trip(b, sizes[i], true, true, streams[j]);
        }
    }
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

CONFORMANCE(copies_between_devices)
{
    unsigned char before[4096], after[4096];
    uintptr_t on_first, on_second;
    int count = 0, device = -1;
    gm_stream stream;

    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    if (count < 2) {
        SKIP("needs two devices");
    }
    for (size_t i = 0; i < sizeof before; i++) {
        before[i] = (unsigned char)(i * 7 + 1);
    }
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, sizeof before, &on_first),
             GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, sizeof before, &on_second),
             GM_OK);
    CHECK_EQ(gm_backend_copy(b, on_first, (uintptr_t)before, sizeof before,
                             GM_COPY_HOST_TO_DEVICE),
             GM_OK);
    CHECK_EQ(gm_backend_copy_peer(b, on_second, 1, on_first, 0, sizeof before), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)after, on_second, sizeof after,
                             GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    CHECK(memcmp(before, after, sizeof after) == 0);

    CHECK_EQ(gm_backend_set(b, on_second, 9, sizeof before), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 1), GM_OK);
    CHECK_EQ(gm_backend_stream_create(b, 0, 0, 0, &stream), GM_OK);
    CHECK_EQ(gm_backend_copy_peer_async(b, on_first, 0, on_second, 1, 512, stream),
             GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)after, on_first, sizeof after,
                             GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    CHECK(after[0] == 9 && after[511] == 9 && after[512] == before[512]);

    CHECK_EQ(gm_backend_copy_peer(b, on_second, count, on_first, 0, 512),
             GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, 0);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, on_first), GM_OK);
    CHECK_EQ(gm_backend_mem_free(b, 1, GM_MEM_DEVICE, on_second), GM_OK);
}

CONFORMANCE(sets_use_the_low_byte)
{
    unsigned char host[700];
    uintptr_t ptr = take(b, GM_MEM_DEVICE, sizeof host);
    CHECK_EQ(gm_backend_set(b, ptr, 0x11, sizeof host), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr + 100, 0x1a5, 500, GM_STREAM_NULL), GM_OK);
    CHECK_EQ(
        gm_backend_copy(b, (uintptr_t)host, ptr, sizeof host, GM_COPY_DEVICE_TO_HOST),
        GM_OK);
    check_all(host, 100, 0x11);
    check_all(host + 100, 500, 0xa5);
    check_all(host + 600, 100, 0x11);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(nothing_is_not_copied)
{
    unsigned char host[8];
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 8);
    uintptr_t src = (uintptr_t)host;
    CHECK_EQ(gm_backend_copy(b, ptr, src, 0, GM_COPY_DEFAULT), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_copy_async(b, ptr, src, 0, GM_COPY_DEFAULT, 0),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_set(b, ptr, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_last_error(b), 0);
    give(b, GM_MEM_DEVICE, ptr);
}

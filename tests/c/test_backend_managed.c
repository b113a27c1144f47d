/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of managed memory's moves and advice, and of peers. A GPU
 * may be without them (an integrated one, two that share no path): then it says so, and
 * leaves nothing behind.
 */
#include "conformance.h"

#include <string.h>

enum {
    SIZE = 4096,
    HOST = -1,
    SET_READ_MOSTLY = 1, // cudaMemoryAdvise
    SET_PREFERRED_LOCATION = 3,
    NO_ADVICE = 99,
};

/* GM_OK, or on hardware that cannot do it a device error; clean afterwards. */
static void
check_done_or_refused(const gm_backend *b, gm_status status)
{
    CHECK(status == GM_OK || (!is_simulated(b) && gm_status_is_device(status)));
    CHECK_EQ(gm_backend_last_error(b), 0);
}

static int
count_devices(const gm_backend *b)
{
    int count = 0;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    return count;
}

static void
check_current_device_is(const gm_backend *b, int expected)
{
    int device = -1;
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    CHECK_EQ(device, expected);
}

/* ---- managed memory ---- */

CONFORMANCE(prefetch_keeps_the_bytes_and_the_order)
{
    unsigned char before[SIZE], after[SIZE];
    uintptr_t ptr = take(b, GM_MEM_MANAGED, SIZE);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    const int places[] = {0, HOST, 0};

    fill(before, SIZE, 3);
    CHECK_EQ(gm_backend_copy_async(b, ptr, (uintptr_t)before, SIZE,
                                   GM_COPY_HOST_TO_DEVICE, stream),
             GM_OK);
    for (size_t i = 0; i < 3; i++) {
        check_done_or_refused(b,
                              gm_backend_mem_prefetch(b, ptr, SIZE, places[i], stream));
    }
    check_done_or_refused(b, gm_backend_mem_prefetch(b, ptr + 512, 512, 0, stream));
    CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)after, ptr, SIZE,
                                   GM_COPY_DEVICE_TO_HOST, stream),
             GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    check_filled(after, SIZE, 3);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    give(b, GM_MEM_MANAGED, ptr);
}

CONFORMANCE(advice)
{
    unsigned char *both = (unsigned char *)take(b, GM_MEM_MANAGED, SIZE);
    uintptr_t ptr = (uintptr_t)both;

    memset(both, 0x2f, SIZE);
    check_done_or_refused(b, gm_backend_mem_advise(b, ptr, SIZE, SET_READ_MOSTLY, 0));
    check_done_or_refused(
        b, gm_backend_mem_advise(b, ptr, SIZE, SET_PREFERRED_LOCATION, HOST));
    CHECK_EQ(gm_backend_mem_advise(b, ptr, SIZE, NO_ADVICE, 0), GM_DEVICE_ERROR(1));
    CHECK_EQ(gm_backend_last_error(b), 0);
    check_all(both, SIZE, 0x2f);
    give(b, GM_MEM_MANAGED, ptr);
}

CONFORMANCE(managed_memory_moves_to_devices_there_are)
{
    uintptr_t ptr = take(b, GM_MEM_MANAGED, SIZE);
    const int wrong[] = {-2, count_devices(b), 1 << 20};

    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(gm_backend_mem_prefetch(b, ptr, SIZE, wrong[i], GM_STREAM_NULL),
                 GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_mem_advise(b, ptr, SIZE, SET_READ_MOSTLY, wrong[i]),
                 GM_ERR_INVALID_DEVICE);
    }
    CHECK_EQ(gm_backend_mem_prefetch(b, ptr, 0, 0, GM_STREAM_NULL),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_advise(b, ptr, 0, SET_READ_MOSTLY, 0),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_last_error(b), 0);
    give(b, GM_MEM_MANAGED, ptr);
}

static void
check_not_managed(const gm_backend *b, gm_status status)
{
    CHECK(is_simulated(b) ? status == GM_DEVICE_ERROR(1) : gm_status_is_device(status));
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* Device memory is not managed, nor is what lies past a managed range. */
CONFORMANCE(only_managed_memory_moves)
{
    uintptr_t device = take(b, GM_MEM_DEVICE, SIZE);
    uintptr_t managed = take(b, GM_MEM_MANAGED, SIZE);

    check_not_managed(b, gm_backend_mem_prefetch(b, device, SIZE, 0, GM_STREAM_NULL));
    check_not_managed(b, gm_backend_mem_advise(b, device, SIZE, SET_READ_MOSTLY, 0));
    if (is_simulated(b)) { // a driver looks at whole pages
        check_not_managed(
            b, gm_backend_mem_prefetch(b, managed, SIZE + 1, 0, GM_STREAM_NULL));
    }
    give(b, GM_MEM_MANAGED, managed);
    give(b, GM_MEM_DEVICE, device);
}

/* ---- peers ---- */

CONFORMANCE(a_device_is_no_peer_of_itself)
{
    bool can = true;

    CHECK_EQ(gm_backend_peer_can_access(b, 0, 0, &can), GM_OK);
    CHECK(!can);
    CHECK(gm_backend_peer_enable(b, 0, 0) != GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
    check_current_device_is(b, 0);
}

CONFORMANCE(peers_must_be_there)
{
    int count = count_devices(b);
    const int wrong[] = {-1, count, 1 << 20};

    for (size_t i = 0; i < 3; i++) {
        bool can = true;
        CHECK_EQ(gm_backend_peer_can_access(b, 0, wrong[i], &can),
                 GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_peer_enabled(b, 0, wrong[i], &can), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_peer_enabled(b, wrong[i], 0, &can), GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_peer_can_access(b, wrong[i], 0, &can),
                 GM_ERR_INVALID_DEVICE);
        CHECK_EQ(gm_backend_peer_enable(b, wrong[i], 0), GM_ERR_INVALID_DEVICE);
        CHECK(gm_backend_peer_enable(b, 0, wrong[i]) != GM_OK);
        CHECK_EQ(gm_backend_last_error(b), 0);
        check_current_device_is(b, 0);
    }
}

/* Enabling says the same twice, and neither call changes the current device. */
CONFORMANCE(peers)
{
    int count = count_devices(b);
    bool can = false;
    bool enabled = true;

    if (count < 2) {
        SKIP("needs two devices");
    }
    CHECK_EQ(gm_backend_peer_enabled(b, 1, 0, &enabled), GM_OK);
    CHECK(!enabled); // it is the other direction
    for (int current = 0; current < 2; current++) {
        CHECK_EQ(gm_backend_device_set(b, current), GM_OK);
        CHECK_EQ(gm_backend_peer_can_access(b, 0, 1, &can), GM_OK);
        for (int again = 0; again < 2; again++) {
            gm_status status = gm_backend_peer_enable(b, 0, 1);
            CHECK(can ? status == GM_OK : gm_status_is_device(status));
            CHECK_EQ(gm_backend_peer_enabled(b, 0, 1, &enabled), GM_OK);
            CHECK_EQ(enabled, can);
            CHECK_EQ(gm_backend_last_error(b), 0);
            check_current_device_is(b, current);
        }
    }
    CHECK_EQ(gm_backend_device_set(b, 0), GM_OK);
}

/* Either device takes with it what one could reach of the other; it can again. */
CONFORMANCE(peers_end_with_a_reset)
{
    bool can = false;

    if (count_devices(b) < 2) {
        SKIP("needs two devices");
    }
    CHECK_EQ(gm_backend_peer_can_access(b, 0, 1, &can), GM_OK);
    if (!can) {
        SKIP("needs devices that reach each other");
    }
    for (int lost = 0; lost < 2; lost++) {
        bool enabled = false;

        CHECK_EQ(gm_backend_peer_enable(b, 0, 1), GM_OK);
        CHECK_EQ(gm_backend_peer_enabled(b, 0, 1, &enabled), GM_OK);
        CHECK(enabled);
        CHECK_EQ(gm_backend_device_reset(b, lost), GM_OK);
        CHECK_EQ(gm_backend_peer_enabled(b, 0, 1, &enabled), GM_OK);
        CHECK(!enabled);
        CHECK_EQ(gm_backend_last_error(b), 0);
    }
    CHECK_EQ(gm_backend_peer_enable(b, 0, 1), GM_OK);
    CHECK_EQ(gm_backend_peer_enabled(b, 0, 1, &can), GM_OK);
    CHECK(can);
}

/* ---- the simulated matrix ---- */

TEST(a_refused_peer_is_refused_in_one_direction)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 3, .memory = MIB});
    bool can = true;

    CHECK_EQ(gm_sim_set_peer(sim, 0, 1, false), GM_OK);
    CHECK_EQ(gm_backend_peer_can_access(sim, 0, 1, &can), GM_OK);
    CHECK(!can);
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 1), GM_DEVICE_ERROR(217));
    CHECK_EQ(gm_backend_peer_can_access(sim, 1, 0, &can), GM_OK);
    CHECK(can);
    CHECK_EQ(gm_backend_peer_enable(sim, 1, 0), GM_OK);
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 2), GM_OK);
    gm_backend_close(sim);
}

TEST(a_device_has_eight_peers_at_most)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 10, .memory = MIB});

    for (int peer = 1; peer <= 8; peer++) {
        CHECK_EQ(gm_backend_peer_enable(sim, 0, peer), GM_OK);
    }
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 9), GM_DEVICE_ERROR(711));
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 8), GM_OK); // it has it already
    CHECK_EQ(gm_backend_peer_enable(sim, 9, 0), GM_OK); // another device's count
    CHECK_EQ(gm_sim_set_peer(sim, 0, 1, true), GM_OK);  // forgets that it was enabled
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 9), GM_OK);
    CHECK_EQ(gm_backend_peer_enable(sim, 0, 1), GM_DEVICE_ERROR(711));
    gm_backend_close(sim);
}

/* SPDX-License-Identifier: MIT
 *
 * What the simulated device knows of managed memory: where its parts were moved to, and
 * the advice about them.
 */
#include "device.h"

static gm_sim_managed
look(const gm_backend *b, uintptr_t ptr)
{
    gm_sim_managed known = {0};
    CHECK_EQ(gm_sim_read_managed(b, ptr, &known), GM_OK);
    return known;
}

TEST(sim_managed_memory_is_where_it_was_moved_last)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_MANAGED, 4096);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    CHECK_EQ(look(b, ptr).location, GM_SIM_NOWHERE);
    CHECK_EQ(gm_backend_mem_prefetch(b, ptr, 4096, 1, stream), GM_OK);
    CHECK_EQ(look(b, ptr).location, GM_SIM_NOWHERE); // the stream is not there yet
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(look(b, ptr).location, 1);
    CHECK_EQ(look(b, ptr + 4095).location, 1);

    // Parts of it elsewhere: [0,1000) 1, [1000,2000) host, [2000,3000) 0, then 1.
    CHECK_EQ(gm_backend_mem_prefetch(b, ptr + 1000, 1500, -1, stream), GM_OK);
    CHECK_EQ(gm_backend_mem_prefetch(b, ptr + 2000, 1000, 0, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    const struct {
        size_t offset;
        int location;
    } places[] = {{0, 1},    {999, 1},  {1000, -1}, {1999, -1},
                  {2000, 0}, {2999, 0}, {3000, 1},  {4095, 1}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        CHECK_EQ(look(b, ptr + places[i].offset).location, places[i].location);
    }
    CHECK_EQ(gm_backend_mem_prefetch(b, ptr, 4096, 0, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(look(b, ptr + 1500).location, 0);

    give(b, GM_MEM_MANAGED, ptr);
    CHECK_EQ(take(b, GM_MEM_MANAGED, 4096), ptr); // the same place, nothing known
    CHECK_EQ(look(b, ptr).location, GM_SIM_NOWHERE);
    give(b, GM_MEM_MANAGED, ptr);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}

TEST(sim_managed_advice_is_remembered)
{
    enum {
        READ_MOSTLY = 1,
        NOT_READ_MOSTLY,
        PREFERRED,
        NOT_PREFERRED,
        ACCESSED_BY,
        NOT_ACCESSED_BY
    };
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_MANAGED, 2000);
    const struct {
        int advice;
        int device;
        gm_sim_managed known;
    } steps[] = {
        {READ_MOSTLY, 0, {GM_SIM_NOWHERE, true, GM_SIM_NOWHERE, 0}},
        {PREFERRED, 1, {GM_SIM_NOWHERE, true, 1, 0}},
        {ACCESSED_BY, 0, {GM_SIM_NOWHERE, true, 1, 1}},
        {ACCESSED_BY, -1, {GM_SIM_NOWHERE, true, 1, 1 | GM_SIM_ACCESSED_BY_HOST}},
        {NOT_ACCESSED_BY, 0, {GM_SIM_NOWHERE, true, 1, GM_SIM_ACCESSED_BY_HOST}},
        {PREFERRED, -1, {GM_SIM_NOWHERE, true, -1, GM_SIM_ACCESSED_BY_HOST}},
        {NOT_READ_MOSTLY, 0, {GM_SIM_NOWHERE, false, -1, GM_SIM_ACCESSED_BY_HOST}},
        {NOT_PREFERRED, 0, {GM_SIM_NOWHERE, false, -2, GM_SIM_ACCESSED_BY_HOST}},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        harness_note("step %zu", i);
        CHECK_EQ(gm_backend_mem_advise(b, ptr, 1000, steps[i].advice, steps[i].device),
                 GM_OK);
        gm_sim_managed known = look(b, ptr + 999);
        CHECK_EQ(known.location, steps[i].known.location);
        CHECK_EQ(known.read_mostly, steps[i].known.read_mostly);
        CHECK_EQ(known.preferred, steps[i].known.preferred);
        CHECK_EQ(known.accessed_by, steps[i].known.accessed_by);
        known = look(b, ptr + 1000); // nobody said anything about that part
        CHECK_EQ(known.preferred, GM_SIM_NOWHERE);
        CHECK_EQ(known.accessed_by, 0);
    }
    gm_sim_managed known;
    uintptr_t plain = take(b, GM_MEM_DEVICE, 512);
    CHECK_EQ(gm_sim_read_managed(b, plain, &known), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_sim_read_managed(b, ptr + 2000, &known), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_advise(b, ptr, 1000, 0, 0), GM_DEVICE_ERROR(1));
    CHECK_EQ(gm_backend_mem_advise(b, ptr, 1000, 7, 0), GM_DEVICE_ERROR(1));
    give(b, GM_MEM_DEVICE, plain);
    give(b, GM_MEM_MANAGED, ptr);
    gm_backend_close(b);
}

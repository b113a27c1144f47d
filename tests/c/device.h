/* SPDX-License-Identifier: MIT
 *
 * Shorthand for tests that drive a backend. It insists on success: a test ends where
 * something here does not get what it asks for.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "harness.h"

#include "backends/backends.h"

#define MIB ((size_t)1 << 20)

static inline bool
is_simulated(const gm_backend *b)
{
    return (b->caps & GM_CAP_SIMULATED) != 0;
}

static inline uintptr_t
take(const gm_backend *b, gm_mem_kind kind, size_t size)
{
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc(b, 0, kind, size, &ptr), GM_OK);
    return ptr;
}

static inline void
give(const gm_backend *b, gm_mem_kind kind, uintptr_t ptr)
{
    CHECK_EQ(gm_backend_mem_free(b, 0, kind, ptr), GM_OK);
}

static inline gm_stream
take_stream(const gm_backend *b, unsigned flags)
{
    gm_stream stream = 0;
    CHECK_EQ(gm_backend_stream_create(b, 0, flags, 0, &stream), GM_OK);
    return stream;
}

static inline gm_event
take_event(const gm_backend *b, unsigned flags)
{
    gm_event event = 0;
    CHECK_EQ(gm_backend_event_create(b, 0, flags, &event), GM_OK);
    return event;
}

/* Bytes that differ from their neighbours and from those of another seed. */
static inline void
fill(unsigned char *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(seed + 31 * i + i / 251);
    }
}

static inline void
check_filled(const unsigned char *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) {
        CHECK_EQ(bytes[i], (unsigned char)(seed + 31 * i + i / 251));
    }
}

static inline void
check_all(const unsigned char *bytes, size_t size, unsigned char value)
{
    for (size_t i = 0; i < size; i++) {
        CHECK_EQ(bytes[i], value);
    }
}

/* ---- the simulated device ---- */

static inline gm_backend *
open_sim(gm_sim_options options)
{
    gm_backend *b = NULL;
    CHECK_EQ(gm_backend_sim_open(&options, &b), GM_OK);
    return b;
}

static inline gm_sim_ledger
read_ledger(const gm_backend *b)
{
    gm_sim_ledger ledger;
    gm_sim_read_ledger(b, &ledger);
    return ledger;
}

static inline void
check_ledger_is_empty(const gm_backend *sim)
{
    gm_sim_ledger ledger = read_ledger(sim);
    CHECK_EQ(ledger.allocations, 0);
    CHECK_EQ(ledger.bytes, 0);
    CHECK_EQ(ledger.streams, 0);
    CHECK_EQ(ledger.events, 0);
    CHECK_EQ(ledger.graphs, 0);
    CHECK_EQ(ledger.captures, 0);
    CHECK_EQ(ledger.imports, 0);
    CHECK_EQ(ledger.reservations, 0);
    CHECK_EQ(ledger.handles, 0);
    CHECK_EQ(ledger.mappings, 0);
    CHECK_EQ(ledger.pending, 0);
    CHECK_EQ(ledger.faults, 0);
}

#endif

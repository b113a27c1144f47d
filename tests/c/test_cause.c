/* SPDX-License-Identifier: MIT
 *
 * Why a request failed, where it could be one thing or the other, and what was free for
 * it: the numbers at the boundaries between two causes, worked out by hand.
 */
#include "device.h"
#include "holding.h"
#include "streams.h"

#include "core/gm_capture.h"

static gm_shortage
explain_for(gm_pool *pool, size_t size, gm_stream_key key)
{
    gm_request wanted = {.size = size, .key = key};
    gm_shortage s;
    holding h;

    CHECK_EQ(try_hold(pool, size, key, &h), GM_ERR_OUT_OF_MEMORY);
    gm_pool_explain(pool, &wanted, GM_ERR_OUT_OF_MEMORY, &s);
    return s;
}

/* How the memory of a device of 64 MiB is shared out, and who is named: whoever has
 * more than this pool, another pool where it has as much as the rest together. */
typedef struct share {
    size_t own, sibling, others; // MiB
    gm_cause cause;
} share;

TEST(cause_is_whoever_has_more_than_the_pool_itself)
{
    static const share shares[] = {
        {30, 30, 0, GM_CAUSE_FULL},        {29, 31, 0, GM_CAUSE_OTHER_POOL},
        {10, 25, 25, GM_CAUSE_OTHER_POOL}, {10, 24, 26, GM_CAUSE_OTHER_PROCESS},
        {30, 0, 30, GM_CAUSE_FULL},        {29, 0, 31, GM_CAUSE_OTHER_PROCESS},
        {20, 20, 20, GM_CAUSE_FULL},       {19, 20, 21, GM_CAUSE_OTHER_PROCESS},
    };

    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const share *part = &shares[i];
        gm_backend *sim = open_sim((gm_sim_options){
            .devices = 1, .memory = 64 * MIB, .others = part->others * MIB});
        gm_pool *sibling = NULL, *pool = NULL;
        holding h, other = {0};
        gm_shortage s;

        CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(sim), &sibling), GM_OK);
        CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(sim), &pool), GM_OK);
        h = take_bytes(pool, part->own * MIB);
        if (part->sibling) {
            other = take_bytes(sibling, part->sibling * MIB);
        }
        s = explain_for(pool, 5 * MIB, 0); // there are 4
        CHECK_EQ(s.cause, part->cause);
        CHECK_EQ(s.total_bytes, part->own * MIB);
        CHECK_EQ(s.sibling_bytes, part->sibling * MIB); // of the oldest pool
        CHECK_EQ(s.outside_bytes, (part->sibling + part->others) * MIB);
        let_go(h);
        if (part->sibling) {
            let_go(other);
        }
        gm_pool_close(pool);
        gm_pool_close(sibling);
        check_no_pool_is_left();
        check_ledger_is_empty(sim);
        gm_backend_close(sim);
    }
}

/* A request for all that a device has is not too large for it. */
TEST(cause_of_a_request_for_the_whole_device)
{
    site s = open_site(64 * MIB);
    holding h = take_bytes(s.pool, MIB);

    CHECK_EQ(explain_for(s.pool, 64 * MIB, 0).cause, GM_CAUSE_FULL);
    CHECK_EQ(explain_for(s.pool, 64 * MIB + 1, 0).cause, GM_CAUSE_TOO_LARGE);
    let_go(h);
    close_site(s);
}

TEST(cause_of_the_largest_request_that_can_be_rounded)
{
    site s = open_site(64 * MIB);
    gm_request wanted = {.size = GM_SIZE_MAX};
    gm_shortage told;

    gm_pool_explain(s.pool, &wanted, GM_ERR_OUT_OF_MEMORY, &told);
    CHECK_EQ(told.rounded_size, GM_SIZE_MAX);
    CHECK_EQ(told.missing_bytes, GM_SIZE_MAX - 64 * MIB);
    wanted.size++;
    gm_pool_explain(s.pool, &wanted, GM_ERR_TOO_LARGE, &told);
    CHECK_EQ(told.rounded_size, GM_UNKNOWN);
    close_site(s);
}

/* ---- what is free ---- */

/* A segment of that size with so many bytes free, for a stream. */
static holding
take_all_but(gm_pool *pool, size_t size, size_t left, gm_stream_key key)
{
    let_go(take_for(pool, size, key));
    return take_for(pool, size - left, key);
}

/* What another stream has is not the request's, though it is as large as that: free for
 * it are its own stream's, and what ended streams left. */
TEST(cause_names_what_was_free_for_that_stream)
{
    for (size_t ended = 1; ended <= 3; ended += 2) {
        site s = open_site(24 * MIB);
        gm_stream_use gone = new_stream(s.sim, 0, true);
        gm_stream_use other = new_stream(s.sim, 0, true);
        gm_stream_use own = new_stream(s.sim, 0, true);
        holding held[] = {take_all_but(s.pool, 8 * MIB, ended * MIB, gone.key),
                          take_all_but(s.pool, 8 * MIB, 4 * MIB, other.key),
                          take_all_but(s.pool, 8 * MIB, 2 * MIB, own.key)};
        gm_shortage told;

        end_stream(s.sim, gone);
        CHECK_EQ(stats_of(s.pool).pending_bytes, 0); // it had no work
        told = explain_for(s.pool, 4 * MIB, own.key);
        CHECK_EQ(told.cause, GM_CAUSE_FRAGMENTED);
        CHECK_EQ(told.largest_free_block, (ended > 2 ? ended : 2) * MIB);
        told = explain_for(s.pool, 4 * MIB + 1, own.key); // nobody's would do
        CHECK_EQ(told.largest_free_block, 4 * MIB);
        for (int i = 0; i < 3; i++) {
            let_go(held[i]);
        }
        end_stream(s.sim, other);
        end_stream(s.sim, own);
        close_site(s);
    }
}

/* What waits for a stream or belongs to a graph is neither used nor free. */
TEST(cause_counts_what_waits_and_what_is_recorded)
{
    site s = open_site(16 * MIB);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    gm_request wanted = {.size = 8 * MIB};
    gm_shortage told;
    holding pending = take_bytes(s.pool, 3 * MIB);

    let_go(take_for(s.pool, 5 * MIB, recorded.key));
    record(pending, other);
    queue_write(s.sim, pending, other);
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    let_go(take_for(s.pool, 5 * MIB, recorded.key));
    gm_capture_end(capture);
    let_go(pending);
    CHECK_EQ(gm_pool_reset_peaks(s.pool), GM_OK);
    CHECK_EQ(stats_of(s.pool).peak_pending_bytes, 3 * MIB);
    gm_pool_explain(s.pool, &wanted, GM_ERR_OUT_OF_MEMORY, &told);
    CHECK_EQ(told.pending_bytes, 8 * MIB);
    CHECK_EQ(told.used_bytes, 0);
    CHECK_EQ(told.cached_bytes, 0);
    CHECK_EQ(told.total_bytes, 8 * MIB);
    finish_stream(s.sim, other);
    CHECK_EQ(stats_of(s.pool).peak_pending_bytes, 3 * MIB);
    CHECK_EQ(gm_pool_reset_peaks(s.pool), GM_OK);
    CHECK_EQ(stats_of(s.pool).peak_pending_bytes, 0);
    gm_capture_release(capture);
    end_stream(s.sim, other);
    end_stream(s.sim, recorded);
    close_site(s);
}

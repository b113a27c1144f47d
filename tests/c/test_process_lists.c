/* SPDX-License-Identifier: MIT
 *
 * The process's lists of pools and of captures, and its flights, among threads: who
 * changes or walks a list waits for the end of a walk; the list of captures by itself;
 * how long a flight of another thread is waited for.
 */
#include "harness.h"

#include "core/gm_process.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* ---- locks ---- */

/* What another thread does while a walk is under way. */
typedef struct intruder {
    void (*act)(void);
    pthread_t thread;
    bool begun;
    atomic_bool arrived;
    atomic_bool done;
} intruder;

static intruder other;

static void *
intrude(void *context)
{
    atomic_store(&other.arrived, true);
    other.act();
    atomic_store(&other.done, true);
    return context;
}

/* Called with a list locked: starts the other thread, which must not get on. */
static void
let_it_try(void)
{
    if (other.begun) { // by then it is its own walk
        return;
    }
    other.begun = true;
    CHECK_EQ(pthread_create(&other.thread, NULL, intrude, NULL), 0);
    while (!atomic_load(&other.arrived)) {
        sched_yield();
    }
    for (int i = 0; i < 2000; i++) {
        sched_yield();
    }
    CHECK(!atomic_load(&other.done));
}

/* Begins `walk`, which calls let_it_try, and sees that `act` comes after it. */
static void
check_waits(void (*walk)(void), void (*act)(void))
{
    memset(&other, 0, sizeof other);
    other.act = act;
    walk();
    CHECK(other.begun);
    CHECK_EQ(pthread_join(other.thread, NULL), 0);
    CHECK(atomic_load(&other.done));
}

static gm_pool_link pools[2];

static bool
accept_pool(gm_pool_link *link)
{
    (void)link;
    let_it_try();
    return true;
}

static void
walk_pools(void)
{
    CHECK(gm_process_pool_next(0, accept_pool) == &pools[0]);
}

static void
join_pool(void)
{
    gm_process_pool_join(&pools[1]);
}

static void
leave_pool(void)
{
    gm_process_pool_leave(&pools[1]);
}

TEST(process_list_of_pools_is_locked_while_somebody_walks)
{
    gm_process_pool_join(&pools[0]);
    check_waits(walk_pools, walk_pools);
    check_waits(walk_pools, join_pool);
    check_waits(walk_pools, leave_pool);
    gm_process_pool_leave(&pools[0]);
}

static gm_capture_link captures[4];

static bool
accept_capture(gm_capture_link *link, void *context)
{
    (void)context;
    let_it_try();
    return link == &captures[0];
}

static bool
accept_none(gm_capture_link *link, void *context)
{
    (void)link;
    (void)context;
    return false;
}

static void
find_capture(void)
{
    CHECK(gm_process_capture_find(accept_capture, NULL) == &captures[0]);
}

static void
begin_clashing(void)
{
    CHECK(!gm_process_capture_begin(&captures[2], accept_capture, NULL));
}

static void
begin_capture(void)
{
    CHECK(gm_process_capture_begin(&captures[1], accept_none, NULL));
}

static void
end_capture(void)
{
    gm_process_capture_end(&captures[1]);
}

TEST(process_list_of_captures_is_locked_while_somebody_walks)
{
    CHECK(gm_process_capture_begin(&captures[0], accept_none, NULL));
    check_waits(find_capture, find_capture);
    check_waits(find_capture, begin_capture);
    check_waits(find_capture, end_capture);
    check_waits(begin_clashing, find_capture);
    gm_process_capture_end(&captures[0]);
}

/* ---- captures ---- */

static bool
is_the_one(gm_capture_link *link, void *context)
{
    return link == context;
}

static bool
is_listed(gm_capture_link *link)
{
    return gm_process_capture_find(is_the_one, link) == link;
}

/* In whichever order they end; what was in the links before is of no matter. */
TEST(process_list_of_captures)
{
    for (int first = 0; first < 4; first++) {
        for (int step = 1; step < 4; step += 2) { // 1 and 3 go round all four
            memset(captures, 0xAB, sizeof captures);
            for (int i = 0; i < 4; i++) {
                CHECK(!is_listed(&captures[i]));
                CHECK(gm_process_capture_begin(&captures[i], is_the_one, &captures[i]));
                CHECK(!gm_process_capture_begin(&captures[i], is_the_one, captures));
            }
            for (int i = 0; i < 4; i++) {
                gm_process_capture_end(&captures[(first + i * step) % 4]);
                for (int j = 0; j < 4; j++) {
                    CHECK_EQ(is_listed(&captures[(first + j * step) % 4]), j > i);
                }
                CHECK_EQ(gm_process_is_capturing(), i < 3);
            }
        }
    }
}

/* ---- flights ---- */

static atomic_bool ended;

/* Brief flights, one after the other, until told to end. */
static void *
fly(void *context)
{
    while (!atomic_load(&ended)) {
        gm_process_flight_begin();
        gm_process_flight_end();
        sched_yield();
    }
    return context;
}

TEST(process_flights_of_others_alone_are_counted_and_waited_for)
{
    uint64_t before = gm_process_flights_ended();
    pthread_t thread;

    gm_process_flight_begin();
    CHECK(!gm_process_flights_wait(before)); // nobody else's
    gm_process_flight_end();
    CHECK_EQ(gm_process_flights_ended(), before);
    CHECK(!gm_process_flights_wait(before));
    CHECK_EQ(pthread_create(&thread, NULL, fly, NULL), 0);
    while (gm_process_flights_ended() == before) {
        sched_yield();
    }
    CHECK(gm_process_flights_wait(before)); // one has ended since
    atomic_store(&ended, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!gm_process_flights_wait(gm_process_flights_ended()));
}

static atomic_bool begun;

static void *
fly_long(void *context)
{
    gm_process_flight_begin();
    atomic_store(&begun, true);
    while (!atomic_load(&ended)) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    gm_process_flight_end();
    return context;
}

static double
seconds(void)
{
    struct timespec now;

    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

TEST(process_flight_that_does_not_end_is_waited_for_a_second)
{
    pthread_t thread;
    double start;

    CHECK_EQ(pthread_create(&thread, NULL, fly_long, NULL), 0);
    while (!atomic_load(&begun)) {
        sched_yield();
    }
    start = seconds();
    CHECK(!gm_process_flights_wait(gm_process_flights_ended()));
    CHECK(seconds() - start > 0.9);
    atomic_store(&ended, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

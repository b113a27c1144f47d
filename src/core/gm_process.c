/* SPDX-License-Identifier: MIT
 *
 * State that belongs to the process: what is special, the host allocation seam, the
 * lists of pools and captures, the flights. The header says why; nothing else in the
 * core is global.
 */
#include "gm_process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h> // memset
#include <time.h>   // nanosleep, clock_gettime

atomic_uint gm_process_special;

static atomic_flag claimed = ATOMIC_FLAG_INIT;
static _Atomic(void *) binding_word;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static gm_host_fault host_fault;
static void *host_fault_context;

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static gm_pool_link *pools_first;
static gm_pool_link *pools_last;
static uint64_t pools_number;

static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static gm_capture_link *captures_first;

static atomic_size_t lingering;

/* Runs in the child, where only the forking thread exists: locks that another thread
 * held stay locked for ever and the device's handles are invalid, so nothing that was
 * made before may be touched. Installed with the first device: a child of a process
 * that never opened one is free to open its own. */
static void
process_forked(void)
{
    gm_process_special = GM_FORKED;
}

static void
process_install_fork_handler(void)
{
    /* Failing leaves a forked child unguarded, as it would be without this library. */
    (void)pthread_atfork(NULL, NULL, process_forked);
}

void
gm_process_opened(void)
{
    pthread_once(&fork_once, process_install_fork_handler);
}

bool
gm_process_claim(void)
{
    return !atomic_flag_test_and_set(&claimed);
}

void
gm_process_unclaim(void)
{
    atomic_flag_clear(&claimed);
}

void
gm_process_set_binding(void *binding)
{
    atomic_store(&binding_word, binding);
}

void *
gm_process_binding(void)
{
    return atomic_load_explicit(&binding_word, memory_order_acquire);
}

void
gm_process_exit(void)
{
    atomic_fetch_or(&gm_process_special, GM_EXITING);
}

gm_status
gm_process_status(void)
{
    unsigned bits = atomic_load(&gm_process_special);

    if (bits & GM_FORKED) { // whether it is exiting too makes no difference
        return GM_ERR_FORKED;
    }
    return bits & GM_EXITING ? GM_ERR_EXITING : GM_OK;
}

static bool
host_may_allocate(size_t size)
{
    return GM_LIKELY(!host_fault) || !host_fault(host_fault_context, size);
}

void *
gm_host_alloc(size_t size)
{
    return host_may_allocate(size) ? malloc(size) : NULL;
}

void *
gm_host_zalloc(size_t size)
{
    return host_may_allocate(size) ? calloc(1, size) : NULL;
}

void *
gm_host_alloc_aligned(size_t alignment, size_t size)
{
    return host_may_allocate(size) ? aligned_alloc(alignment, size) : NULL;
}

void *
gm_host_zalloc_aligned(size_t alignment, size_t size)
{
    void *ptr;

    if (alignment <= _Alignof(max_align_t)) {
        return gm_host_zalloc(size);
    }
    ptr = gm_host_alloc_aligned(alignment, size);
    return ptr ? memset(ptr, 0, size) : NULL;
}

void
gm_host_free(void *ptr)
{
    free(ptr);
}

void
gm_host_set_fault(gm_host_fault fault, void *context)
{
    host_fault = fault;
    host_fault_context = context;
}

uint64_t
gm_process_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); // it is always there
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void
gm_process_pool_join(gm_pool_link *link)
{
    pthread_mutex_lock(&pools_lock);
    link->number = ++pools_number;
    link->next = NULL;
    link->prev = pools_last;
    if (pools_last) {
        pools_last->next = link;
    }
    else {
        pools_first = link;
    }
    pools_last = link;
    pthread_mutex_unlock(&pools_lock);
}

void
gm_process_pool_leave(gm_pool_link *link)
{
    pthread_mutex_lock(&pools_lock);
    if (link->prev) {
        link->prev->next = link->next;
    }
    else {
        pools_first = link->next;
    }
    if (link->next) {
        link->next->prev = link->prev;
    }
    else {
        pools_last = link->prev;
    }
    pthread_mutex_unlock(&pools_lock);
}

gm_pool_link *
gm_process_pool_next(uint64_t after, bool (*hold)(gm_pool_link *link))
{
    gm_pool_link *link;

    pthread_mutex_lock(&pools_lock);
    for (link = pools_first; link; link = link->next) {
        if (link->number > after && hold(link)) {
            break;
        }
    }
    pthread_mutex_unlock(&pools_lock);
    return link;
}

/* ---- captures ---- */

static gm_capture_link *
capture_find_locked(bool (*match)(gm_capture_link *link, void *context), void *context)
{
    gm_capture_link *link = captures_first;

    while (link && !match(link, context)) {
        link = link->next;
    }
    return link;
}

bool
gm_process_capture_begin(gm_capture_link *link,
                         bool (*clashes)(gm_capture_link *other, void *context),
                         void *context)
{
    bool begun;

    pthread_mutex_lock(&captures_lock);
    begun = !capture_find_locked(clashes, context);
    if (begun) {
        link->prev = NULL;
        link->next = captures_first;
        if (captures_first) {
            captures_first->prev = link;
        }
        captures_first = link;
        atomic_fetch_or(&gm_process_special, GM_CAPTURING);
    }
    pthread_mutex_unlock(&captures_lock);
    return begun;
}

void
gm_process_capture_end(gm_capture_link *link)
{
    pthread_mutex_lock(&captures_lock);
    if (link->prev) {
        link->prev->next = link->next;
    }
    else {
        captures_first = link->next;
    }
    if (link->next) {
        link->next->prev = link->prev;
    }
    if (!captures_first) {
        atomic_fetch_and(&gm_process_special, ~(unsigned)GM_CAPTURING);
    }
    pthread_mutex_unlock(&captures_lock);
}

gm_capture_link *
gm_process_capture_find(bool (*match)(gm_capture_link *link, void *context),
                        void *context)
{
    gm_capture_link *link;

    pthread_mutex_lock(&captures_lock);
    link = capture_find_locked(match, context);
    pthread_mutex_unlock(&captures_lock);
    return link;
}

void
gm_process_linger(bool more)
{
    if (more) {
        atomic_fetch_add(&lingering, 1);
    }
    else {
        atomic_fetch_sub(&lingering, 1);
    }
}

bool
gm_process_is_anyone_lingering(void)
{
    return atomic_load_explicit(&lingering, memory_order_relaxed) != 0;
}

/* ---- flights ---- */

static atomic_size_t flights_under_way;
static _Atomic(uint64_t) flights_ended;

/* This thread's share of both. */
static _Thread_local size_t own_under_way;
static _Thread_local uint64_t own_ended;

enum {
    WAIT_FIRST = 20000,     // nanoseconds
    WAIT_LONGEST = 1000000, // a step
    WAIT_ALL = 1000000000,  // in all, while nothing happens
};

void
gm_process_flight_begin(void)
{
    own_under_way++;
    atomic_fetch_add(&flights_under_way, 1);
}

void
gm_process_flight_end(void)
{
    own_under_way--;
    own_ended++;
    /* In this order, so that whoever sees it gone also sees it ended. */
    atomic_fetch_add(&flights_ended, 1);
    atomic_fetch_sub(&flights_under_way, 1);
}

uint64_t
gm_process_flights_ended(void)
{
    return atomic_load(&flights_ended) - own_ended;
}

bool
gm_process_flights_wait(uint64_t ended)
{
    struct timespec pause = {.tv_nsec = WAIT_FIRST};
    long waited = 0;

    while (gm_process_flights_ended() == ended) {
        if (atomic_load(&flights_under_way) == own_under_way || waited >= WAIT_ALL) {
            return gm_process_flights_ended() != ended;
        }
        nanosleep(&pause, NULL);
        waited += pause.tv_nsec;
        if (pause.tv_nsec < WAIT_LONGEST) {
            pause.tv_nsec *= 2;
        }
    }
    return true;
}

/* SPDX-License-Identifier: MIT
 *
 * An upstream that keeps books: what it gave, that each piece comes back exactly once
 * and whole, that it is ended once and never called after that. It can be short of
 * memory, fail on demand, and call the test back from within a call.
 *
 * Addresses go downwards from piece to piece, so that placement by segment serial and
 * placement by address are not the same thing. Unless `backed` is set there is no
 * memory behind them, so sizes may be anything.
 *
 * Threading: any thread, any number of pools. The fields on top are set while no pool
 * runs; the books may be read while none does.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include "core/gm_pool.h"

#include <pthread.h>

typedef struct ledger ledger;

typedef struct ledger_piece {
    uintptr_t base;
    size_t size;
} ledger_piece;

struct ledger {
    size_t capacity; // bytes it can have out at once; 0 for no bound
    bool backed;     // with host memory behind the addresses
    size_t failures; // so many of the next takes fail,
    gm_status why;   // with this

    /* Called at the start of a take or a give, no lock of the ledger's held. */
    void (*on_take)(ledger *books, size_t size);
    void (*on_give)(ledger *books, size_t size);
    void *context;

    pthread_mutex_t lock;
    uintptr_t lowest; // address given last
    ledger_piece *out;
    size_t out_count, out_room;
    size_t bytes; // out now
    size_t peak;  // highest bytes so far
    size_t asked; // takes, failed ones included
    size_t takes; // that succeeded
    size_t gives;
    size_t pools; // made by ledger_pool
    size_t ends;
};

void ledger_init(ledger *books);

gm_upstream ledger_upstream(ledger *books);

/* A new pool over `books`. */
gm_pool *ledger_pool(ledger *books, int device);

/* Insists that all came back and every pool ended. */
void ledger_fini(ledger *books);

#endif

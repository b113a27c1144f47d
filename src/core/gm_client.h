/* SPDX-License-Identifier: MIT
 *
 * Clients: on whose account memory is in use, by name.
 *
 * Several libraries may share a pool. Each request carries the number of a client and
 * its block keeps that (gm_block.h), so that what is in use can be told apart by a walk
 * (gm_pool_count_clients). Names become numbers here, once, and stay for ever: a number
 * is never another name's.
 *
 * Cost: nothing on the path of a request. A look-up is a hash and a mutex, a leaf.
 * Threading: any thread.
 */
#ifndef GM_CLIENT_H
#define GM_CLIENT_H

#include "gm_status.h"

#include <pthread.h>

/* The program itself, and what it is called. */
#define GM_CLIENT_PROGRAM ((uint16_t)0)
#define GM_CLIENT_PROGRAM_NAME "gpumem"

enum {
    GM_CLIENTS_MAX = UINT16_MAX + 1,
    GM_CLIENT_BUCKETS = 64,
    GM_CLIENT_NAME_MAX = 255, // bytes
};

typedef struct gm_client gm_client;

typedef struct gm_clients {
    pthread_mutex_t lock;
    gm_client *buckets[GM_CLIENT_BUCKETS];
    gm_client **by_number; // `count` of them
    size_t count;
    size_t room;
} gm_clients;

/* GM_ERR_HOST_MEMORY: nothing was made. */
GM_MUST_CHECK gm_status gm_clients_init(gm_clients *clients);
void gm_clients_fini(gm_clients *clients);

/* The number of the client of that name, which gets one if it has none.
 * GM_ERR_INVALID_VALUE: the name is empty or longer than GM_CLIENT_NAME_MAX.
 * GM_ERR_TOO_LARGE: there are GM_CLIENTS_MAX already. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status gm_clients_find(gm_clients *clients,
                                        const char *name,
                                        size_t length,
                                        uint16_t *out);

/* How many there are; numbers are below that. */
size_t gm_clients_count(gm_clients *clients);

/* The name, terminated, of a number that gm_clients_find gave; it stays. */
const char *gm_clients_name(gm_clients *clients, uint16_t number);

#endif

/* SPDX-License-Identifier: MIT
 *
 * The names of clients: see the header. A hash table from name to number and an array
 * from number to name.
 */
#include "gm_client.h"

#include "gm_process.h" // gm_host_alloc

#include <string.h> // memcmp, memcpy, memset

struct gm_client {
    gm_client *next; // in its bucket
    uint16_t number;
    size_t length;
    char name[]; // terminated
};

/* FNV-1a. */
static size_t
bucket_of(const char *name, size_t length)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)name[i]) * UINT64_C(0x100000001b3);
    }
    return (size_t)(hash % GM_CLIENT_BUCKETS);
}

gm_status
gm_clients_init(gm_clients *clients)
{
    const char *program = GM_CLIENT_PROGRAM_NAME;
    uint16_t number;
    gm_status status;

    memset(clients, 0, sizeof *clients);
    pthread_mutex_init(&clients->lock, NULL); // cannot fail on Linux
    status = gm_clients_find(clients, program, strlen(program), &number);
    if (status != GM_OK) {
        gm_clients_fini(clients);
    }
    return status;
}

void
gm_clients_fini(gm_clients *clients)
{
    for (size_t i = 0; i < clients->count; i++) {
        gm_host_free(clients->by_number[i]);
    }
    gm_host_free(clients->by_number);
    pthread_mutex_destroy(&clients->lock);
}

/* Room for one number more. */
static bool
reserve_locked(gm_clients *clients)
{
    size_t room = clients->room ? 2 * clients->room : 8;
    gm_client **by_number;

    if (clients->count < clients->room) {
        return true;
    }
    by_number = gm_host_alloc(room * sizeof(gm_client *));
    if (!by_number) {
        return false;
    }
    if (clients->count) {
        memcpy(by_number, clients->by_number, clients->count * sizeof(gm_client *));
    }
    gm_host_free(clients->by_number);
    clients->by_number = by_number;
    clients->room = room;
    return true;
}

static gm_status
add_locked(gm_clients *clients,
           gm_client **bucket,
           const char *name,
           size_t length,
           gm_client **out)
{
    gm_client *client;

    if (clients->count == GM_CLIENTS_MAX) {
        return GM_ERR_TOO_LARGE;
    }
    client =
        reserve_locked(clients) ? gm_host_alloc(sizeof *client + length + 1) : NULL;
    if (!client) {
        return GM_ERR_HOST_MEMORY;
    }
    client->next = *bucket;
    client->number = (uint16_t)clients->count;
    client->length = length;
    memcpy(client->name, name, length);
    client->name[length] = '\0';
    clients->by_number[clients->count++] = client;
    *bucket = client;
    *out = client;
    return GM_OK;
}

gm_status
gm_clients_find(gm_clients *clients, const char *name, size_t length, uint16_t *out)
{
    gm_client **bucket = &clients->buckets[bucket_of(name, length)];
    gm_status status = GM_OK;
    gm_client *client;

    if (length == 0 || length > GM_CLIENT_NAME_MAX) {
        return GM_ERR_INVALID_VALUE;
    }
    pthread_mutex_lock(&clients->lock);
    client = *bucket;
    while (client &&
           (client->length != length || memcmp(client->name, name, length) != 0)) {
        client = client->next;
    }
    if (!client) {
        status = add_locked(clients, bucket, name, length, &client);
    }
    if (status == GM_OK) {
        *out = client->number;
    }
    pthread_mutex_unlock(&clients->lock);
    return status;
}

size_t
gm_clients_count(gm_clients *clients)
{
    size_t count;

    pthread_mutex_lock(&clients->lock);
    count = clients->count;
    pthread_mutex_unlock(&clients->lock);
    return count;
}

const char *
gm_clients_name(gm_clients *clients, uint16_t number)
{
    const char *name;

    pthread_mutex_lock(&clients->lock);
    GM_ASSERT(number < clients->count);
    name = clients->by_number[number]->name;
    pthread_mutex_unlock(&clients->lock);
    return name;
}

/* SPDX-License-Identifier: MIT
 *
 * Names of clients: a number each, for ever; what is refused; what is counted of each.
 */
#include "holding.h"

#include "core/gm_client.h"

#include <string.h>

static uint16_t
number_of(gm_clients *clients, const char *name)
{
    uint16_t number = UINT16_MAX;

    CHECK_EQ(gm_clients_find(clients, name, strlen(name), &number), GM_OK);
    return number;
}

TEST(client_a_name_has_one_number)
{
    gm_clients clients;

    CHECK_EQ(gm_clients_init(&clients), GM_OK);
    CHECK_EQ(number_of(&clients, GM_CLIENT_PROGRAM_NAME), GM_CLIENT_PROGRAM);
    CHECK_EQ(number_of(&clients, "torch"), 1);
    CHECK_EQ(number_of(&clients, "torc"), 2);
    CHECK_EQ(number_of(&clients, "torch"), 1);
    CHECK_EQ(gm_clients_count(&clients), 3);
    CHECK(strcmp(gm_clients_name(&clients, 2), "torc") == 0);
    gm_clients_fini(&clients);
}

TEST(client_names_that_cannot_be)
{
    char name[GM_CLIENT_NAME_MAX + 1];
    gm_clients clients;
    uint16_t number = 77;

    memset(name, 'x', sizeof name);
    CHECK_EQ(gm_clients_init(&clients), GM_OK);
    CHECK_EQ(gm_clients_find(&clients, name, 0, &number), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_clients_find(&clients, name, sizeof name, &number),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(number, 77);
    CHECK_EQ(gm_clients_find(&clients, name, sizeof name - 1, &number), GM_OK);
    CHECK_EQ(strlen(gm_clients_name(&clients, number)), GM_CLIENT_NAME_MAX);
    gm_clients_fini(&clients);
}

TEST(client_there_are_as_many_as_a_block_can_tell_apart)
{
    gm_clients clients;
    uint16_t number = 0;
    char name[16];

    CHECK_EQ(gm_clients_init(&clients), GM_OK);
    for (int i = 1; i < GM_CLIENTS_MAX; i++) {
        (void)snprintf(name, sizeof name, "client %d", i);
        CHECK_EQ(number_of(&clients, name), i);
    }
    CHECK_EQ(gm_clients_find(&clients, "more", 4, &number), GM_ERR_TOO_LARGE);
    CHECK_EQ(number_of(&clients, "client 65535"), UINT16_MAX);
    CHECK(strcmp(gm_clients_name(&clients, 40000), "client 40000") == 0);
    gm_clients_fini(&clients);
}

typedef struct countdown {
    int left;
} countdown;

static bool
refuse_one(void *context, size_t size)
{
    countdown *c = context;

    (void)size;
    return c->left-- == 0;
}

/* Whichever allocation fails, nothing is left and the next attempt succeeds. */
TEST(client_without_host_memory)
{
    for (int n = 0;; n++) {
        countdown c = {n};
        gm_clients clients;
        uint16_t number = 77;
        gm_status status;

        gm_host_set_fault(refuse_one, &c);
        status = gm_clients_init(&clients);
        if (status == GM_OK) {
            for (int i = 0; i < 8 && status == GM_OK; i++) { // so that it grows
                status = gm_clients_find(&clients, "abcdefgh" + i, 1, &number);
            }
            gm_host_set_fault(NULL, NULL);
            CHECK_EQ(gm_clients_find(&clients, "h", 1, &number), GM_OK);
            CHECK_EQ(number, gm_clients_count(&clients) - 1);
            gm_clients_fini(&clients);
        }
        gm_host_set_fault(NULL, NULL);
        CHECK(status == GM_OK || status == GM_ERR_HOST_MEMORY);
        if (status == GM_OK) {
            CHECK_EQ(n, 2 + 8 + 1); // arrays of 8 and 16, and 9 names
            return;
        }
    }
}

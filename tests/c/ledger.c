/* SPDX-License-Identifier: MIT
 *
 * The upstream that keeps books. See ledger.h.
 */
#include "ledger.h"

#include "harness.h"

#include <stdlib.h>

#define HIGHEST ((uintptr_t)1 << 62)

void
ledger_init(ledger *books)
{
    *books = (ledger){.lowest = HIGHEST};
    CHECK_EQ(pthread_mutex_init(&books->lock, NULL), 0);
}

/* An address nobody has; a gap below it, so that no two pieces meet. */
static uintptr_t
new_address(ledger *books, size_t size)
{
    if (books->backed) {
        return (uintptr_t)aligned_alloc(GM_UNIT, size);
    }
    books->lowest -= size + GM_UNIT;
    return books->lowest;
}

static void
note_piece(ledger *books, ledger_piece piece)
{
    if (books->out_count == books->out_room) {
        books->out_room = 2 * books->out_room + 16;
        books->out = realloc(books->out, books->out_room * sizeof *books->out);
        CHECK(books->out != NULL);
    }
    books->out[books->out_count++] = piece;
}

static gm_status
ledger_take(void *context, int device, size_t size, gm_piece *out)
{
    ledger *books = context;
    gm_status status = GM_OK;

    (void)device;
    if (books->on_take != NULL) {
        books->on_take(books, size);
    }
    pthread_mutex_lock(&books->lock);
    CHECK(size > 0 && size % GM_UNIT == 0);
    CHECK(books->ends < books->pools);
    books->asked++;
    if (books->failures > 0) {
        books->failures--;
        status = books->why;
    }
    else if (books->capacity > 0 &&
             (size > books->capacity || books->bytes > books->capacity - size)) {
        status = GM_ERR_OUT_OF_MEMORY;
    }
    else {
        *out = (gm_piece){.base = new_address(books, size), .size = size};
        CHECK(out->base != 0);
        note_piece(books, (ledger_piece){out->base, size});
        books->takes++;
        books->bytes += size;
        books->peak = books->bytes > books->peak ? books->bytes : books->peak;
    }
    pthread_mutex_unlock(&books->lock);
    return status;
}

static void
ledger_give(void *context, int device, const gm_piece *piece)
{
    ledger *books = context;
    size_t i = 0;

    (void)device;
    if (books->on_give != NULL) {
        books->on_give(books, piece->size);
    }
    pthread_mutex_lock(&books->lock);
    CHECK(books->ends < books->pools);
    while (i < books->out_count && books->out[i].base != piece->base) {
        i++;
    }
    CHECK(i < books->out_count); // else it was not out
    CHECK_EQ(piece->size, books->out[i].size);
    books->out[i] = books->out[--books->out_count];
    books->gives++;
    books->bytes -= piece->size;
    if (books->backed) {
        free((void *)piece->base);
    }
    pthread_mutex_unlock(&books->lock);
}

static void
ledger_end(void *context)
{
    ledger *books = context;

    pthread_mutex_lock(&books->lock);
    books->ends++;
    CHECK(books->ends <= books->pools);
    pthread_mutex_unlock(&books->lock);
}

/* Like a device: what it takes from is nobody else's pool. */
static gm_status
ledger_room(void *context, int device, const gm_range *back, size_t count, gm_room *out)
{
    (void)context;
    (void)device;
    (void)back;
    (void)count;
    (void)out;
    return GM_ERR_UNSUPPORTED;
}

gm_upstream
ledger_upstream(ledger *books)
{
    return (gm_upstream){
        .context = books,
        .take = ledger_take,
        .give = ledger_give,
        .room = ledger_room,
        .end = ledger_end,
    };
}

gm_pool *
ledger_pool(ledger *books, int device)
{
    gm_pool *pool = NULL;

    CHECK_EQ(gm_pool_new(device, ledger_upstream(books), &pool), GM_OK);
    pthread_mutex_lock(&books->lock);
    books->pools++;
    pthread_mutex_unlock(&books->lock);
    return pool;
}

void
ledger_fini(ledger *books)
{
    CHECK_EQ(books->ends, books->pools);
    CHECK_EQ(books->out_count, 0);
    CHECK_EQ(books->bytes, 0);
    CHECK_EQ(books->gives, books->takes);
    free(books->out);
    pthread_mutex_destroy(&books->lock);
}

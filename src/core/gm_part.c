/* SPDX-License-Identifier: MIT
 *
 * Parts: the private memory of a capture, for one stream in one pool.
 *
 * A part gets blocks from its stream's arena and keeps those that are dropped in an
 * index of its own, joined with neighbours of the same part. Live ones are NOTED, and
 * their note names the part; those that are not live are CAPTURED and carry its number.
 * The part's own note collects the streams its graph was launched on. When the graph is
 * gone and these are done, the part ends: what is not live returns to the arenas, and
 * what is does so when it is dropped. The struct goes with its last member.
 *
 * Cost: a request is two looks in an index and one host allocation. Threading: as
 * gm_pool.c; functions without _locked take the lock themselves.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

/* ---- life ---- */

static gm_part *
find_locked(const gm_pool *pool, const gm_capture *capture, gm_stream_key key)
{
    gm_part *part = pool->parts;

    while (part && (part->capture != capture || part->key != key)) {
        part = part->next;
    }
    return part;
}

static bool
has_number_locked(const gm_pool *pool, uint16_t number)
{
    const gm_part *part = pool->parts;

    while (part && part->number != number) {
        part = part->next;
    }
    return part != NULL;
}

static void
take_number_locked(gm_pool *pool, gm_part *part)
{
    do {
        part->number = ++pool->next_part;
    } while (part->number == 0 || has_number_locked(pool, part->number));
}

static gm_part *
make_locked(gm_pool *pool, const gm_capture *capture, gm_stream_key key)
{
    gm_note *note = gm_note_new(GM_NOTE_PART);
    gm_part *part = note ? gm_host_zalloc(sizeof(*part)) : NULL;

    if (!part) {
        gm_host_free(note);
        return NULL;
    }
    note->part = part;
    gm_note_link_locked(pool, note);
    part->capture = capture;
    part->key = key;
    part->note = note;
    take_number_locked(pool, part);
    part->next = pool->parts;
    pool->parts = part;
    return part;
}

static void
free_if_empty_locked(gm_pool *pool, gm_part *part)
{
    gm_part **link = &pool->parts;

    if (!part->ended || part->members > 0) {
        return;
    }
    while (*link != part) {
        link = &(*link)->next;
    }
    *link = part->next;
    gm_host_free(part);
}

/* ---- blocks ---- */

/* Puts a block among those that are free for the graph, joined with its neighbours. */
static void
cache_locked(gm_pool *pool, gm_part *part, gm_block *block)
{
    gm_block *next = block->next;
    gm_block *prev = block->prev;

    pool->stats.captured_bytes += block->size;
    pool->stats.captured_blocks++;
    if (next && next->state == GM_BLOCK_CAPTURED && next->client == part->number) {
        gm_index_remove(&part->index, next);
        gm_block_absorb_next(block);
        gm_block_give(&pool->store, next);
        pool->stats.captured_blocks--;
        pool->stats.merges++;
    }
    if (prev && prev->state == GM_BLOCK_CAPTURED && prev->client == part->number) {
        gm_index_remove(&part->index, prev);
        gm_block_absorb_next(prev);
        gm_block_give(&pool->store, block);
        pool->stats.captured_blocks--;
        pool->stats.merges++;
        block = prev;
    }
    block->state = GM_BLOCK_CAPTURED;
    block->client = part->number;
    gm_index_put(&part->index, block);
}

void
gm_part_leave_locked(gm_pool *pool, gm_part *part)
{
    part->members--;
    free_if_empty_locked(pool, part);
}

void
gm_part_forget_locked(gm_pool *pool, gm_block *block)
{
    gm_part *part = pool->parts;

    while (part->number != block->client) {
        part = part->next;
    }
    gm_index_remove(&part->index, block);
    pool->stats.captured_bytes -= block->size;
    pool->stats.captured_blocks--;
}

bool
gm_part_put_locked(gm_pool *pool, gm_part *part, gm_block *block)
{
    part->members--;
    if (part->ended) {
        free_if_empty_locked(pool, part);
        return false;
    }
    cache_locked(pool, part, block);
    return true;
}

/* A free block of the graph or, failing that, of its stream, no longer in an index;
 * NULL for none. The store is prepared. */
static gm_block *
take_block_locked(gm_pool *pool, gm_part *part, size_t rounded)
{
    gm_block *block = gm_index_best(&part->index, rounded);
    gm_arena *arena;

    if (block) {
        if (!gm_pool_carve_locked(pool, &part->index, block, rounded)) {
            pool->stats.captured_blocks--;
        }
        pool->stats.captured_bytes -= rounded;
        return block;
    }
    arena = gm_arena_search(&pool->arenas, part->key);
    block = arena ? gm_index_best(&arena->index, rounded) : NULL;
    if (block) {
        (void)gm_pool_carve_locked(pool, &arena->index, block, rounded);
    }
    return block;
}

/* The part, made where there is none. GM_ERR_HOST_MEMORY; GM_ERR_CAPTURING: the capture
 * was released meanwhile by another thread. */
static gm_status
get_locked(gm_pool *pool, const gm_capture *capture, gm_stream_key key, gm_part **out)
{
    gm_part *part = find_locked(pool, capture, key);

    if (!part) {
        if (gm_capture_is_released(capture)) {
            return GM_ERR_CAPTURING;
        }
        part = make_locked(pool, capture, key);
    }
    *out = part;
    return part ? GM_OK : GM_ERR_HOST_MEMORY;
}

/* Makes a live block a member; takes the note over. */
static void
join_locked(gm_pool *pool, gm_part *part, gm_block *block, gm_note *note)
{
    gm_pool_note_block_locked(pool, block, note);
    note->part = part;
    part->members++;
}

/* The request, with `note` for its block, which is taken over on success. */
static gm_status
malloc_locked(gm_pool *pool,
              const gm_capture *capture,
              const gm_request *request,
              gm_note *note,
              gm_block **out)
{
    gm_part *part = NULL;
    gm_block *block;
    gm_status status = get_locked(pool, capture, request->key, &part);

    if (status != GM_OK) {
        return status;
    }
    if (!gm_block_store_prepare(&pool->store)) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_pool_note_cached_locked(pool);
    block = take_block_locked(pool, part, gm_size_round(request->size));
    if (!block) {
        return GM_ERR_CAPTURING;
    }
    pool->stats.hits++;
    gm_pool_hand_out_locked(pool, block, request);
    join_locked(pool, part, block, note);
    *out = block;
    return GM_OK;
}

gm_status
gm_part_malloc(gm_pool *pool,
               gm_capture *capture,
               const gm_request *request,
               gm_block **out)
{
    gm_note *note = gm_note_new(GM_NOTE_BLOCK);
    gm_status status;

    if (!note) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_pool_lock(pool);
    status = malloc_locked(pool, capture, request, note, out);
    gm_pool_unlock(pool);
    if (status != GM_OK) {
        gm_host_free(note);
    }
    return status;
}

/* Takes the note over where it succeeds. */
static gm_status
adopt_locked(gm_pool *pool,
             const gm_capture *capture,
             const gm_request *request,
             gm_block *block,
             gm_note *note)
{
    gm_part *part = NULL;
    gm_status status = GM_ERR_CAPTURING;

    if (block->state ==
        GM_BLOCK_LIVE) { // else it is lent: nothing is recorded any more
        status = get_locked(pool, capture, request->key, &part);
    }
    if (status == GM_OK) {
        join_locked(pool, part, block, note);
    }
    return status;
}

gm_status
gm_part_adopt(gm_pool *pool,
              const gm_capture *capture,
              const gm_request *request,
              gm_block *block)
{
    gm_note *note = gm_note_new(GM_NOTE_BLOCK);
    gm_status status = GM_ERR_HOST_MEMORY;

    if (note) {
        gm_pool_lock(pool);
        status = adopt_locked(pool, capture, request, block, note);
        gm_pool_unlock(pool);
    }
    if (status != GM_OK) {
        gm_host_free(note);
        gm_pool_free(pool, block, block->generation);
    }
    return status;
}

/* ---- the graph ---- */

/* The next part of a capture that was not released, after `after`. */
static gm_part *
next_of_locked(const gm_pool *pool, const gm_capture *capture, const gm_part *after)
{
    gm_part *part = after ? after->next : pool->parts;

    while (part && part->capture != capture) {
        part = part->next;
    }
    return part;
}

gm_status
gm_part_launched(gm_pool *pool, const gm_capture *capture, const gm_stream_use *by)
{
    gm_mark *mark = NULL;
    gm_status status = GM_OK;
    gm_part *part;

    gm_pool_lock(pool);
    part = next_of_locked(pool, capture, NULL);
    gm_pool_leave(pool);
    if (part && !by->announced) {
        status = gm_mark_record(pool, by, &mark);
    }
    if (!part || status != GM_OK) {
        return status;
    }
    gm_pool_lock(pool);
    while (part && status == GM_OK) { // it stayed: the capture is released later
        gm_use *use = gm_use_new(by);

        if (use) {
            use->mark = mark;
            if (mark) {
                mark->refs++;
            }
            gm_note_give_use_locked(pool, part->note, use);
        }
        status = use ? GM_OK : GM_ERR_HOST_MEMORY;
        part = next_of_locked(pool, capture, part);
    }
    gm_mark_drop_locked(pool, mark);
    gm_pool_leave(pool);
    return status;
}

void
gm_part_release(gm_pool *pool, const gm_capture *capture)
{
    gm_part *part;

    gm_pool_lock(pool);
    while ((part = next_of_locked(pool, capture, NULL)) != NULL) {
        part->capture = NULL;
        gm_pool_drop_note_locked(pool, part->note); // may end the part
    }
    gm_pool_leave(pool);
}

size_t
gm_part_end_locked(gm_pool *pool, gm_part *part)
{
    size_t bytes = 0;

    while (part->index.groups) {
        gm_block *block = gm_index_best(&part->index, GM_UNIT);

        gm_index_remove(&part->index, block);
        bytes += block->size;
        pool->stats.captured_bytes -= block->size;
        pool->stats.captured_blocks--;
        gm_pool_cache_locked(pool, block);
    }
    part->ended = true;
    free_if_empty_locked(pool, part);
    return bytes;
}

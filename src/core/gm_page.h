/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory page by page: addresses and the memory behind them come apart.
 *
 * A space is a segment of reserved addresses, far more than the device has memory. A
 * page is physical memory that the device made in one piece, one or more grains of it;
 * it is mapped as a whole. A place is where a page is mapped. A page may have many
 * places and is used at one of them, its home; the others are echoes of earlier homes.
 * The blocks of a space tile it like those of any segment: a block that holds bytes
 * lies on homes from end to end; where there is nothing that could be used is a HOLE,
 * which consists of whole places whose pages are at home elsewhere and of grains that
 * were never mapped. The last block of a space is always a hole, its open end.
 *
 * Moving memory. A page that lies in free memory as a whole can serve a request
 * somewhere else: it is mapped there as well, which becomes its home, and where it was
 * becomes a hole. Nothing is copied, and nothing is unmapped, so nothing is waited for:
 * the block's own stream runs in order, and another stream is made to wait for an event
 * recorded on the first one then, if anything is under way there. The old place stays
 * mapped for its own sake: a program that repeats itself wants the page there again,
 * and to make it the home once more takes no call of the driver at all. So the calls
 * that a program needs to run in little memory are made once, and not each time around.
 *
 * Sizes. A call costs the same whatever the size of its page, so pages are as large as
 * what was missing, but a small share of what the pool holds, since a page is pinned by
 * the smallest live block in it: gm_remap_plan.c says how small, and why. They are
 * powers of two in grains, so that the pages of one hole fill another.
 *
 * Giving back. A page in free memory goes back to the device when all its places are
 * unmapped, which acts in host time: so not before an event that is recorded on its
 * stream when that is decided. Until then its bytes are on their way out (gm_release.c)
 * and its block is MOVING.
 *
 * Files: gm_space.c blocks and holes; gm_page.c pages, places and which of them lie in
 * free memory; gm_window.c where a request goes; gm_fill.c which pages come there; the
 * gm_remap files what is planned and the calls for it; gm_peer.c which other devices
 * reach them; gm_echo.c the end of old places; gm_release.c giving back.
 *
 * Cost: a request that is served from free memory knows nothing of all this. One that
 * is not looks at all free blocks of a grain and more, and at all holes of its stream.
 * A place is 80 bytes and 8 a grain of host memory, a page 104.
 *
 * A device that is reset leaves all this as it is: it belongs to the process.
 *
 * Threading: caller holds the pool's lock, unless a function says that it calls the
 * device. What this does not do: move bytes that are live, or part of a page.
 */
#ifndef GM_PAGE_H
#define GM_PAGE_H

#include "gm_block.h"
#include "gm_note.h" // gm_mark

typedef struct gm_page gm_page;
typedef struct gm_place gm_place;

struct gm_place {
    uintptr_t addr;
    gm_segment *segment;
    gm_page *page;
    gm_place *next;  // of the same page
    gm_place *older; // an echo: the pool's list, by when it was left;
    gm_place *newer; // ending: `older` is the next of those
    gm_block *block; // ending: its addresses
    gm_mark *mark;   // ending: its last use; NULL: that is done
    bool echo;       // it is on that list
    bool ending;     // it is given up, and no part of its page any more
    bool unmapped;   // on the page's way back: this part is done
};

struct gm_page {
    gm_handle handle;
    size_t size;      // bytes; a power of two in grains
    gm_place *home;   // where it is used
    gm_place *places; // where it is mapped, `home` among them
    gm_page *prev;    // the pool's list
    gm_page *next;
    uint64_t look;   // number of the look that found it in free memory
    gm_block *block; // which block it lay in then; LEAVING: the one it leaves behind
    bool taken;      // somebody moves it or gives it back just now
    size_t ending;   // places that are given up and still mapped
    gm_mark *mark;   // LEAVING: its last use; NULL: only the whole device can tell
    gm_page *behind; // next of its class in a look; next of those that leave
};

/* The page map of a segment. */
struct gm_space {
    gm_place **at;   // by grain from the segment's base: what is mapped there, or NULL
    size_t count;    // of `at`; nothing was ever mapped above
    size_t bytes;    // of the pages at home here
    gm_block *holes; // its HOLE blocks
    bool awaited;    // the request that had it made is not served yet
};

/* The memory that a segment holds. */
static inline size_t
gm_segment_bytes(const gm_segment *segment)
{
    return segment->space ? segment->space->bytes : segment->size;
}

/* Pages of 2^i grains, i below this. */
enum {
    GM_PAGE_CLASSES = 8
};

/* What a look found: the pages in free memory, by class. */
typedef struct gm_look {
    uint64_t number;
    gm_page *pages[GM_PAGE_CLASSES]; // by `behind`
    gm_page *last[GM_PAGE_CLASSES];
    size_t bytes;
} gm_look;

/* Where there are more places than so many a page, and these, echoes end. */
enum {
    GM_PLACES = 8,
    GM_PLACES_SPARE = 256
};

/* What a pool knows of its pages. */
typedef struct gm_paging {
    bool on;
    size_t grain;     // bytes; 0 until it was asked for
    size_t reach;     // bytes of addresses that a new space gets
    size_t room;      // what the device had when asked last, less what was made since
    size_t plenty;    // where it has that much more than is needed it is not asked
    gm_page *pages;   // all, in no order
    gm_page *leaving; // those on their way back, by `behind`
    gm_place *oldest; // of the echoes
    gm_place *newest;
    size_t echoes;
    gm_place *ending; // places that were given up, by `older`
    uint64_t looks;   // so far
    size_t high;      // the most that was in use, as far as misses saw it
    size_t withheld;  // bytes of pages in MOVING blocks: held, but not counted in total
    uint64_t life;    // of the device, as far as its resets were noticed; 0: not known
    size_t in_flight; // requests that map pages just now, and releases
    size_t waiting;   // releases among them that wait for the whole device
    uint64_t peers;   // a bit a device: those that what is mapped is open to
    bool opening;     // somebody opens what is mapped to one more
    size_t unmapping; // threads that have mappings in hand to unmap; not both
} gm_paging;

/* ---- gm_space.c ---- */

/* Makes a segment of `size` reserved addresses at `base` a space of `arena`, whose pin
 * it takes over, one hole from end to end. NULL: no host memory. */
gm_segment *
gm_space_new_locked(gm_pool *pool, gm_arena *arena, uintptr_t base, size_t size);

/* Takes an empty space out of the pool; its addresses are then the caller's to give
 * back, and the segment to free. */
void gm_space_unlink_locked(gm_pool *pool, gm_segment *segment);

/* Frees the page map of a segment that is in no pool any more, if it has one. */
void gm_space_free(gm_segment *segment);

/* Whether nothing is in a space, nor about to be, but its open end without a place in
 * it. */
bool gm_space_is_empty(const gm_segment *segment);

/* Room in `at` for the addresses below `end`. False: no host memory. */
GM_MUST_CHECK bool
gm_space_prepare(const gm_pool *pool, gm_segment *segment, uintptr_t end);

/* Takes `size` bytes at `addr` out of the free block, or the hole, that they lie in;
 * they are then a MOVING block. Bytes are not counted. At most two spare nodes. */
gm_block *
gm_space_take_locked(gm_pool *pool, gm_block *block, uintptr_t addr, size_t size);

/* The MOVING block becomes free memory of its arena, or a hole; joined with its
 * neighbours. Bytes are not counted. */
void gm_space_put_free_locked(gm_pool *pool, gm_block *block);
void gm_space_put_hole_locked(gm_pool *pool, gm_block *block);

/* The block at or above `from` in its segment that `addr` lies in. */
gm_block *gm_space_find(gm_block *from, uintptr_t addr);

static inline bool
gm_space_is_end(const gm_block *block)
{
    return !block->next;
}

/* ---- gm_page.c ---- */

/* What is mapped at an address of a space; NULL for nothing. */
gm_place *gm_place_at(const gm_pool *pool, const gm_segment *segment, uintptr_t addr);

/* Registers a place, whose page has it from now on. The space is prepared. */
void gm_place_link_locked(gm_pool *pool, gm_place *place);

/* Nothing is mapped there any more. The place is its page's no longer. */
void gm_place_forget_locked(gm_pool *pool, const gm_place *place);

/* Puts a place that is no home on the list of echoes, as the newest; or takes it off.
 */
void gm_echo_list_locked(gm_pool *pool, gm_place *place);
void gm_echo_unlist_locked(gm_pool *pool, gm_place *place);

/* Forgets all places of a page, which are unmapped, and frees them. */
void gm_page_drop_places_locked(gm_pool *pool, gm_page *page);

void gm_page_link_locked(gm_pool *pool, gm_page *page);
void gm_page_unlink_locked(gm_pool *pool, gm_page *page);

/* The page is at home at that place of its own from now on. */
void gm_page_settle_at_locked(gm_pool *pool, gm_page *page, gm_place *place);

/* The class of a page of that size. */
unsigned gm_page_class(const gm_pool *pool, size_t size);

/* Begins a look; adds the pages that lie in free memory of `arena`. */
void gm_look_begin_locked(gm_pool *pool, gm_look *look);
void gm_look_add_locked(gm_pool *pool, gm_look *look, const gm_arena *arena);

/* Whether the look found that page, and nobody took it since. */
static inline bool
gm_look_has(const gm_look *look, const gm_page *page)
{
    return page->look == look->number && !page->taken;
}

/* ---- gm_window.c ---- */

/* What it costs a request to be placed somewhere, in some unit. */
typedef struct gm_window_costs {
    size_t grain; // that has to be mapped; 0: none may be
    size_t echo;  // that has to become a home again; 0: none may
} gm_window_costs;

/* Where a request could go. */
typedef struct gm_window {
    gm_segment *segment; // NULL: nowhere
    gm_block *first;     // the free block or hole that it begins in
    uintptr_t addr;
    size_t cost;
    size_t run; // bytes of the free memory and holes that it lies in
} gm_window;

/* The cheapest place for `rounded` bytes in the spaces of `arena`, with the pages of
 * `look` for the echoes. */
void gm_window_find_locked(gm_pool *pool,
                           const gm_arena *arena,
                           size_t rounded,
                           const gm_look *look,
                           const gm_window_costs *costs,
                           gm_window *out);

/* The largest request of `arena`, NULL for one that has no memory yet, that the pages
 * in free memory, of whichever stream, and `made` bytes of new ones could serve. */
size_t gm_window_largest_locked(gm_pool *pool, const gm_arena *arena, size_t made);

/* The window at the open end of a space, with the free memory below it. */
void gm_window_at_end_locked(gm_pool *pool, gm_segment *segment, gm_window *out);

/* ---- gm_fill.c ---- */

/* A page that comes to a window. */
typedef struct gm_move gm_move;
struct gm_move {
    gm_page *page;
    gm_place *place;     // where it will be at home
    gm_block *arrival;   // the MOVING block there
    gm_block *departure; // the one where it was; NULL: the page is to be made
    bool map;            // the place is new
    bool done;           // all calls for it succeeded
};

/* What is to be done to serve a request. Everything it names is taken out of the hands
 * of others, and all host memory that carrying it out needs is there. */
typedef struct gm_plan {
    gm_segment *segment;
    gm_arena *arena; // pinned
    size_t rounded;
    uintptr_t addr;    // of the request
    gm_block *first;   // lowest block of the window, MOVING
    uintptr_t end;     // of the window
    size_t withheld;   // bytes of free memory that were taken for it
    uint64_t peers;    // that what it maps is opened to
    size_t created;    // bytes of pages to be made
    gm_move *moves;    //
    size_t count;      // of these
    size_t room;       //
    gm_arena **owners; // of the pages that come from other arenas, each once
    size_t owner_count;
    gm_block *spare[2]; // for what is left over at both ends
} gm_plan;

/* How many pages may be made; those of the look may come from wherever they lie. */
typedef struct gm_sources {
    size_t ahead;  // bytes, before any page moves
    size_t budget; // bytes, at all
    size_t most;   // bytes of one page that is made, a power of two in grains
    bool whole;    // the last one may be larger than what is missing, if it comes ahead
} gm_sources;

/* Chooses pages for all of the window that lies in holes, and takes them and the window
 * out of the hands of others. GM_MISS: there are none; GM_ERR_HOST_MEMORY. Then nothing
 * changed. */
gm_status gm_fill_locked(gm_pool *pool,
                         const gm_window *window,
                         size_t rounded,
                         const gm_look *look,
                         const gm_sources *sources,
                         gm_plan *out);

/* All moves are done: the window is free memory from end to end, of which the request's
 * block is returned, MOVING. */
gm_block *gm_plan_commit_locked(gm_pool *pool, gm_plan *plan);

/* Some are not: those pages, and what they were to serve, are what they were before;
 * the others are free memory at their new place. */
void gm_plan_abort_locked(gm_pool *pool, gm_plan *plan);

/* ---- gm_remap.c ---- */

/* One attempt to serve the request by pages, after the cache had nothing. As
 * gm_pool_attempt. */
gm_status gm_remap_attempt(gm_pool *pool,
                           const gm_request *request,
                           const gm_rescue *rescue,
                           bool forbidden,
                           gm_block **out);

/* ---- gm_peer.c ---- */

/* The devices that were let reach what is on `device`, a bit each. Calls the device. */
uint64_t gm_peers_enabled(const gm_backend *b, int device);

/* Opens a mapping to those devices. Calls the device. */
gm_status
gm_peers_open(const gm_backend *b, uintptr_t addr, size_t size, uint64_t peers);

/* ---- gm_echo.c ---- */

/* Where there are too many echoes, gives up those that were left longest ago. */
void gm_echoes_prune(gm_pool *pool);

/* Gives up all in the spaces of that stream. True where there were any; those that are
 * done are gone then. */
bool gm_echoes_clear(gm_pool *pool, gm_stream_key key);

/* Unmaps those that were given up, as far as their last use is done. */
void gm_echoes_settle(gm_pool *pool);

/* ---- gm_release.c ---- */

/* Gives pages in free memory back to the device, of one stream or with NULL of all, as
 * far as what the pool holds does not come below `floor`: at once where their last use
 * is done, the others when it is. Returns the bytes that went. Does not wait, unless a
 * stream is gone or no mark can be had. */
size_t gm_pages_release(gm_pool *pool, const gm_stream_key *key, size_t floor);

/* The same with all of it. True where something went, if only addresses. */
bool gm_pages_close(gm_pool *pool);

/* Locks, when nobody opens what is mapped to another device. */
void gm_pages_lock_to_unmap(gm_pool *pool);

/* What the caller took out of the pool's lists is unmapped from here, which is a flight
 * of the process, to the end of it, which unlocks. */
void gm_pages_begin_to_unmap_locked(gm_pool *pool);
void gm_pages_end_to_unmap(gm_pool *pool);

/* Gives back what was to go and is done; with `wait`, waits for it first, with nothing
 * in hand. Returns bytes. */
size_t gm_pages_settle(gm_pool *pool, bool wait);

#endif

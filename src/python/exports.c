/* SPDX-License-Identifier: MIT
 *
 * Which memory objects of pools are seen by others, and by how many.
 *
 * A buffer or a tensor over pooled memory has a reference to the memory object, so the
 * block stays as long as that is all there is to it. What a reference does not stop is
 * free(), called by hand; so that nobody sees a block change under him because somebody
 * else got it, that has to know of those who look. The count of them is here and not in
 * the memory object, which each request makes one of and which has no room left: that
 * nothing is seen is one load, and only free() by hand asks.
 *
 * A table by the object's address. An object cannot go while it is in there, since each
 * who sees it has a reference.
 *
 * Cost: a host allocation for the first who sees an object, a short search for all
 * others and for free(). Threading: any thread, attached to the interpreter.
 */
#include "exports.h"

#include "core/gm_process.h" // gm_host_alloc

struct gmpy_export {
    gmpy_export *next; // in its bucket
    const void *mem;
    size_t count;  // who see it, at least one
    uintptr_t ptr; // where it was, once freeing was put off
    bool put_off;
};

enum {
    FEWEST_BUCKETS = 64,
};

static gmpy_export **
bucket_of(const gmpy_exports *self, const void *mem)
{
    size_t hash = (uintptr_t)mem >> 4; // objects are 16 bytes apart at least

    return &self->buckets[(hash ^ hash >> 12) & (self->bucket_count - 1)];
}

/* Where the entry hangs, or would. Without buckets NULL. */
static gmpy_export **
find_locked(const gmpy_exports *self, const void *mem)
{
    gmpy_export **place = self->bucket_count ? bucket_of(self, mem) : NULL;

    while (place && *place && (*place)->mem != mem) {
        place = &(*place)->next;
    }
    return place;
}

/* Room for one more. False where there is none at all; a table that cannot grow only
 * becomes slow. */
static bool
grow_locked(gmpy_exports *self)
{
    size_t count = self->bucket_count ? 2 * self->bucket_count : FEWEST_BUCKETS;
    size_t old_count = self->bucket_count;
    gmpy_export **old = self->buckets;
    gmpy_export **made = gm_host_zalloc(count * sizeof(*made));

    if (!made) {
        return old_count != 0;
    }
    self->buckets = made;
    self->bucket_count = count;
    for (size_t i = 0; i < old_count; i++) {
        while (old[i]) {
            gmpy_export *entry = old[i];
            gmpy_export **bucket = bucket_of(self, entry->mem);

            old[i] = entry->next;
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    gm_host_free(old);
    return true;
}

static bool
add_locked(gmpy_exports *self, const void *mem)
{
    gmpy_export **place = find_locked(self, mem);
    gmpy_export *entry = place ? *place : NULL;

    if (entry) {
        entry->count++;
        return true;
    }
    if (self->count >= self->bucket_count && !grow_locked(self)) {
        return false;
    }
    entry = gm_host_alloc(sizeof(*entry));
    if (!entry) {
        return false;
    }
    place = bucket_of(self, mem);
    *entry = (gmpy_export){.next = *place, .mem = mem, .count = 1};
    *place = entry;
    __atomic_store_n(&self->count, self->count + 1, __ATOMIC_RELAXED);
    return true;
}

/* The last one leaves no table behind, so nothing is to be done at the end. */
static void
forget_locked(gmpy_exports *self, gmpy_export **place)
{
    gmpy_export *entry = *place;

    *place = entry->next;
    gm_host_free(entry);
    __atomic_store_n(&self->count, self->count - 1, __ATOMIC_RELAXED);
    if (!self->count) {
        gm_host_free(self->buckets);
        self->buckets = NULL;
        self->bucket_count = 0;
    }
}

bool
gmpy_exports_add(gmpy_exports *self, const void *mem)
{
    bool done;

    GMPY_LOCK(&self->lock);
    done = add_locked(self, mem);
    GMPY_UNLOCK(&self->lock);
    return done;
}

bool
gmpy_exports_remove(gmpy_exports *self, const void *mem, uintptr_t *ptr)
{
    gmpy_export **place;
    bool now = false;

    GMPY_LOCK(&self->lock);
    place = find_locked(self, mem);
    GM_ASSERT(place && *place);
    if (--(*place)->count == 0) {
        now = (*place)->put_off;
        *ptr = (*place)->ptr;
        forget_locked(self, place);
    }
    GMPY_UNLOCK(&self->lock);
    return now;
}

bool
gmpy_exports_put_off(gmpy_exports *self, const void *mem, uintptr_t ptr)
{
    gmpy_export **place;
    bool seen;

    GMPY_LOCK(&self->lock);
    place = find_locked(self, mem);
    seen = place && *place;
    if (seen && !(*place)->put_off) {
        (*place)->put_off = true;
        (*place)->ptr = ptr;
    }
    GMPY_UNLOCK(&self->lock);
    return seen;
}

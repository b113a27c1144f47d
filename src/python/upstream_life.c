/* SPDX-License-Identifier: MIT
 *
 * When the memory that a callable gave to pools may end.
 *
 * A block that other streams were recorded for, or of a graph, is in use after its last
 * handle went, until the device is done. The collector must not take its pool for
 * garbage before: with the pool go the memory behind it and what that belongs to. But
 * it cannot ask, since an answer that changes while it looks would be worse than none.
 * So a pool counts the blocks that are noted like that, and the collector leaves it
 * alone until somebody found, attached to the interpreter, that nothing of them is left
 * (gmpy_upstream_traverse). Who looks: a request that misses, trimming a pool, waiting
 * for a device, the end of a graph, and want of memory before garbage is collected.
 *
 * And memory that lies in pools, in one or in parts in several, is given back by these
 * alone. Whoever wants it to end asks them to, and lets it be where they cannot.
 *
 * Cost: a load where there are no such blocks; else a walk over all pools. Threading:
 * attached to the interpreter, which is let go of while a pool is asked. The walk holds
 * each pool by a native reference.
 */
#include "module.h"

#include "core/gm_process.h" // gm_process_is_frozen

void
gmpy_upstream_note(gmpy_upstream *up)
{
    if (up->callable) {
        __atomic_add_fetch(&up->notes, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&up->st->noted, true, __ATOMIC_SEQ_CST);
    }
}

/* What is noted after the number was read is not among what is settled then. */
static void
look_at(gm_pool *pool, void *context)
{
    gmpy_upstream *up = gmpy_upstream_of(pool);
    uint64_t notes = up ? __atomic_load_n(&up->notes, __ATOMIC_SEQ_CST) : 0;
    bool *left = context;
    gm_status status;
    gm_stats stats;

    if (!up || notes == __atomic_load_n(&up->settled, __ATOMIC_SEQ_CST)) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_read_stats(pool, &stats);
    Py_END_ALLOW_THREADS
    if (status == GM_OK && !stats.live_blocks && !stats.pending_blocks &&
        !stats.captured_blocks) {
        __atomic_store_n(&up->settled, notes, __ATOMIC_SEQ_CST);
    }
    else {
        *left = true;
    }
}

void
gmpy_upstreams_look_now(gmpy_state *st)
{
    bool left = false;

    if (gm_process_is_frozen()) {
        return;
    }
    __atomic_store_n(&st->noted, false, __ATOMIC_SEQ_CST);
    gm_pools_visit(look_at, &left);
    if (left) {
        __atomic_store_n(&st->noted, true, __ATOMIC_SEQ_CST);
    }
}

/* ---- giving back ---- */

static void
give_back(gm_pool *pool, void *context)
{
    gmpy_upstream *up = gmpy_upstream_of(pool);

    if (up && gmpy_upstream_holds(up, context)) {
        Py_BEGIN_ALLOW_THREADS;
        (void)gm_pool_release_idle(pool); // how much it was matters to nobody
        Py_END_ALLOW_THREADS
    }
}

void
gmpy_upstreams_give_back(PyObject *mem)
{
    gm_pools_visit(give_back, mem);
}

/* SPDX-License-Identifier: MIT
 *
 * Memory that is used on more streams than the one it was taken for.
 *
 * A block goes back to the arena of its stream, whose order protects work queued there.
 * Nothing protects work queued on another stream unless that was recorded: then the
 * block, when it is given back, is pending until the other stream has done what was
 * queued on it by then.
 *
 * Until when. A use reaches to the moment the block is given back, since that is when
 * the program says that it queues nothing more with it. The mark for that is recorded
 * then, with no lock held and without waiting. A stream that ends earlier gets its mark
 * when it ends: its handle is never used again. Of a stream whose end nobody announces
 * (another library's, or a thread's own default stream) a mark is recorded at once as
 * well, and when the block is given back its handle is used again only if the backend
 * says that it is still the same stream; otherwise that first mark stands: then what
 * was queued up to gm_pool_record_use is waited for, and no more.
 *
 * Who looks whether marks have happened: a request that misses, statistics, giving idle
 * segments back, and every sixteenth block that becomes pending; one query a stream. A
 * request that finds no memory waits for them. Nobody else does. While a graph is being
 * recorded nobody looks and no mark is recorded, since either may spoil the recording:
 * what is dropped then waits until its end.
 *
 * What a stream leaves when it ends, its arena, waits for the stream's last mark and is
 * then anybody's.
 *
 * Cost: nothing for blocks that were never recorded. A use costs one host allocation
 * and its block one more; a mark 200 to 300 ns on a device.
 *
 * Threading: any thread, no lock held.
 */
#ifndef GM_PENDING_H
#define GM_PENDING_H

#include "gm_note.h"
#include "gm_pool.h"

/* Notes that the live block is used on a stream. Nothing to do for the stream it was
 * taken for. GM_ERR_NOT_OWNED: the handle is void. GM_ERR_UNSUPPORTED: the pool knows
 * no streams. GM_ERR_HOST_MEMORY, or what the device said: nothing changed. */
GM_MUST_CHECK gm_status gm_pool_record_use(gm_pool *pool,
                                           gm_block *block,
                                           uint32_t generation,
                                           const gm_stream_use *by);

/* Looks which marks have happened and puts what they held back among the free. Returns
 * the bytes. Does not wait. */
size_t gm_pool_settle(gm_pool *pool);

/* The same, and waits for those that have not happened, as far as there are now. */
size_t gm_pool_settle_all(gm_pool *pool);

/* A stream of `backend` is about to be destroyed, whose handle still works: its uses in
 * all pools get their mark, and what its arenas hold becomes anybody's in due course.
 * Called before each destruction of a stream that was ever called announced. Does not
 * wait, unless no mark can be had. */
void gm_pools_end_stream(const gm_backend *backend, const gm_stream_use *by);

/* Lets closed pools end that waited for a device, as far as it got there. Called by
 * the core where it calls the device anyway; for others after they waited for a device.
 * Costs one load where there are none. */
void gm_pools_sweep(void);

#endif

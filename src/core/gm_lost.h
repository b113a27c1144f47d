/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset: all that was on one is gone at once, and its addresses and
 * handles are given out again, to anybody.
 *
 * So what a pool holds there must neither be handed out nor given back: the pool
 * forgets it. Live blocks become void, as if they had been given back by address, and
 * their handles end without effect; nothing is called for what is cached. Marks
 * recorded there count as having happened, for the work before them is over, and are
 * forgotten as well; so are uses by streams that went with the device.
 *
 * Who notices: whoever resets a device says so. A reset by somebody else is noticed by
 * the backend's number for the device's life, which a pool compares before it asks
 * upstream, for what it took last, and before it gives memory back, not while its cache
 * serves a request. (A pool of the host's memory may have some of several devices.)
 *
 * Cost: nothing on the hit path; a miss asks for the number, below a microsecond.
 *
 * Threading: any thread, no lock held. While a device is being reset nobody else uses
 * it, which is the runtime's rule.
 */
#ifndef GM_LOST_H
#define GM_LOST_H

#include "gm_backend.h"
#include "gm_pool.h"

/* All pools over `backend` forget what they hold on `device` of an earlier life than
 * its present one; where the backend has no numbers, all of it. */
void gm_pools_device_lost(const gm_backend *backend, int device);

#endif

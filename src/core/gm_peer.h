/* SPDX-License-Identifier: MIT
 *
 * Letting one device reach the memory of another.
 *
 * A driver that is told so opens all plain memory of that device, also what is
 * allocated later. Memory that is mapped by page it opens for nobody: each mapping has
 * to be told which devices reach it. So pools of such memory do that for each pair that
 * was enabled here, for what is mapped and for what will be.
 */
#ifndef GM_PEER_H
#define GM_PEER_H

#include "gm_backend.h"

/* Lets `device` reach what is on `peer`, where it can; once that is so it costs the
 * driver's answer and a look at each pool. What is mapped by page it may reach in part
 * after a failure; nothing is lost by that, and the next call goes on. Calls the
 * device. GM_ERR_UNSUPPORTED: it cannot; or what the device said. */
gm_status gm_peer_enable(const gm_backend *b, int device, int peer);

#endif

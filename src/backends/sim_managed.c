/* SPDX-License-Identifier: MIT
 *
 * What is known of managed memory: where its parts were moved to, and the advice about
 * them. The pages are the host's all along; this is for tests to read.
 *
 * A range has a list of pieces by address, cut where a move or advice begins and ends.
 * A move is noted when the stream gets there, advice at once. Cost: O(pieces).
 */
#include "sim.h"

#include "../core/gm_process.h"

struct sim_piece {
    uintptr_t end; // of the piece; it begins where the one before ends
    gm_sim_managed known;
    sim_piece *next;
};

/* Values are the CUDA runtime's cudaMemoryAdvise. */
enum {
    ADVICE_READ_MOSTLY = 1,
    ADVICE_NOT_READ_MOSTLY = 2,
    ADVICE_PREFERRED = 3,
    ADVICE_NOT_PREFERRED = 4,
    ADVICE_ACCESSED_BY = 5,
    ADVICE_NOT_ACCESSED_BY = 6,
};

static const gm_sim_managed nothing_known = {.location = GM_SIM_NOWHERE,
                                             .preferred = GM_SIM_NOWHERE};

/* Whether this is plain host memory that a place reaches: it may be moved and advised,
 * and nothing is known of it. The first device speaks for the host. */
static bool
is_plain_host(const gm_sim *sim, uintptr_t ptr, size_t size, int device)
{
    return sim_reaches_host(sim, device == -1 ? 0 : device, ptr, size) &&
           sim_range_usable(sim, ptr, size, true, false) &&
           !sim_range_usable(sim, ptr, size, false, false);
}

gm_status
sim_check_managed(gm_sim *sim, uintptr_t ptr, size_t size, int device)
{
    if (device != -1 && !sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (device != -1 &&
        (sim->devices[device].support & GM_DEVICE_CONCURRENT_MANAGED) == 0) {
        return GM_ERR_UNSUPPORTED;
    }
    return sim_find_managed(sim, ptr, size) != NULL ||
                   is_plain_host(sim, ptr, size, device)
               ? GM_OK
               : sim_bad_value(sim);
}

/* Makes a piece end at `at`, an address of the range or its end. GM_ERR_HOST_MEMORY. */
static gm_status
cut(sim_range *range, uintptr_t at)
{
    sim_piece **link = &range->pieces;
    while (*link != NULL && (*link)->end < at) {
        link = &(*link)->next;
    }
    if (at == range->start || (*link != NULL && (*link)->end == at)) {
        return GM_OK;
    }
    sim_piece *piece = gm_host_alloc(sizeof *piece);
    if (piece == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *piece = (sim_piece){.end = at,
                         .known = *link != NULL ? (*link)->known : nothing_known,
                         .next = *link};
    *link = piece;
    return GM_OK;
}

/* The piece that begins at `start`, after a cut there. */
static sim_piece *
piece_at(const sim_range *range, uintptr_t start)
{
    sim_piece *piece = range->pieces;
    for (uintptr_t at = range->start; at < start; piece = piece->next) {
        at = piece->end;
    }
    return piece;
}

void
sim_managed_move(gm_sim *sim, uintptr_t ptr, size_t size, int device)
{
    sim_range *range = sim_find_managed(sim, ptr, size);
    if (range == NULL) {
        return; // freed since it was queued: a hint about nothing touches nothing
    }
    if (cut(range, ptr) != GM_OK || cut(range, ptr + size) != GM_OK) {
        return;
    }
    sim_piece *piece = piece_at(range, ptr);
    for (; piece != NULL && piece->end <= ptr + size; piece = piece->next) {
        piece->known.location = device;
    }
}

/* The bit of a place in `accessed_by`. */
static uint32_t
bit_of(int device)
{
    return device < 0 ? GM_SIM_ACCESSED_BY_HOST : 1u << device;
}

static void
take_advice(gm_sim_managed *known, int advice, int device)
{
    switch (advice) {
    case ADVICE_READ_MOSTLY:
    case ADVICE_NOT_READ_MOSTLY:
        known->read_mostly = advice == ADVICE_READ_MOSTLY;
        break;
    case ADVICE_PREFERRED:
        known->preferred = device;
        break;
    case ADVICE_NOT_PREFERRED:
        known->preferred = GM_SIM_NOWHERE;
        break;
    case ADVICE_ACCESSED_BY:
        known->accessed_by |= bit_of(device);
        break;
    default:
        known->accessed_by &= ~bit_of(device);
        break;
    }
}

gm_status
sim_managed_advise(gm_sim *sim, uintptr_t ptr, size_t size, int advice, int device)
{
    if (advice < ADVICE_READ_MOSTLY || advice > ADVICE_NOT_ACCESSED_BY) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    gm_status status = sim_check_managed(sim, ptr, size, device);
    if (status != GM_OK) {
        return status;
    }
    sim_range *range = sim_find_managed(sim, ptr, size);
    if (range == NULL) {
        return GM_OK; // plain host memory
    }
    status = cut(range, ptr);
    if (status == GM_OK) {
        status = cut(range, ptr + size);
    }
    if (status != GM_OK) {
        return status;
    }
    sim_piece *piece = piece_at(range, ptr);
    for (; piece != NULL && piece->end <= ptr + size; piece = piece->next) {
        take_advice(&piece->known, advice, device);
    }
    return GM_OK;
}

void
sim_managed_forget(sim_range *range)
{
    while (range->pieces != NULL) {
        sim_piece *piece = range->pieces;
        range->pieces = piece->next;
        gm_host_free(piece);
    }
}

/* ---- for tests ---- */

gm_status
gm_sim_read_managed(const gm_backend *b, uintptr_t ptr, gm_sim_managed *out)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    const sim_range *range = sim_find_managed(sim, ptr, 1);
    if (range != NULL) {
        const sim_piece *piece = range->pieces;
        while (piece != NULL && piece->end <= ptr) {
            piece = piece->next;
        }
        *out = piece != NULL ? piece->known : nothing_known;
    }
    pthread_mutex_unlock(&sim->mutex);
    return range != NULL ? GM_OK : GM_ERR_INVALID_VALUE;
}

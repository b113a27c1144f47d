/* SPDX-License-Identifier: MIT
 *
 * For tests of what every backend promises (core/gm_backend.h). CONFORMANCE(name)
 * writes a test once and registers it three times: over the simulated device, over the
 * same behind the fault wrapper with no plan, and over CUDA where there is one. After
 * each the simulated device's ledger must be empty.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "device.h"

typedef void (*conformance_body)(const gm_backend *b);

static inline void
over_sim(conformance_body body, bool wrapped)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 2, .memory = 64 * MIB});
    gm_backend *fault = NULL;
    if (wrapped) {
        CHECK_EQ(gm_backend_fault_open(sim, &fault), GM_OK);
        body(fault);
        gm_backend_close(fault);
    }
    else {
        body(sim);
    }
    check_ledger_is_empty(sim);
    gm_backend_close(sim);
}

static inline void
over_cuda(conformance_body body)
{
    const gm_backend *cuda = NULL;
    gm_status status = gm_backend_cuda_open(&cuda);
    if (status == GM_ERR_UNSUPPORTED) {
        SKIP("built without CUDA");
    }
    if (status == GM_ERR_NO_DRIVER) {
        SKIP("no driver, or no device");
    }
    CHECK_EQ(status, GM_OK);
    body(cuda);
}

#define CONFORMANCE(name)                                                              \
    static void name(const gm_backend *b);                                             \
    TEST(name##_sim)                                                                   \
    {                                                                                  \
        over_sim(name, false);                                                         \
    }                                                                                  \
    TEST(name##_fault)                                                                 \
    {                                                                                  \
        over_sim(name, true);                                                          \
    }                                                                                  \
    TEST(name##_cuda)                                                                  \
    {                                                                                  \
        over_cuda(name);                                                               \
    }                                                                                  \
    static void name(const gm_backend *b)

#endif

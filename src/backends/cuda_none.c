/* SPDX-License-Identifier: MIT
 *
 * The cuda backend of a build without CUDA (GM_WITH_CUDA is 0): there is
 * none, and it says so. The other cuda_*.c files are empty then, so that every build
 * has the same list of files.
 */
#if !GM_WITH_CUDA

#include "backends.h"

gm_status
gm_backend_cuda_open(const gm_backend **out)
{
    (void)out;
    return GM_ERR_UNSUPPORTED;
}

void
gm_backend_cuda_probe(gm_cuda_probe *out)
{
    *out = (gm_cuda_probe){.built = false};
}

#endif

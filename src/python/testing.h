/* SPDX-License-Identifier: MIT
 *
 * What gpumem.testing is made of: what its files share, and what the module takes from
 * them. The names and arguments for users are those of gpumem/testing.py.
 */
#ifndef GMPY_TESTING_H
#define GMPY_TESTING_H

#include "module.h"

/* ---- testing.c: about any device ---- */

extern PyMethodDef gmpy_testing_methods[];

/* ---- testing_sim.c: looking into the simulated device ---- */

/* The simulated device; NULL with RuntimeError where another backend is in use. */
const gm_backend *gmpy_require_sim(gmpy_state *st);

extern PyMethodDef gmpy_testing_sim_methods[];

/* ---- testing_drive.c: making things happen to it ---- */

extern PyMethodDef gmpy_testing_drive_methods[];

#endif

/* SPDX-License-Identifier: MIT
 *
 * What every room may use: attributes, branch hints, alignment, assertions. No state,
 * no function with a body longer than a line or two.
 *
 * Assertions never run in a release build: a library inside somebody's interpreter
 * does not abort. GM_DEBUG (set by debug and test builds) turns GM_ASSERT on; whole
 * structures are walked by gm_pool_check, which any build can call.
 */
#ifndef GM_BASE_H
#define GM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GM_LIKELY(x) __builtin_expect(!!(x), 1)
#define GM_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define GM_MUST_CHECK __attribute__((warn_unused_result))
#define GM_NOINLINE __attribute__((noinline))
#define GM_COLD __attribute__((cold, noinline))

#define GM_CACHE_LINE 64

/* Whether a pool has shards (gm_shard.h). Given where threads run without an
 * interpreter lock; others would pay for them and never meet. */
#ifndef GM_SHARDS
#define GM_SHARDS 0
#endif

#ifdef GM_DEBUG
#include <assert.h> // assert()
#define GM_ASSERT(x) assert(x)
#define GM_ASSUME(x) assert(x)
#else
#define GM_ASSERT(x) ((void)0)
#define GM_ASSUME(x) ((x) ? (void)0 : __builtin_unreachable()) // and relied upon
#endif

#define GM_STATIC_ASSERT(x, why) _Static_assert(x, why)

GM_STATIC_ASSERT(sizeof(uintptr_t) == 8, "a device address needs 64 bits");

#endif

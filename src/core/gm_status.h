/* SPDX-License-Identifier: MIT
 *
 * The result of every fallible call in the core and the backends: one int.
 *
 * 0 is success. Small positive numbers are the library's own, listed once below with
 * their text. A device runtime's error travels as GM_DEVICE_ERROR(code), so that its
 * number reaches the user unchanged; its name and text come from the backend that
 * made it (gm_backend.h, error_name and error_text). Running out of device memory is
 * always GM_ERR_OUT_OF_MEMORY, whichever backend said so, because the pool acts on it.
 */
#ifndef GM_STATUS_H
#define GM_STATUS_H

#include "gm_base.h"

#define GM_STATUS_LIST(X)                                                              \
    X(GM_OK, "success")                                                                \
    X(GM_MISS, "the cache holds no block that fits")                                   \
    X(GM_BUSY, "the lock is held by another thread")                                   \
    X(GM_NOT_READY, "the device has not reached that point yet")                       \
    X(GM_ERR_OUT_OF_MEMORY, "the device has no memory left")                           \
    X(GM_ERR_LIMIT, "the pool's limit does not allow it")                              \
    X(GM_ERR_TOO_LARGE, "the size cannot be expressed")                                \
    X(GM_ERR_HOST_MEMORY, "the host has no memory left")                               \
    X(GM_ERR_INVALID_VALUE, "an argument is out of range")                             \
    X(GM_ERR_INVALID_DEVICE, "there is no such device")                                \
    X(GM_ERR_NOT_OWNED, "the address is not a live block of this pool")                \
    X(GM_ERR_CAPTURING, "the stream is recording a graph")                             \
    X(GM_ERR_STREAM_GONE, "the stream was destroyed; its handle may be another's now") \
    X(GM_ERR_UNSUPPORTED, "the backend does not offer this call")                      \
    X(GM_ERR_NO_DRIVER, "there is no driver")                                          \
    X(GM_ERR_DRIVER_TOO_OLD, "the driver is older than the runtime")                   \
    X(GM_ERR_FORKED, "the device was opened before this process was forked")           \
    X(GM_ERR_EXITING, "the process is exiting")                                        \
    X(GM_ERR_CALLBACK, "a callback failed and left its own error")                     \
    X(GM_ERR_INTERNAL, "an internal promise was broken")

typedef enum gm_status_code {
#define GM_STATUS_ENUM(name, text) name,
    GM_STATUS_LIST(GM_STATUS_ENUM)
#undef GM_STATUS_ENUM
    GM_STATUS_COUNT
} gm_status_code;

/* Either a gm_status_code or GM_DEVICE_ERROR(code). */
typedef int gm_status;

#define GM_DEVICE_ERROR_BASE 0x10000
#define GM_DEVICE_ERROR(code) (GM_DEVICE_ERROR_BASE + (code))

static inline bool
gm_status_is_device(gm_status status)
{
    return status >= GM_DEVICE_ERROR_BASE;
}

/* The runtime's own number; call only where gm_status_is_device(). */
static inline int
gm_status_device_code(gm_status status)
{
    return status - GM_DEVICE_ERROR_BASE;
}

/* English text of one of the library's own codes, static; never NULL. */
const char *gm_status_text(gm_status status);

#endif

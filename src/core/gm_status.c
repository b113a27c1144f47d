/* SPDX-License-Identifier: MIT
 *
 * Texts of the status codes.
 */
#include "gm_status.h"

static const char *const status_texts[] = {
#define GM_STATUS_TEXT(name, text) text,
    GM_STATUS_LIST(GM_STATUS_TEXT)
#undef GM_STATUS_TEXT
};

const char *
gm_status_text(gm_status status)
{
    if (status >= 0 && status < GM_STATUS_COUNT) {
        return status_texts[status];
    }
    return gm_status_is_device(status) ? "the device runtime reported an error"
                                       : "unknown status";
}

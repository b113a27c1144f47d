/* SPDX-License-Identifier: MIT
 *
 * Texts of the status codes: one each, and an answer for any number.
 */
#include "harness.h"

#include "core/gm_status.h"

#include <string.h>

TEST(status_has_a_text_for_each_code)
{
    for (gm_status status = 0; status < GM_STATUS_COUNT; status++) {
        CHECK(strlen(gm_status_text(status)) > 0);
        for (gm_status other = 0; other < status; other++) {
            CHECK(strcmp(gm_status_text(other), gm_status_text(status)) != 0);
        }
    }
    CHECK(strcmp(gm_status_text(GM_OK), "success") == 0);
    CHECK(strcmp(gm_status_text(GM_MISS), "the cache holds no block that fits") == 0);
    CHECK(strcmp(gm_status_text(GM_ERR_INTERNAL), "an internal promise was broken") ==
          0);
}

TEST(status_of_the_device_and_of_nobody)
{
    const char *device = "the device runtime reported an error";
    const char *nobody = "unknown status";

    CHECK(strcmp(gm_status_text(GM_DEVICE_ERROR(0)), device) == 0);
    CHECK(strcmp(gm_status_text(GM_DEVICE_ERROR(700)), device) == 0);
    CHECK(strcmp(gm_status_text(GM_DEVICE_ERROR(0) - 1), nobody) == 0);
    CHECK(strcmp(gm_status_text(GM_STATUS_COUNT), nobody) == 0);
    CHECK(strcmp(gm_status_text(-1), nobody) == 0);
    CHECK(gm_status_is_device(GM_DEVICE_ERROR(0)));
    CHECK(!gm_status_is_device(GM_DEVICE_ERROR(0) - 1));
    CHECK_EQ(gm_status_device_code(GM_DEVICE_ERROR(700)), 700);
}

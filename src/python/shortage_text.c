/* SPDX-License-Identifier: MIT
 *
 * The text of an OutOfMemoryError: what could not be had, the cause in its word, the
 * numbers that are known, and one thing to do. The words are those of
 * core/gm_shortage.h and of docs/out-of-memory.md.
 *
 * A hint is given only where it would help and is not followed already. Cost: formats
 * into the caller's buffer, allocates nothing, cannot fail.
 */
#include "module.h"
#include "out_of_memory.h"

#include <stdarg.h>
#include <string.h> // memmove

const char *const gmpy_cause_words[] = {
#define WORD(name, word) word,
    GM_CAUSE_LIST(WORD)
#undef WORD
};

Py_GCC_ATTRIBUTE((format(printf, 2, 3))) static void say(gmpy_shortage_text *t,
                                                         const char *format,
                                                         ...)
{
    size_t room = sizeof t->chars - t->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = PyOS_vsnprintf(t->chars + t->length, room, format, arguments);
    va_end(arguments);
    if (length > 0) {
        t->length += (size_t)length < room ? (size_t)length : room - 1;
    }
}

/* A number with thousands separators. A struct, so that a call's argument can hold it.
 */
typedef struct grouped {
    char text[sizeof "18,446,744,073,709,551,615"];
} grouped;

static grouped
group(size_t number)
{
    grouped g;
    char *at = g.text + sizeof g.text - 1;
    int digits = 0;

    *at = '\0';
    do {
        if (digits > 0 && digits % 3 == 0) {
            *--at = ',';
        }
        *--at = (char)('0' + number % 10);
        number /= 10;
        digits++;
    } while (number > 0);
    memmove(g.text, at, strlen(at) + 1);
    return g;
}

/* What was asked for: the original's sentence. */
static void
say_what(gmpy_shortage_text *t, const gm_shortage *s)
{
    say(t, "Out of memory: %s byte%s could not be allocated", group(s->size).text,
        s->size == 1 ? "" : "s");
    if (s->total_bytes != GM_UNKNOWN) {
        say(t, " (%s bytes allocated so far", group(s->total_bytes).text);
        if (s->limit != 0 && s->limit != GM_UNKNOWN) {
            say(t, ", limit %s bytes", group(s->limit).text);
        }
        say(t, ")");
    }
    say(t, ".");
}

/* Bytes that are free somewhere, whether or not they can be had. */
static size_t
free_in_total(const gm_shortage *s)
{
    return (s->device_free == GM_UNKNOWN ? 0 : s->device_free) + s->cached_bytes;
}

/* By how much the request was too large, in `words`, and what it could have been. */
static void
say_missing(gmpy_shortage_text *t, const gm_shortage *s, const char *words)
{
    if (s->missing_bytes != GM_UNKNOWN && s->largest_available_block != GM_UNKNOWN) {
        say(t, ": %s bytes %s, %s could be had", group(s->missing_bytes).text, words,
            group(s->largest_available_block).text);
    }
}

static void
say_cause(gmpy_shortage_text *t, const gm_shortage *s)
{
    say(t, " Cause: %s", gmpy_cause_words[s->cause]);
    switch (s->cause) {
    case GM_CAUSE_LIMIT:
        say_missing(t, s, "more than it leaves");
        break;
    case GM_CAUSE_FULL:
        say_missing(t, s, "are missing");
        break;
    case GM_CAUSE_FRAGMENTED:
        say(t, ": %s bytes free in total", group(free_in_total(s)).text);
        if (s->largest_available_block != GM_UNKNOWN) {
            say(t, ", largest block %s", group(s->largest_available_block).text);
        }
        break;
    case GM_CAUSE_OTHER_POOL:
        say(t, ": other pools of this process hold %s bytes",
            group(s->sibling_bytes).text);
        break;
    case GM_CAUSE_OTHER_PROCESS:
        say(t, ": what is outside of this process's pools holds %s bytes",
            group(s->outside_bytes - s->sibling_bytes).text);
        break;
    case GM_CAUSE_TOO_LARGE:
        if (s->device_total != GM_UNKNOWN) {
            say(t, ": the device has %s bytes in all", group(s->device_total).text);
        }
        break;
    case GM_CAUSE_CAPTURE:
        say(t, ": a graph is being recorded");
        if (s->largest_free_block != GM_UNKNOWN) {
            say(t, " and the largest cached block has %s bytes",
                group(s->largest_free_block).text);
        }
        break;
    case GM_CAUSE_ALLOCATOR:
        say(t, ": what was asked for the memory has no more");
        break;
    case GM_CAUSE_UNKNOWN:
    case GM_CAUSE_COUNT:
        break;
    }
    say(t, ".");
}

static void
say_numbers(gmpy_shortage_text *t, const gm_shortage *s)
{
    if (s->used_bytes != GM_UNKNOWN) {
        say(t, " Pool: %s bytes used, %s cached", group(s->used_bytes).text,
            group(s->cached_bytes).text);
        if (s->largest_free_block != GM_UNKNOWN) {
            say(t, ", largest cached block %s", group(s->largest_free_block).text);
        }
        if (s->pending_bytes != GM_UNKNOWN && s->pending_bytes > 0) {
            say(t, ", %s pending", group(s->pending_bytes).text);
        }
        say(t, ".");
    }
    if (s->device_total != GM_UNKNOWN) {
        say(t, " Device %d: %s of %s bytes free, %s outside this pool", s->device,
            group(s->device_free).text, group(s->device_total).text,
            group(s->outside_bytes).text);
        if (s->sibling_bytes != GM_UNKNOWN && s->sibling_bytes > 0) {
            say(t, " (%s in other pools, %s of these cached)",
                group(s->sibling_bytes).text, group(s->sibling_idle_bytes).text);
        }
        say(t, ".");
    }
}

/* What is used and the request may fit the limit, and only the pieces in between not.
 * The device may have no room for a higher limit, and pointers that die none for a
 * request that is above the limit by itself. */
static const char *
hint_for_limit(const gm_shortage *s)
{
    bool full = s->device_free != GM_UNKNOWN && s->device_free < s->rounded_size;
    bool alone = s->rounded_size > s->limit;

    if (s->used_bytes <= s->limit && s->rounded_size <= s->limit - s->used_bytes) {
        return "Allocate what lives long first, or from a pool of its own: pieces of "
               "split segments fill the limit";
    }
    if (full) {
        return alone ? "Ask for less at a time: the device has no room for a higher "
                       "limit"
                     : "Let go of pointers: the device has no room for a higher limit";
    }
    return alone ? "Raise it by set_limit(), or ask for less at a time"
                 : "Raise it by set_limit(), or let go of pointers";
}

/* One thing to do that is not done yet and would help. */
static const char *
hint_for(const gm_shortage *s, bool has_callback)
{
    switch (s->cause) {
    case GM_CAUSE_LIMIT:
        return hint_for_limit(s);
    case GM_CAUSE_FULL:
        return has_callback ? "Let go of pointers before the request"
                            : "Let go of pointers, or have a function do it that "
                              "set_out_of_memory_callback() is given";
    case GM_CAUSE_FRAGMENTED:
        return "Allocate what lives long first, or from a pool of its own";
    case GM_CAUSE_OTHER_POOL:
        return "Let go of pointers into the other pools, or use one pool for all";
    case GM_CAUSE_OTHER_PROCESS:
        return "See by nvidia-smi whether it is another process, or else memory of "
               "this "
               "one that is in no pool";
    case GM_CAUSE_TOO_LARGE:
        return s->rounded_size == GM_UNKNOWN
                   ? "See how the size came about: it is mostly a difference that went "
                     "below 0"
                   : "Ask for less at a time";
    case GM_CAUSE_CAPTURE:
        return s->largest_free_block == GM_UNKNOWN
                   ? "Allocate before recording, or from a MemoryPool"
                   : "Run the same work once before recording it, so that the pool "
                     "caches enough";
    case GM_CAUSE_ALLOCATOR:
        return "Let go of memory that came from there";
    case GM_CAUSE_UNKNOWN:
    case GM_CAUSE_COUNT:
        break;
    }
    return NULL;
}

void
gmpy_shortage_tell(const gm_shortage *what, bool has_callback, gmpy_shortage_text *out)
{
    const char *hint;

    out->length = 0;
    say_what(out, what);
    if (what->cause == GM_CAUSE_UNKNOWN) {
        return;
    }
    say_cause(out, what);
    say_numbers(out, what);
    hint = hint_for(what, has_callback);
    if (hint) {
        say(out, " %s.", hint);
    }
}

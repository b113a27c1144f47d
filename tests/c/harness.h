/* SPDX-License-Identifier: MIT
 *
 * What a C test sees: TEST to register one, CHECK and CHECK_EQ to assert, SKIP to
 * bow out with a reason. runner.c forks a process for each test, so a test may
 * crash, hang, leak or set process-wide state without touching the next.
 *
 * A test passes when its process exits with 0; so a sanitizer that exits with its
 * own code at the end of the process fails it.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <inttypes.h> // PRIx64, PRId64
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h> // exit()

#define HARNESS_SKIPPED 77

typedef struct harness_test {
    const char *name;
    void (*body)(void);
    struct harness_test *next;
} harness_test;

/* Adds a test; called before main() by the constructors TEST makes. */
void harness_register(harness_test *test);

/* Ends the test as skipped. */
_Noreturn void harness_skip(const char *reason);

/* What a failure report should say besides, such as the seed in use; replaces the note
 * before. */
__attribute__((format(printf, 1, 2))) void harness_note(const char *format, ...);

/* How much slower than usual this build runs: 10 under a sanitizer or valgrind, else
 * 1. Loops over many rounds divide by it. */
int harness_slowness(void);

/* Valgrind cannot map what a large device needs, nor follow one through a fork. */
bool harness_under_valgrind(void);

#define TEST(name)                                                                     \
    static void name(void);                                                            \
    __attribute__((constructor)) static void register_##name(void)                     \
    {                                                                                  \
        static harness_test test = {#name, name, NULL};                                \
        harness_register(&test);                                                       \
    }                                                                                  \
    static void name(void)

#define SKIP(reason) harness_skip(reason)

/* A failed check ends the process at once: what follows would build on sand. */
#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Both sides are integers (or pointers cast to them); shown in decimal and hex. */
#define CHECK_EQ(actual, expected)                                                     \
    do {                                                                               \
        int64_t actual_ = (int64_t)(actual);                                           \
        int64_t expected_ = (int64_t)(expected);                                       \
        if (actual_ != expected_) {                                                    \
            fprintf(stderr,                                                            \
                    "%s:%d: %s is %" PRId64 " (0x%" PRIx64 "), not %" PRId64           \
                    " (0x%" PRIx64 ")\n",                                              \
                    __FILE__, __LINE__, #actual, actual_, (uint64_t)actual_,           \
                    expected_, (uint64_t)expected_);                                   \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#endif

/* SPDX-License-Identifier: MIT
 *
 * Runs the registered C tests, each in a process of its own with a time limit:
 *
 *   runner [SUBSTRING]     those whose name contains it; all when absent
 *
 * Prints a line a test and last "N passed, N failed, N skipped". Exits with 0 when at
 * least one test ran and none failed.
 */
#include "harness.h"

#include <signal.h> // kill()
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_SECONDS 60
#define TEXT_BYTES 256

static harness_test *first_test;
static harness_test **last_link = &first_test;

/* What the test's process has to say: shared with it. */
typedef struct report {
    char reason[TEXT_BYTES]; // for skipping
    char note[TEXT_BYTES];
} report;

static report *shared;

void
harness_register(harness_test *test)
{
    *last_link = test;
    last_link = &test->next;
}

void
harness_skip(const char *reason)
{
    (void)snprintf(shared->reason, TEXT_BYTES, "%s", reason);
    exit(HARNESS_SKIPPED);
}

void
harness_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(shared->note, TEXT_BYTES, format, arguments);
    va_end(arguments);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BUILT_WITH_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BUILT_WITH_SANITIZER 1
#endif

bool
harness_under_valgrind(void)
{
    // Valgrind puts its own library in front of the others.
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "vgpreload") != NULL;
}

int
harness_slowness(void)
{
#ifdef BUILT_WITH_SANITIZER
    return 10;
#else
    return harness_under_valgrind() ? 10 : 1;
#endif
}

/* The test's process: a group of its own, so that what it forked goes with it. */
static _Noreturn void
run_child(const harness_test *test)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm((unsigned)(TIMEOUT_SECONDS * harness_slowness()));
    test->body();
    exit(0);
}

/* The wait status of the finished test. */
static int
run_test(const harness_test *test)
{
    *shared = (report){{0}, {0}};
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        run_child(test);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) {
        perror("waitpid");
        exit(2);
    }
    (void)kill(-child, SIGKILL); // what the test may have left; usually nobody
    return status;
}

/* Prints the line of a finished test. */
static void
print_result(const char *name, int status)
{
    if (!WIFEXITED(status)) {
        bool late = WTERMSIG(status) == SIGALRM;
        printf("FAIL  %s: %s", name, late ? "timed out" : strsignal(WTERMSIG(status)));
    }
    else if (WEXITSTATUS(status) == HARNESS_SKIPPED) {
        printf("skip  %s: %s\n", name, shared->reason);
        return;
    }
    else if (WEXITSTATUS(status) == 0) {
        printf("ok    %s\n", name);
        return;
    }
    else {
        printf("FAIL  %s: exit code %d", name, WEXITSTATUS(status));
    }
    if (shared->note[0] != '\0') {
        printf(" (%s)", shared->note);
    }
    printf("\n");
}

int
main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "";
    int passed = 0, failed = 0, skipped = 0;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    for (const harness_test *test = first_test; test != NULL; test = test->next) {
        if (strstr(test->name, wanted) == NULL) {
            continue;
        }
        int status = run_test(test);
        print_result(test->name, status);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            passed++;
        }
        else if (WIFEXITED(status) && WEXITSTATUS(status) == HARNESS_SKIPPED) {
            skipped++;
        }
        else {
            failed++;
        }
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed == 0 && passed + skipped > 0 ? 0 : 1;
}

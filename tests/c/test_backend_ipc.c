/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of memory for other processes, tried with two: over the
 * simulated device, and over CUDA where there is one. Each process opens the backend
 * itself, after the fork.
 */
#include "conformance.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h> // fork(), pipe(), read(), write()

#define BYTES ((size_t)10000)

typedef const gm_backend *(*opener)(void);

static const gm_backend *
open_simulated(void)
{
    return open_sim((gm_sim_options){.devices = 2, .memory = 64 * MIB});
}

static const gm_backend *
open_cuda(void)
{
    const gm_backend *cuda = NULL;
    CHECK_EQ(gm_backend_cuda_open(&cuda), GM_OK);
    return cuda;
}

typedef struct ends {
    int to_child[2];
    int to_parent[2];
} ends;

static void
send(int file, const void *bytes, size_t size)
{
    CHECK_EQ(write(file, bytes, size), (ssize_t)size);
}

static void
receive(int file, void *bytes, size_t size)
{
    CHECK_EQ(read(file, bytes, size), (ssize_t)size);
}

/* Opens both handles it is sent, each of them twice, and looks. */
static void
import(const gm_backend *b, ends pipes)
{
    gm_ipc_handle handles[2];
    uintptr_t bases[2] = {0, 0}, again = 0;
    static unsigned char bytes[BYTES];
    receive(pipes.to_child[0], handles, sizeof handles);
    for (unsigned i = 0; i < 2; i++) {
        gm_pointer_info info;
        CHECK_EQ(gm_backend_ipc_open(b, 0, &handles[i], &bases[i]), GM_OK);
        CHECK_EQ(gm_backend_ipc_open(b, 0, &handles[i], &again), GM_OK);
        CHECK_EQ(again, bases[i]);
        CHECK_EQ(gm_backend_pointer_info(b, bases[i] + 100, &info), GM_OK);
        CHECK_EQ(info.kind, GM_POINTER_DEVICE);
        CHECK_EQ(info.device, 0);
        CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, bases[i], BYTES,
                                 GM_COPY_DEVICE_TO_HOST),
                 GM_OK);
        check_filled(bytes, BYTES, i + 1);
    }
    // What is written here is seen there.
    CHECK_EQ(gm_backend_set(b, bases[1], 9, BYTES), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_backend_ipc_close(b, bases[0]), GM_OK);
    CHECK_EQ(
        gm_backend_copy(b, (uintptr_t)bytes, bases[0], BYTES, GM_COPY_DEVICE_TO_HOST),
        GM_OK); // open once more
    check_filled(bytes, BYTES, 1);
    CHECK_EQ(gm_backend_ipc_close(b, bases[0]), GM_OK);
    CHECK_EQ(gm_backend_ipc_close(b, bases[1]), GM_OK);
    CHECK_EQ(gm_backend_ipc_close(b, bases[1]), GM_OK);
    CHECK(gm_backend_ipc_close(b, bases[1]) != GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
    send(pipes.to_parent[1], "d", 1);
}

/* Exports two allocations by addresses inside them, and sees what became of them. */
static void export(const gm_backend *b, ends pipes)
{
    gm_ipc_handle handles[2];
    uintptr_t ptrs[2], own = 7;
    static unsigned char bytes[BYTES];
    char done = 0;
    for (unsigned i = 0; i < 2; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, BYTES);
        fill(bytes, BYTES, i + 1);
        CHECK_EQ(gm_backend_copy(b, ptrs[i], (uintptr_t)bytes, BYTES,
                                 GM_COPY_HOST_TO_DEVICE),
                 GM_OK);
        CHECK_EQ(gm_backend_ipc_export(b, ptrs[i] + 512 * i, &handles[i]), GM_OK);
    }
    CHECK(gm_backend_ipc_open(b, 0, &handles[0], &own) != GM_OK); // it is ours
    CHECK_EQ(own, 7);
    send(pipes.to_child[1], handles, sizeof handles);
    receive(pipes.to_parent[0], &done, 1);
    CHECK_EQ(
        gm_backend_copy(b, (uintptr_t)bytes, ptrs[1], BYTES, GM_COPY_DEVICE_TO_HOST),
        GM_OK);
    check_all(bytes, BYTES, 9);
    give(b, GM_MEM_DEVICE, ptrs[0]);
    give(b, GM_MEM_DEVICE, ptrs[1]);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

static void
finish(const gm_backend *b)
{
    if (is_simulated(b)) {
        check_ledger_is_empty(b);
    }
    gm_backend_close(b);
}

static void
over_two_processes(opener open)
{
    ends pipes;
    CHECK_EQ(pipe(pipes.to_child), 0);
    CHECK_EQ(pipe(pipes.to_parent), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    const gm_backend *b = open();
    if (child == 0) {
        import(b, pipes);
        finish(b);
        exit(0);
    }
    export(b, pipes);
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    finish(b);
}

TEST(ipc_two_processes_sim)
{
    over_two_processes(open_simulated);
}

TEST(ipc_two_processes_cuda)
{
    gm_cuda_probe probe;
    pid_t prober = fork(); // a look initialises the driver, which no fork survives
    CHECK(prober >= 0);
    if (prober == 0) {
        gm_backend_cuda_probe(&probe);
        exit(probe.devices > 0 ? 0 : HARNESS_SKIPPED);
    }
    int status = -1;
    CHECK_EQ(waitpid(prober, &status, 0), prober);
    if (status != 0) {
        SKIP("built without CUDA, no driver, or no device");
    }
    over_two_processes(open_cuda);
}

CONFORMANCE(ipc_not_for_every_memory)
{
    gm_ipc_handle handle = {{7}};
    uintptr_t pinned = take(b, GM_MEM_PINNED, 512), base = 7;
    int host = 0;
    CHECK(gm_backend_ipc_export(b, pinned, &handle) != GM_OK);
    CHECK(gm_backend_ipc_export(b, (uintptr_t)&host, &handle) != GM_OK);
    CHECK_EQ(handle.bytes[0], 7);
    CHECK(gm_backend_ipc_open(b, 0, &handle, &base) != GM_OK);
    CHECK_EQ(gm_backend_ipc_open(b, -1, &handle, &base), GM_ERR_INVALID_DEVICE);
    CHECK(gm_backend_ipc_close(b, pinned) != GM_OK);
    CHECK_EQ(base, 7);
    CHECK_EQ(gm_backend_last_error(b), 0);
    give(b, GM_MEM_PINNED, pinned);
}

/* ---- the simulated device ---- */

/* A handle outlives neither its process nor the instance it is of. */
TEST(sim_ipc_stale_handles_are_refused)
{
    ends pipes;
    gm_ipc_handle handle;
    uintptr_t base = 7;
    CHECK_EQ(pipe(pipes.to_parent), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const gm_backend *own = open_simulated();
        CHECK_EQ(gm_backend_ipc_export(own, take(own, GM_MEM_DEVICE, 512), &handle),
                 GM_OK);
        send(pipes.to_parent[1], &handle, sizeof handle);
        exit(0);
    }
    receive(pipes.to_parent[0], &handle, sizeof handle);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    const gm_backend *b = open_simulated();
    CHECK_EQ(gm_backend_ipc_open(b, 0, &handle, &base), GM_DEVICE_ERROR(400));
    handle.bytes[0] ^= 1; // no handle at all
    CHECK_EQ(gm_backend_ipc_open(b, 0, &handle, &base), GM_DEVICE_ERROR(1));
    CHECK_EQ(base, 7);
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 512, 0, &ptr), GM_OK);
    CHECK_EQ(gm_backend_ipc_export(b, ptr, &handle), GM_DEVICE_ERROR(1)); // a pool's
    give(b, GM_MEM_DEVICE, ptr);
    finish(b);
}

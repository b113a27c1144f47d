/* SPDX-License-Identifier: MIT
 *
 * Recorded work: graphs, the same ready to launch, and launching it.
 *
 * A graph is the nodes that a recording left. Made ready, they are put into one order
 * that keeps every dependency and, like the queues of streams, does nothing before it
 * must: a node comes after the one before it in its stream first, and what another
 * stream recorded runs only when a recorded wait needs it. So a wait that was forgotten
 * shows in every launch.
 *
 * A launch is one operation in its stream and holds a reference: the handle may go
 * meanwhile. Ranges are checked when the work runs.
 *
 * Cost: making ready and launching O(nodes).
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <stdio.h> // fopen(), snprintf()

typedef struct sim_graph {
    int device;
    uint32_t count;
    sim_node *nodes;
} sim_graph;

struct sim_exec {
    unsigned refs; // the handle's and one a launch
    int device;
    uint32_t count;
    sim_work work[]; // in order
};

/* ---- graphs ---- */

static void
free_graph(sim_graph *graph)
{
    gm_host_free(graph->nodes);
    gm_host_free(graph);
}

gm_status
sim_graph_new(gm_sim *sim, int device, sim_node *nodes, uint32_t count, gm_graph *out)
{
    sim_graph *graph = gm_host_alloc(sizeof *graph);
    if (graph == NULL) {
        gm_host_free(nodes);
        return GM_ERR_HOST_MEMORY;
    }
    *graph = (sim_graph){.device = device, .count = count, .nodes = nodes};
    gm_status status = sim_table_add(&sim->graphs, graph, out);
    if (status != GM_OK) {
        free_graph(graph);
        return status;
    }
    sim->ledger.graphs++;
    return GM_OK;
}

gm_status
sim_graph_destroy(gm_sim *sim, gm_graph handle)
{
    sim_graph *graph = sim_table_get(&sim->graphs, handle);
    if (graph == NULL) {
        return sim_bad_handle(sim);
    }
    sim_table_remove(&sim->graphs, handle);
    sim->ledger.graphs--;
    free_graph(graph);
    return GM_OK;
}

static const char *
name_of(sim_op_kind kind)
{
    static const char *const names[] = {
        [SIM_OP_COPY] = "copy",     [SIM_OP_SET] = "set",
        [SIM_OP_RECORD] = "record", [SIM_OP_WAIT] = "wait",
        [SIM_OP_GRAPH] = "graph",   [SIM_OP_PREFETCH] = "prefetch",
    };
    return names[kind];
}

/* The longest line below, with numbers of 20 digits. */
#define LINE_BYTES 128

/* Writes a node, and an arrow from each that it comes after. */
static void
draw_node(FILE *file, const sim_node *node, uint32_t number)
{
    char line[LINE_BYTES];
    int length = snprintf(line, sizeof line, "    node_%u [label=\"%s %zu bytes\"];\n",
                          number, name_of(node->work.kind), node->work.size);
    (void)fwrite(line, 1, (size_t)length, file);
    for (int k = 0; k < 2; k++) {
        if (node->after[k] != 0) {
            length = snprintf(line, sizeof line, "    node_%u -> node_%u;\n",
                              node->after[k] - 1, number);
            (void)fwrite(line, 1, (size_t)length, file);
        }
    }
}

gm_status
sim_graph_debug_dot(gm_sim *sim, gm_graph handle, const char *path)
{
    static const char head[] = "digraph dot {\n";
    static const char tail[] = "}\n";
    const sim_graph *graph = sim_table_get(&sim->graphs, handle);
    if (graph == NULL) {
        return sim_bad_handle(sim);
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return GM_DEVICE_ERROR(SIM_CODE_OPERATING_SYSTEM);
    }
    (void)fwrite(head, 1, sizeof head - 1, file);
    for (uint32_t i = 0; i < graph->count; i++) {
        draw_node(file, &graph->nodes[i], i);
    }
    (void)fwrite(tail, 1, sizeof tail - 1, file);
    bool failed = ferror(file) != 0; // of any of these
    failed |= fclose(file) != 0;
    return failed ? GM_DEVICE_ERROR(SIM_CODE_OPERATING_SYSTEM) : GM_OK;
}

/* ---- ready to launch ---- */

/* The first node that `node` comes after and that has not been seen, as that says them;
 * 0 for none. */
static uint32_t
find_unseen(const sim_graph *graph, const sim_node *node)
{
    for (int k = 0; k < 2; k++) {
        if (node->after[k] != 0 && !graph->nodes[node->after[k] - 1].seen) {
            return node->after[k];
        }
    }
    return 0;
}

/* Appends node `last` to the work, and before it what it comes after and is not there
 * yet. The nodes remember the way down, so no stack is needed. */
static void
append(sim_graph *graph, sim_exec *exec, uint32_t last)
{
    uint32_t at = last;
    graph->nodes[at - 1].seen = true;
    graph->nodes[at - 1].from = 0;
    while (at != 0) {
        sim_node *node = &graph->nodes[at - 1];
        uint32_t before = find_unseen(graph, node);
        if (before != 0) {
            graph->nodes[before - 1].seen = true;
            graph->nodes[before - 1].from = at;
            at = before;
        }
        else {
            exec->work[exec->count++] = node->work;
            at = node->from;
        }
    }
}

gm_status
sim_graph_instantiate(gm_sim *sim, gm_graph handle, gm_graph_exec *out)
{
    sim_graph *graph = sim_table_get(&sim->graphs, handle);
    if (graph == NULL) {
        return sim_bad_handle(sim);
    }
    sim_exec *exec = gm_host_zalloc(sizeof *exec + graph->count * sizeof exec->work[0]);
    if (exec == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_status status = sim_table_add(&sim->execs, exec, out);
    if (status != GM_OK) {
        gm_host_free(exec);
        return status;
    }
    exec->refs = 1;
    exec->device = graph->device;
    for (uint32_t i = 0; i < graph->count; i++) {
        graph->nodes[i].seen = false;
    }
    for (uint32_t i = graph->count; i > 0; i--) {
        if (!graph->nodes[i - 1].seen) {
            append(graph, exec, i);
        }
    }
    GM_ASSERT(exec->count == graph->count);
    sim->ledger.graphs++;
    return GM_OK;
}

void
sim_exec_ref(sim_exec *exec)
{
    exec->refs++;
}

void
sim_exec_unref(sim_exec *exec)
{
    if (exec != NULL && --exec->refs == 0) {
        gm_host_free(exec);
    }
}

gm_status
sim_graph_exec_destroy(gm_sim *sim, gm_graph_exec handle)
{
    sim_exec *exec = sim_table_get(&sim->execs, handle);
    if (exec == NULL) {
        return sim_bad_handle(sim);
    }
    sim_table_remove(&sim->execs, handle);
    sim->ledger.graphs--;
    sim_exec_unref(exec);
    return GM_OK;
}

void
sim_graphs_fini(gm_sim *sim)
{
    for (uint32_t i = 0; i < sim->graphs.used; i++) {
        if (sim->graphs.objects[i] != NULL) {
            free_graph(sim->graphs.objects[i]);
        }
    }
    for (uint32_t i = 0; i < sim->execs.used; i++) {
        sim_exec_unref(sim->execs.objects[i]);
    }
    sim_table_fini(&sim->graphs);
    sim_table_fini(&sim->execs);
}

void
sim_graphs_reset(gm_sim *sim, int device)
{
    for (uint32_t i = 0; i < sim->graphs.used; i++) {
        sim_graph *graph = sim->graphs.objects[i];
        if (graph != NULL && graph->device == device) {
            (void)sim_graph_destroy(sim, sim_table_handle(&sim->graphs, i));
        }
    }
    for (uint32_t i = 0; i < sim->execs.used; i++) {
        const sim_exec *exec = sim->execs.objects[i];
        if (exec != NULL && exec->device == device) {
            (void)sim_graph_exec_destroy(sim, sim_table_handle(&sim->execs, i));
        }
    }
}

/* ---- launching ---- */

/* Queues work for a graph, which exists, on a stream that must not record itself. */
static gm_status
queue(gm_sim *sim, const sim_exec *exec, sim_stream *stream, const sim_work *work)
{
    if (exec == NULL) {
        return sim_bad_handle(sim);
    }
    if (stream->capture != NULL) {
        return sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
    }
    return sim_submit(sim, stream, work, NULL);
}

gm_status
sim_graph_launch(gm_sim *sim, gm_graph_exec handle, sim_stream *stream)
{
    sim_exec *exec = sim_table_get(&sim->execs, handle);
    const sim_work work = {.kind = SIM_OP_GRAPH, .exec = exec};
    return queue(sim, exec, stream, &work);
}

/* There is nothing to send ahead: only the order in the stream. */
gm_status
sim_graph_upload(gm_sim *sim, gm_graph_exec handle, sim_stream *stream)
{
    const sim_exec *exec = sim_table_get(&sim->execs, handle);
    const sim_work work = {.kind = SIM_OP_WAIT};
    return queue(sim, exec, stream, &work);
}

void
sim_exec_run(gm_sim *sim, const sim_op *op)
{
    const sim_exec *exec = op->work.exec;
    for (uint32_t i = 0; i < exec->count; i++) {
        sim_execute(sim, op, &exec->work[i]);
    }
}

/* The static sweep: end of a node = latest end of those before it + its duration, scenario innermost. */
#ifndef ENGINE_SWEEP_H
#define ENGINE_SWEEP_H

#include "_engine_buffers.h"

#include <stdlib.h>

enum { LANES = 16 }; /* scenarios at a time: two cache lines per node */

typedef struct {
    Rows before;            /* per place in the order, the nodes that it waits for */
    const int32_t *order;   /* node of each place */
    const int32_t *class_of; /* per node, its cost class */
    const int64_t *base;    /* per class, its duration in every scenario */
    Py_ssize_t classes;
    const int32_t *varying; /* classes whose durations differ from scenario to scenario */
    Py_ssize_t varying_count;
    const char *values;     /* those durations: varying by scenarios, of any strides */
    Py_ssize_t class_stride, scenario_stride;
    const int32_t *wanted;  /* nodes whose ends are told */
    Py_ssize_t wanted_count;
    const int32_t *earlier, *later; /* node pairs whose ends have to be in this order, strictly */
    Py_ssize_t pair_count;
    int64_t *out;           /* wanted by scenarios */
    Py_ssize_t out_stride;  /* scenarios */
    uint8_t *failed;        /* per scenario */
} Sweep;

static void spread_base(const Sweep *s, int64_t *to)
{
    for (Py_ssize_t c = 0; c < s->classes; c++)
        for (int lane = 0; lane < LANES; lane++)
            to[c * LANES + lane] = s->base[c];
}

static void load_varying(const Sweep *s, Py_ssize_t first, int lanes, int64_t *to)
{
    for (Py_ssize_t i = 0; i < s->varying_count; i++) {
        const char *row = s->values + i * s->class_stride + first * s->scenario_stride;
        int64_t *cell = to + (Py_ssize_t)s->varying[i] * LANES;
        for (int lane = 0; lane < lanes; lane++)
            cell[lane] = *(const int64_t *)(row + lane * s->scenario_stride);
    }
}

static void sweep_lanes(const Sweep *s, const int64_t *durations, int64_t *ends)
{
    for (Py_ssize_t place = 0; place < s->before.rows; place++) {
        int64_t latest[LANES] = {0};
        for (int32_t i = s->before.first[place]; i < s->before.first[place + 1]; i++) {
            const int64_t *end = ends + (Py_ssize_t)s->before.at[i] * LANES;
            for (int lane = 0; lane < LANES; lane++)
                latest[lane] = end[lane] > latest[lane] ? end[lane] : latest[lane];
        }
        int32_t node = s->order[place];
        const int64_t *duration = durations + (Py_ssize_t)s->class_of[node] * LANES;
        int64_t *end = ends + (Py_ssize_t)node * LANES;
        for (int lane = 0; lane < LANES; lane++)
            end[lane] = latest[lane] + duration[lane];
    }
}

/* The same for one scenario alone. */
static void sweep_one(const Sweep *s, const int64_t *durations, int64_t *ends)
{
    for (Py_ssize_t place = 0; place < s->before.rows; place++) {
        int64_t latest = 0;
        for (int32_t i = s->before.first[place]; i < s->before.first[place + 1]; i++) {
            int64_t end = ends[s->before.at[i]];
            latest = end > latest ? end : latest;
        }
        int32_t node = s->order[place];
        ends[node] = latest + durations[(Py_ssize_t)s->class_of[node] * LANES];
    }
}

static void tell(const Sweep *s, const int64_t *ends, Py_ssize_t first, int lanes, int width)
{
    for (Py_ssize_t i = 0; i < s->wanted_count; i++)
        for (int lane = 0; lane < lanes; lane++)
            s->out[i * s->out_stride + first + lane] = ends[(Py_ssize_t)s->wanted[i] * width + lane];
    for (Py_ssize_t i = 0; i < s->pair_count; i++)
        for (int lane = 0; lane < lanes; lane++)
            if (ends[(Py_ssize_t)s->earlier[i] * width + lane] >= ends[(Py_ssize_t)s->later[i] * width + lane])
                s->failed[first + lane] = 1;
}

/* Scenarios first to last; 0 if memory ran out. Needs no Python. */
static int sweep_range(const Sweep *s, Py_ssize_t nodes, Py_ssize_t first, Py_ssize_t last)
{
    int alone = last - first == 1;
    int width = alone ? 1 : LANES;
    int64_t *durations = malloc((size_t)(s->classes ? s->classes : 1) * LANES * sizeof(int64_t));
    int64_t *ends = malloc((size_t)(nodes ? nodes : 1) * (size_t)width * sizeof(int64_t));
    int done = durations && ends;
    if (done)
        spread_base(s, durations);
    for (Py_ssize_t at = first; done && at < last; at += LANES) {
        int lanes = last - at < LANES ? (int)(last - at) : LANES;
        load_varying(s, at, lanes, durations);
        if (alone)
            sweep_one(s, durations, ends);
        else
            sweep_lanes(s, durations, ends);
        tell(s, ends, at, lanes, width);
    }
    free(durations);
    free(ends);
    return done;
}

#endif

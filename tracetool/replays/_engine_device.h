/* What slows computes down: communication kernels beside them, and sustained load (see loop.py and model/load.py). */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include "_engine_buffers.h"

#include <math.h>

enum { HAS_COME = 1, HAS_LEFT = 2 };
enum { COMPUTE = 0, POST = 1, FORWARD_COMPUTE = 6 }; /* kinds of tasks; the others do not matter here */

/* The compute that runs on a rank: it does `contended` units per ns by itself and `alone` beside a kernel. */
typedef struct {
    __int128 left; /* units of work */
    int64_t alone, contended, since;
    int32_t task;   /* -1 for none */
    int32_t beside; /* kernels on the device */
} Work;

/* One rank's device under sustained load, and the moving average of its load. */
typedef struct {
    /* As SustainedLoad has them; settle 0: no slowdown. Then the average load of the step. */
    double settle, threshold, slope, step_threshold, step_slope, forward_load, start_load, step_load;
    double average, full, work;
    int64_t since, begun, alone;
} Load;

typedef struct {
    const int8_t *kinds; /* NULL if nothing slows down */
    const int32_t *ranks;
    const int32_t *leaves; /* per task, the POST whose kernel leaves with it; -1 for none */
    uint8_t *moved;        /* per POST, whether its kernel has come and has left */
    const int64_t *contended;
    Work *works;
    Load *loads;
    double *work; /* per rank, told at the end */
    Py_ssize_t count;
} Devices;

enum { LOAD_FIELDS = 8 };

static inline int is_compute(const Devices *d, int32_t task)
{
    return d->kinds[task] == COMPUTE || d->kinds[task] == FORWARD_COMPUTE;
}

static double load_after(const Load *load, double average, int64_t duration, double brought)
{
    return brought + (average - brought) * exp((double)-duration / load->settle);
}

/* By what the time of an action grows that starts now. */
static double begin_load(Load *load, int64_t now, int is_forward, int64_t alone)
{
    load->average = load->since < 0 ? load->start_load : load_after(load, load->average, now - load->since, 0.0);
    load->begun = now;
    load->full = is_forward ? load->forward_load : 1.0;
    double beyond = (load->average + load_after(load, load->average, alone, load->full)) / 2 - load->threshold;
    double moving = load->slope * (beyond > 0.0 ? beyond : 0.0);
    double warm = load->step_load - load->step_threshold;
    double factor = 1.0 + moving + load->step_slope * (warm > 0.0 ? warm : 0.0);
    load->alone = (int64_t)rint((double)alone * factor); /* half to even, as Python rounds */
    load->work += load->full * (double)load->alone;
    return factor;
}

static void end_load(Load *load, int64_t now)
{
    int64_t duration = now - load->begun > 1 ? now - load->begun : 1;
    double share = (double)load->alone / (double)duration;
    load->average = load_after(load, load->average, duration, load->full * (share < 1.0 ? share : 1.0));
    load->since = now;
}

/* How long a compute takes if its device stays as it is. */
static int64_t begin_compute(Devices *d, int32_t task, int64_t now, int64_t alone)
{
    int32_t rank = d->ranks[task];
    Work *work = &d->works[rank];
    int64_t contended = d->contended[task];
    if (d->loads[rank].settle > 0) {
        double factor = begin_load(&d->loads[rank], now, d->kinds[task] == FORWARD_COMPUTE, alone);
        alone = d->loads[rank].alone;
        contended = (int64_t)rint((double)contended * factor);
    }
    if (contended <= alone || !alone)
        return alone;
    work->task = task;
    work->left = (__int128)alone * contended;
    work->alone = alone;
    work->contended = contended;
    work->since = now;
    return work->beside > 0 ? contended : alone;
}

static void end_compute(Devices *d, int32_t rank, int64_t now)
{
    if (d->loads[rank].settle > 0)
        end_load(&d->loads[rank], now);
    d->works[rank].task = -1;
}

/* One kernel more or less; the compute whose pace changes by that and when it will end, or -1. */
static int32_t change_pace(Work *work, int64_t now, int by, int64_t *end)
{
    int before = work->beside > 0;
    work->beside += by;
    int after = work->beside > 0;
    if (work->task < 0 || before == after)
        return -1;
    work->left -= (__int128)(now - work->since) * (before ? work->alone : work->contended);
    work->since = now;
    int64_t pace = after ? work->alone : work->contended;
    /* Rounded up; nothing may be left, or less than one ns of it, which truncates to 0. */
    *end = now + (int64_t)(work->left / pace) + (work->left % pace > 0);
    return work->task;
}

#endif

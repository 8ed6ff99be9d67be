/* The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.
 *
 * The same steps in the same order as the Python loop in loop.py, so that ties are broken and floats rounded alike.
 */
#ifndef ENGINE_LOOP_H
#define ENGINE_LOOP_H

#include "_engine_device.h"

typedef struct {
    int64_t end;
    int32_t task;
} Event;

/* A binary heap by (end, task). */
typedef struct {
    Event *at;
    Py_ssize_t count;
} Queue;

static inline int sooner(Event a, Event b)
{
    return a.end < b.end || (a.end == b.end && a.task < b.task);
}

static void push(Queue *q, Event event)
{
    Py_ssize_t at = q->count++;
    while (at) {
        Py_ssize_t parent = (at - 1) / 2;
        if (!sooner(event, q->at[parent]))
            break;
        q->at[at] = q->at[parent];
        at = parent;
    }
    q->at[at] = event;
}

static Event pop(Queue *q)
{
    Event first = q->at[0], last = q->at[--q->count];
    Py_ssize_t at = 0, child;
    while ((child = 2 * at + 1) < q->count) {
        if (child + 1 < q->count && sooner(q->at[child + 1], q->at[child]))
            child++;
        if (!sooner(q->at[child], last))
            break;
        q->at[at] = q->at[child];
        at = child;
    }
    q->at[at] = last;
    return first;
}

typedef struct {
    Rows after;             /* per task, those that wait for it */
    const int64_t *durations;
    const int32_t *link_of; /* per task, the link it occupies; -1 for none */
    const int32_t *heads;   /* per task on a link, the one that begins as it starts; -1 for none. NULL if none does */
    int32_t *needs;
    int64_t *free;          /* per link, when it is free again */
    int64_t *start, *end;
    uint8_t *done;
    Devices devices;
    Queue queue;
} Loop;

/* How much each task queues at most: itself and its head when it begins, another one when a kernel comes or leaves. */
enum { QUEUED = 4 };

static inline void until(Loop *loop, int32_t task, int64_t end)
{
    loop->end[task] = end;
    push(&loop->queue, (Event){end, task});
}

/* A message comes to a link, and goes on to the next one where there is one. */
static inline int64_t take_link(Loop *loop, int32_t link, int32_t task, int64_t now, int64_t duration)
{
    if (loop->free[link] > now)
        now = loop->free[link];
    loop->free[link] = now + duration;
    int32_t head = loop->heads ? loop->heads[task] : -1;
    if (head >= 0) {
        loop->start[head] = now;
        until(loop, head, now + loop->durations[head]);
    }
    return now;
}

static inline void begin(Loop *loop, int32_t task, int64_t now)
{
    int32_t link = loop->link_of[task];
    int64_t duration = loop->durations[task];
    if (link >= 0) {
        now = take_link(loop, link, task, now, duration);
    } else if (loop->devices.kinds && is_compute(&loop->devices, task)) {
        duration = begin_compute(&loop->devices, task, now, duration);
    }
    loop->start[task] = now;
    until(loop, task, now + duration);
}

/* A kernel comes to a device or leaves it. */
static inline void change(Loop *loop, int32_t rank, int64_t now, int by)
{
    int64_t end;
    int32_t task = change_pace(&loop->devices.works[rank], now, by, &end);
    if (task >= 0 && loop->end[task] != end)
        until(loop, task, end);
}

static inline void finish(Loop *loop, int32_t task, int64_t now)
{
    Devices *devices = &loop->devices;
    if (is_compute(devices, task))
        end_compute(devices, devices->ranks[task], now);
    else if (devices->kinds[task] == POST && !(devices->moved[task] & HAS_LEFT)) {
        devices->moved[task] = HAS_COME;
        change(loop, devices->ranks[task], now, 1);
    }
    int32_t post = devices->leaves[task];
    if (post < 0)
        return;
    if (devices->moved[post] & HAS_COME)
        change(loop, devices->ranks[post], now, -1);
    devices->moved[post] |= HAS_LEFT;
}

/* Runs every task that can start; how many could not. */
static Py_ssize_t run_loop(Loop *loop)
{
    Py_ssize_t tasks = loop->after.rows, left = tasks;
    for (Py_ssize_t task = 0; task < tasks; task++)
        if (!loop->needs[task])
            begin(loop, (int32_t)task, 0);
    while (loop->queue.count) {
        Event event = pop(&loop->queue);
        if (loop->done[event.task] || event.end != loop->end[event.task])
            continue; /* slowed down or sped up meanwhile */
        loop->done[event.task] = 1;
        left--;
        if (loop->devices.kinds)
            finish(loop, event.task, event.end);
        for (int32_t i = loop->after.first[event.task]; i < loop->after.first[event.task + 1]; i++)
            if (!--loop->needs[loop->after.at[i]])
                begin(loop, loop->after.at[i], event.end);
    }
    return left;
}

#endif

/* The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.
 *
 * The same steps in the same order as the Python loop in engine.py, so that ties are broken alike.
 */
#ifndef ENGINE_LOOP_H
#define ENGINE_LOOP_H

#include "_engine_buffers.h"

typedef struct {
    int64_t end;
    int32_t task;
} Event;

/* A binary heap by (end, task). Room for every task: each is queued once. */
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
    int32_t *needs;
    int64_t *free;          /* per link, when it is free again */
    int64_t *start, *end;
    Queue queue;
} Loop;

static inline void begin(Loop *loop, int32_t task, int64_t now)
{
    int32_t link = loop->link_of[task];
    if (link >= 0 && loop->free[link] > now)
        now = loop->free[link];
    loop->start[task] = now;
    loop->end[task] = now + loop->durations[task];
    if (link >= 0)
        loop->free[link] = loop->end[task];
    push(&loop->queue, (Event){loop->end[task], task});
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
        left--;
        for (int32_t i = loop->after.first[event.task]; i < loop->after.first[event.task + 1]; i++)
            if (!--loop->needs[loop->after.at[i]])
                begin(loop, loop->after.at[i], event.end);
    }
    return left;
}

#endif

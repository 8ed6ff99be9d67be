/* The compiled replay engine: topological order, static sweep and event loop on a task graph's arrays.
 *
 * engine.py and sweep.py do the same without it. All times are int64 ns.
 */
#include "_engine_buffers.h"
#include "_engine_loop.h"
#include "_engine_sweep.h"

static PyObject *order_tasks(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *first, *at, *out;
    if (!PyArg_ParseTuple(args, "OOO:order", &first, &at, &out))
        return NULL;
    Buffers held = {.count = 0};
    Rows after;
    PyObject *result = NULL;
    int32_t *needs = NULL;
    if (!take_rows(&held, first, at, INT32_MAX, &after, "after") ||
        !in_range(after.at, after.first[after.rows], 0, (int32_t)after.rows, "after"))
        goto done;
    int32_t *order = take_flat(&held, out, 1, sizeof(int32_t), after.rows, "out");
    if (!order)
        goto done;
    needs = calloc((size_t)after.rows + 1, sizeof(int32_t));
    if (!needs) {
        PyErr_NoMemory();
        goto done;
    }
    for (int32_t i = 0; i < after.first[after.rows]; i++)
        needs[after.at[i]]++;
    Py_ssize_t found = 0;
    for (Py_ssize_t task = 0; task < after.rows; task++)
        if (!needs[task])
            order[found++] = (int32_t)task;
    for (Py_ssize_t place = 0; place < found; place++)
        for (int32_t i = after.first[order[place]]; i < after.first[order[place] + 1]; i++)
            if (!--needs[after.at[i]])
                order[found++] = after.at[i];
    result = PyLong_FromSsize_t(found);
done:
    free(needs);
    release_all(&held);
    return result;
}

/* Fills devices from (contended, kinds, ranks, leaves, loads, work); 0 on failure. */
static int take_devices(Buffers *held, PyObject *slow, Devices *d, Py_ssize_t tasks)
{
    PyObject *contended, *kinds, *ranks, *leaves, *loads, *work;
    if (!PyArg_ParseTuple(slow, "OOOOOO:slow", &contended, &kinds, &ranks, &leaves, &loads, &work))
        return 0;
    Py_buffer *view = take(held, loads, PyBUF_CONTIG_RO, sizeof(double), "loads");
    if (!view)
        return 0;
    const double *load = view->buf;
    Py_ssize_t count = view->len / (LOAD_FIELDS * (Py_ssize_t)sizeof(double));
    d->count = count;
    if (!(d->contended = take_flat(held, contended, 0, sizeof(int64_t), tasks, "contended")) ||
        !(d->ranks = take_flat(held, ranks, 0, sizeof(int32_t), tasks, "ranks")) ||
        !(d->leaves = take_flat(held, leaves, 0, sizeof(int32_t), tasks, "leaves")) ||
        !in_range(d->ranks, tasks, 0, (int32_t)count, "ranks") ||
        !in_range(d->leaves, tasks, -1, (int32_t)tasks, "leaves") ||
        !(d->work = take_flat(held, work, 1, sizeof(double), count, "work")) ||
        !(d->kinds = take_flat(held, kinds, 0, 1, tasks, "kinds")))
        return 0;
    d->works = calloc((size_t)count + 1, sizeof(Work));
    d->loads = calloc((size_t)count + 1, sizeof(Load));
    d->moved = calloc((size_t)tasks + 1, 1);
    if (!d->works || !d->loads || !d->moved) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t rank = 0; rank < count; rank++, load += LOAD_FIELDS) {
        d->works[rank].task = -1;
        d->loads[rank] = (Load){load[0], load[1], load[2], load[3], load[4], load[5], load[6], load[7], .since = -1};
    }
    return 1;
}

static PyObject *run_tasks(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *first, *at, *durations, *link_of, *heads, *start, *end, *slow;
    int links;
    if (!PyArg_ParseTuple(args, "OOOOiOOOO:run", &first, &at, &durations, &link_of, &links, &heads, &start, &end,
                          &slow))
        return NULL;
    Buffers held = {.count = 0};
    Loop loop = {.needs = NULL};
    PyObject *result = NULL;
    if (!take_rows(&held, first, at, INT32_MAX, &loop.after, "after"))
        goto done;
    Py_ssize_t tasks = loop.after.rows, edges = loop.after.first[tasks];
    if (!in_range(loop.after.at, edges, 0, (int32_t)tasks, "after") ||
        !(loop.durations = take_flat(&held, durations, 0, sizeof(int64_t), tasks, "durations")) ||
        !(loop.link_of = take_flat(&held, link_of, 0, sizeof(int32_t), tasks, "link_of")) ||
        !in_range(loop.link_of, tasks, -1, links, "link_of") ||
        (heads != Py_None && (!(loop.heads = take_flat(&held, heads, 0, sizeof(int32_t), tasks, "heads")) ||
                              !in_range(loop.heads, tasks, -1, (int32_t)tasks, "heads"))) ||
        !(loop.start = take_flat(&held, start, 1, sizeof(int64_t), tasks, "start")) ||
        !(loop.end = take_flat(&held, end, 1, sizeof(int64_t), tasks, "end")) ||
        (slow != Py_None && !take_devices(&held, slow, &loop.devices, tasks)))
        goto done;
    loop.needs = calloc((size_t)tasks + 1, sizeof(int32_t));
    loop.free = calloc((size_t)links + 1, sizeof(int64_t));
    loop.done = calloc((size_t)tasks + 1, 1);
    loop.queue.at = malloc(((size_t)tasks * QUEUED + 1) * sizeof(Event));
    if (!loop.needs || !loop.free || !loop.done || !loop.queue.at) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t task = 0; task < tasks; task++)
        loop.start[task] = loop.end[task] = -1;
    for (Py_ssize_t i = 0; i < edges; i++)
        loop.needs[loop.after.at[i]]++;
    for (Py_ssize_t task = 0; loop.heads && task < tasks; task++)
        if (loop.heads[task] >= 0)
            loop.needs[loop.heads[task]]++;
    Py_ssize_t left;
    Py_BEGIN_ALLOW_THREADS
    left = run_loop(&loop);
    Py_END_ALLOW_THREADS
    for (Py_ssize_t rank = 0; rank < loop.devices.count; rank++)
        loop.devices.work[rank] = loop.devices.loads[rank].work;
    result = PyLong_FromSsize_t(left);
done:
    free(loop.needs);
    free(loop.free);
    free(loop.done);
    free(loop.queue.at);
    free(loop.devices.works);
    free(loop.devices.loads);
    free(loop.devices.moved);
    release_all(&held);
    return result;
}

/* A flat buffer of nodes. */
static const int32_t *take_nodes(Buffers *held, PyObject *object, Py_ssize_t nodes, Py_ssize_t *count,
                                 const char *name)
{
    Py_buffer *view = take(held, object, PyBUF_CONTIG_RO, sizeof(int32_t), name);
    if (!view)
        return NULL;
    *count = view->len / (Py_ssize_t)sizeof(int32_t);
    return in_range(view->buf, *count, 0, (int32_t)nodes, name) ? view->buf : NULL;
}

static int take_durations(Buffers *held, PyObject *base, PyObject *varying, PyObject *values, Sweep *s,
                          Py_ssize_t first, Py_ssize_t last)
{
    Py_buffer *view = take(held, base, PyBUF_CONTIG_RO, sizeof(int64_t), "base");
    if (!view)
        return 0;
    s->base = view->buf;
    s->classes = view->len / (Py_ssize_t)sizeof(int64_t);
    s->varying = take_nodes(held, varying, s->classes, &s->varying_count, "varying");
    if (!s->varying || !(view = take(held, values, PyBUF_STRIDED_RO, sizeof(int64_t), "values")))
        return 0;
    if (view->ndim != 2 || view->shape[0] != s->varying_count || first < 0 || last < first || last > view->shape[1]) {
        PyErr_SetString(PyExc_ValueError, "values: not varying by scenarios, or no such scenarios");
        return 0;
    }
    s->values = view->buf;
    s->class_stride = view->strides[0];
    s->scenario_stride = view->strides[1];
    return 1;
}

static int take_out(Buffers *held, PyObject *out, PyObject *failed, Sweep *s, Py_ssize_t last)
{
    Py_buffer *view = take(held, out, PyBUF_CONTIG, sizeof(int64_t), "out");
    if (!view)
        return 0;
    s->out = view->buf;
    if (view->ndim != 2 || view->shape[0] != s->wanted_count || view->shape[1] < last) {
        PyErr_SetString(PyExc_ValueError, "out: not wanted by scenarios");
        return 0;
    }
    s->out_stride = view->shape[1];
    s->failed = take_flat(held, failed, 1, 1, last, "failed");
    return s->failed != NULL;
}

static PyObject *sweep_nodes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *order, *first, *at, *class_of, *base, *varying, *values, *wanted, *earlier, *later, *out, *failed;
    Py_ssize_t from, to;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOnn:sweep", &order, &first, &at, &class_of, &base, &varying, &values,
                          &wanted, &earlier, &later, &out, &failed, &from, &to))
        return NULL;
    Buffers held = {.count = 0};
    Sweep s = {.out = NULL};
    PyObject *result = NULL;
    Py_ssize_t nodes, classified, pairs;
    if (!take_rows(&held, first, at, INT32_MAX, &s.before, "before"))
        goto done;
    if (!(s.order = take_nodes(&held, order, s.before.rows, &nodes, "order")) || nodes != s.before.rows ||
        !in_range(s.before.at, s.before.first[nodes], 0, (int32_t)nodes, "before")) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "order: not every node once");
        goto done;
    }
    if (!take_durations(&held, base, varying, values, &s, from, to) ||
        !(s.class_of = take_nodes(&held, class_of, s.classes, &classified, "class_of")) ||
        !(s.wanted = take_nodes(&held, wanted, nodes, &s.wanted_count, "wanted")) ||
        !(s.earlier = take_nodes(&held, earlier, nodes, &s.pair_count, "earlier")) ||
        !(s.later = take_nodes(&held, later, nodes, &pairs, "later")) || !take_out(&held, out, failed, &s, to))
        goto done;
    if (classified != nodes || pairs != s.pair_count) {
        PyErr_SetString(PyExc_ValueError, "class_of or later: of another length");
        goto done;
    }
    int enough;
    Py_BEGIN_ALLOW_THREADS
    enough = sweep_range(&s, nodes, from, to);
    Py_END_ALLOW_THREADS
    if (enough)
        result = Py_NewRef(Py_None);
    else
        PyErr_NoMemory();
done:
    release_all(&held);
    return result;
}

static PyMethodDef methods[] = {
    {"order", order_tasks, METH_VARARGS,
     "order(first, at, out) -> how many tasks were put in topological order into out"},
    {"run", run_tasks, METH_VARARGS,
     "run(first, at, durations, link_of, links, heads, start, end, slow) -> how many tasks could not start"},
    {"sweep", sweep_nodes, METH_VARARGS,
     "sweep(order, first, at, class_of, base, varying, values, wanted, earlier, later, out, failed, from, to)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_engine", "The compiled replay engine.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__engine(void)
{
    return PyModule_Create(&module);
}

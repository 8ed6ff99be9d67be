/* Buffers that Python hands over, checked before anything is read through them. */
#ifndef ENGINE_BUFFERS_H
#define ENGINE_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MOST_BUFFERS = 24 }; /* more than any call hands over */

/* All buffers of one call, to be released together. */
typedef struct {
    Py_buffer views[MOST_BUFFERS];
    int count;
} Buffers;

static void release_all(Buffers *held)
{
    while (held->count)
        PyBuffer_Release(&held->views[--held->count]);
}

static Py_buffer *take(Buffers *held, PyObject *object, int flags, Py_ssize_t size, const char *name)
{
    Py_buffer *view = &held->views[held->count];
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return NULL;
    held->count++;
    if (view->itemsize != size) {
        PyErr_Format(PyExc_ValueError, "%s: items of %zd bytes, expected %zd", name, view->itemsize, size);
        return NULL;
    }
    return view;
}

/* A flat buffer of at least `least` items. */
static void *take_flat(Buffers *held, PyObject *object, int writable, Py_ssize_t size, Py_ssize_t least,
                       const char *name)
{
    Py_buffer *view = take(held, object, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO, size, name);
    if (!view)
        return NULL;
    if (view->len < least * size) {
        PyErr_Format(PyExc_ValueError, "%s: too short", name);
        return NULL;
    }
    return view->buf;
}

static int in_range(const int32_t *values, Py_ssize_t count, int32_t low, int32_t high, const char *name)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i] < low || values[i] >= high) {
            PyErr_Format(PyExc_ValueError, "%s: %d is out of range", name, (int)values[i]);
            return 0;
        }
    return 1;
}

/* Rows of neighbours: row i is at[first[i]] to at[first[i + 1]]. */
typedef struct {
    const int32_t *first;
    const int32_t *at;
    Py_ssize_t rows;
} Rows;

/* Fills rows from two buffers; every neighbour is below `high`. */
static int take_rows(Buffers *held, PyObject *first, PyObject *at, int32_t high, Rows *rows, const char *name)
{
    Py_buffer *view = take(held, first, PyBUF_CONTIG_RO, sizeof(int32_t), name);
    if (!view)
        return 0;
    rows->first = view->buf;
    rows->rows = view->len / (Py_ssize_t)sizeof(int32_t) - 1;
    view = take(held, at, PyBUF_CONTIG_RO, sizeof(int32_t), name);
    if (!view)
        return 0;
    rows->at = view->buf;
    Py_ssize_t edges = view->len / (Py_ssize_t)sizeof(int32_t);
    if (rows->rows < 0 || rows->first[0] != 0 || rows->first[rows->rows] != edges) {
        PyErr_Format(PyExc_ValueError, "%s: rows do not cover their neighbours", name);
        return 0;
    }
    for (Py_ssize_t i = 0; i < rows->rows; i++)
        if (rows->first[i] > rows->first[i + 1]) {
            PyErr_Format(PyExc_ValueError, "%s: rows run backwards", name);
            return 0;
        }
    return in_range(rows->at, edges, 0, high, name);
}

#endif

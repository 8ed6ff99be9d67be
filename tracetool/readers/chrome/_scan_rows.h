/* One call of scan: the cells of the current event, and the rows they become. */
#ifndef TRACETOOL_SCAN_ROWS_H
#define TRACETOOL_SCAN_ROWS_H

#include "_scan_shape.h"

typedef enum { ABSENT, NUMBER, RAW } CellState;

typedef struct {
    uint64_t event; /* the cell is empty unless this is the current event */
    CellState state;
    Text raw;
    int64_t number;
} Cell;

typedef struct {
    PyObject *values, *valid; /* bytearrays; text has codes and no valid */
    Byte *values_at, *valid_at;
    Py_ssize_t filled; /* rows written: those without a cell are filled in when the next one gets its own */
    Distinct distinct;
} Column;

typedef struct {
    const Scanner *scanner;
    Window window;
    uint64_t event;
    int n_args; /* of the current event */
    Cell *cells;
    int *touched;
    Py_ssize_t n_touched;
    Column *columns;
    Py_ssize_t rows, room;
    Distinct pairs; /* (ph, cat) */
    Shapes shapes;
    PyObject *odd;
} Scan;

/* Cells of the current event. */

static inline int is_plain(const Window *w, Text raw, Kind kind, int64_t *number)
{
    if (w->stop - raw.p >= NUMBER_MARGIN && scan_plain_number(raw.p, kind, number) == raw.p + raw.n)
        return 1;
    return plain_number(raw, kind, number);
}

static inline void set_cells(Scan *s, int field, Text raw)
{
    int null = raw.n == 4 && *raw.p == 'n';
    for (; field >= 0; field = s->scanner->fields[field].next) {
        Kind kind = s->scanner->fields[field].kind;
        Cell *cell = &s->cells[field];
        if (cell->event != s->event) {
            cell->event = s->event;
            s->touched[s->n_touched++] = field;
        } else {
            s->shapes.plain = 0;
        }
        cell->raw = raw;
        cell->state = null ? ABSENT : kind != TEXT && is_plain(&s->window, raw, kind, &cell->number) ? NUMBER : RAW;
    }
}

static inline Text cell_text(const Scan *s, int field)
{
    const Cell *cell = &s->cells[field];
    return cell->event == s->event && cell->state == RAW ? cell->raw : (Text){(const Byte *)"", 0};
}

/* The last args object of an event counts, so nothing of an earlier one may stay. */
static void clear_args(Scan *s)
{
    if (s->n_args++)
        s->shapes.plain = 0;
    for (Py_ssize_t i = 0; i < s->n_touched; i++)
        if (s->scanner->fields[s->touched[i]].in_args)
            s->cells[s->touched[i]].state = ABSENT;
}

/* Columns. */

static int grow_columns(Scan *s, Py_ssize_t room)
{
    if (room > PY_SSIZE_T_MAX / 16) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < s->scanner->n_fields; i++) {
        Column *c = &s->columns[i];
        Py_ssize_t width = s->scanner->fields[i].kind == TEXT ? 4 : 8;
        if (PyByteArray_Resize(c->values, room * width) < 0 || (c->valid && PyByteArray_Resize(c->valid, room) < 0))
            return -1;
        c->values_at = (Byte *)PyByteArray_AS_STRING(c->values);
        if (c->valid)
            c->valid_at = (Byte *)PyByteArray_AS_STRING(c->valid);
    }
    s->room = room;
    return 0;
}

/* Rows nobody sets are 0 and not valid; absent text is -1. */
static inline void fill_column(Column *c, Py_ssize_t rows)
{
    size_t missing = (size_t)(rows - c->filled);
    if (!missing)
        return;
    if (c->valid) {
        memset(c->values_at + c->filled * 8, 0, missing * 8);
        memset(c->valid_at + c->filled, 0, missing);
    } else {
        memset(c->values_at + c->filled * 4, 0xFF, missing * 4);
    }
    c->filled = rows;
}

static inline void put_number(Column *c, Py_ssize_t row, int64_t number)
{
    fill_column(c, row);
    memcpy(c->values_at + row * 8, &number, 8);
    c->valid_at[row] = 1;
    c->filled = row + 1;
}

static inline void put_code(Column *c, Py_ssize_t row, int32_t code)
{
    fill_column(c, row);
    memcpy(c->values_at + row * 4, &code, 4);
    c->filled = row + 1;
}

static inline int32_t code_at(const Column *c, Py_ssize_t row)
{
    int32_t code = -1;
    if (row < c->filled)
        memcpy(&code, c->values_at + row * 4, 4);
    return code;
}

static int add_odd(Scan *s, int field, Text raw)
{
    PyObject *odd = Py_BuildValue("iny#", field, s->rows, (const char *)raw.p, raw.n);
    int failed = !odd || PyList_Append(s->odd, odd) < 0;
    Py_XDECREF(odd);
    return failed ? -1 : 0;
}

static inline int make_room(Scan *s)
{
    return s->rows == s->room ? grow_columns(s, s->room + s->room / 2 + 16) : 0;
}

static int add_row(Scan *s)
{
    if (make_room(s) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < s->n_touched; i++) {
        int field = s->touched[i];
        const Cell *cell = &s->cells[field];
        Column *c = &s->columns[field];
        if (cell->state == NUMBER) {
            put_number(c, s->rows, cell->number);
        } else if (cell->state == RAW && c->valid) {
            if (add_odd(s, field, cell->raw) < 0)
                return -1;
        } else if (cell->state == RAW) {
            int32_t code = distinct_index(&c->distinct, cell->raw, (Text){NULL, 0});
            if (code < 0) {
                PyErr_NoMemory();
                return -1;
            }
            put_code(c, s->rows, code);
        }
    }
    s->rows++;
    return 0;
}

static int scan_begin(Scan *s, Py_ssize_t size)
{
    size_t n = (size_t)s->scanner->n_fields;
    s->cells = PyMem_Calloc(n, sizeof(Cell));
    s->touched = PyMem_Calloc(n, sizeof(int));
    s->columns = PyMem_Calloc(n, sizeof(Column));
    if (!s->cells || !s->touched || !s->columns || shapes_begin(&s->shapes) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        Column *c = &s->columns[i];
        c->values = PyByteArray_FromStringAndSize(NULL, 0);
        if (!c->values)
            return -1;
        if (s->scanner->fields[i].kind != TEXT && !(c->valid = PyByteArray_FromStringAndSize(NULL, 0)))
            return -1;
    }
    s->odd = PyList_New(0);
    return s->odd ? grow_columns(s, size / 256 + 1) : -1;
}

static void scan_end(Scan *s)
{
    for (Py_ssize_t i = 0; s->columns && i < s->scanner->n_fields; i++) {
        Py_XDECREF(s->columns[i].values);
        Py_XDECREF(s->columns[i].valid);
        distinct_free(&s->columns[i].distinct);
    }
    PyMem_Free(s->columns);
    PyMem_Free(s->cells);
    PyMem_Free(s->touched);
    PyMem_Free(s->shapes.steps);
    distinct_free(&s->pairs);
    Py_XDECREF(s->odd);
}

#endif

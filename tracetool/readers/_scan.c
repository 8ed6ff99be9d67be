/* The compiled event scanner: a window of Chrome-trace text to columns of raw values.
 *
 * It takes only what is strictly valid JSON of the usual shape and leaves the rest to Python (DECLINED),
 * so every check here may be stricter than JSON but never laxer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_scan_shape.h"

#if PY_BIG_ENDIAN
#error "columns are little-endian; the plain scanner serves here"
#endif

/* What a Scanner was made for. */

typedef struct {
    Text key;
    Kind kind;
    int in_args;
    int next; /* another field of the same key, or -1 */
} Field;

typedef struct {
    Text key; /* p is NULL in a free slot */
    int field; /* the first field of this key, or -1 */
    int is_args;
} KeySlot;

typedef struct {
    KeySlot *slots;
    size_t mask;
} Keys;

typedef struct {
    Text ph;
    Text *cats; /* NULL: any */
    Py_ssize_t n_cats;
} Wanted;

typedef struct {
    PyObject_HEAD
    Py_ssize_t n_fields, n_wanted;
    Field *fields;
    Wanted *wanted;
    Keys event_keys, args_keys;
    int fields_have_own_keys; /* no key, nor args as a whole, serves several */
    PyObject *owned; /* list of the bytes objects that the texts above point into */
} Scanner;

static inline size_t key_slot(Text key)
{
    return key.n ? (size_t)key.n + 7 * (size_t)key.p[0] + 31 * (size_t)key.p[key.n - 1] : 0;
}

static inline const KeySlot *find_key(const Keys *keys, Text key)
{
    for (size_t at = key_slot(key) & keys->mask;; at = (at + 1) & keys->mask) {
        const KeySlot *slot = &keys->slots[at];
        if (!slot->key.p)
            return NULL;
        if (same(slot->key, key))
            return slot;
    }
}

/* One call of scan. */

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
    Py_ssize_t filled; /* rows written; those after it that get no cell are filled in when the next one does */
    Distinct distinct;
} Column;

/* A value of an event whose shape is known. */
typedef struct {
    Step *step;
    CellState state;
    int32_t code; /* of a text met before, or -1 */
    Text raw;
    int64_t number;
} Staged;

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

/* Events. */

static inline const Byte *scan_args(Scan *s, const Byte *p);

/* The members of the event (levels 1) or of its args (levels 2); p is after the brace. */
static inline const Byte *scan_members(Scan *s, const Byte *p, const Keys *keys, int levels)
{
    Window *w = &s->window;
    const Byte *stop = w->stop;
    Text key;
    p = skip_space(p, stop);
    if (p < stop && *p == '}')
        return p + 1;
    for (;;) {
        p = scan_key(w, p, &key);
        if (!p)
            return NULL;
        const KeySlot *slot = find_key(keys, key);
        const Byte *value = p;
        int field = slot ? slot->field : -1;
        if (levels == 1 && slot && slot->is_args) {
            p = scan_args(s, p);
        } else {
            p = scan_value(w, p, levels);
            if (p && field != 0 && field != 1)
                note_member(&s->shapes, (Member){(Text){value, p - value}, field, levels,
                                                 slot && field >= 0 ? s->scanner->fields[field].kind : NO_FIELD});
        }
        if (!p)
            return NULL;
        if (slot)
            set_cells(s, field, (Text){value, p - value});
        p = skip_space(p, stop);
        if (p < stop && *p == '}')
            return p + 1;
        if (p == stop || *p != ',')
            return unfit(w, p);
        p = skip_space(p + 1, stop);
    }
}

static inline const Byte *scan_args(Scan *s, const Byte *p)
{
    clear_args(s);
    if (*p == '{')
        return scan_members(s, p + 1, &s->scanner->args_keys, 2);
    return *p == 'n' ? scan_word(&s->window, p, "null") : give_up(&s->window, DECLINED);
}

static int is_wanted(const Scanner *scanner, Text ph, Text cat)
{
    for (Py_ssize_t i = 0; i < scanner->n_wanted; i++) {
        const Wanted *w = &scanner->wanted[i];
        if (!same(w->ph, ph))
            continue;
        if (!w->cats)
            return 1;
        for (Py_ssize_t j = 0; j < w->n_cats; j++)
            if (same(w->cats[j], cat))
                return 1;
        return 0;
    }
    return 0;
}

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

static int learn(Scan *s, const Byte *from, const Byte *end, int32_t pair, Text ph, Text cat)
{
    int taken = s->pairs.entries[pair].keep;
    Step *step = learn_shape(&s->shapes, from, end, taken);
    if (!step)
        return 0;
    step->pair = pair;
    /* The row was added: both are there. */
    step->ph = taken && ph.n ? distinct_index(&s->columns[0].distinct, ph, (Text){NULL, 0}) : -1;
    step->cat = taken && cat.n ? distinct_index(&s->columns[1].distinct, cat, (Text){NULL, 0}) : -1;
    s->shapes.end = step;
    return 0;
}

/* The event at p; from is the end of the one before. */
static const Byte *scan_event(Scan *s, const Byte *p, const Byte *from)
{
    s->event++;
    s->n_touched = 0;
    s->n_args = 0;
    s->shapes.n_members = 0;
    s->shapes.plain = s->scanner->fields_have_own_keys && s->shapes.credit > 0;
    p = scan_members(s, p + 1, &s->scanner->event_keys, 1);
    if (!p)
        return NULL;
    Text ph = cell_text(s, 0), cat = cell_text(s, 1);
    int32_t pair = distinct_index(&s->pairs, ph, cat);
    if (pair < 0) {
        PyErr_NoMemory();
        return give_up(&s->window, FAILED);
    }
    Entry *entry = &s->pairs.entries[pair];
    if (!entry->count++)
        entry->keep = is_wanted(s->scanner, ph, cat);
    if (entry->keep && add_row(s) < 0)
        return give_up(&s->window, FAILED);
    s->shapes.end = s->shapes.steps;
    if (s->shapes.plain && s->window.stop - p >= SHAPE_MARGIN)
        learn(s, from, p, pair, ph, cat);
    return p;
}

/* Events of a shape met before. */

/* A value that no row needs. */
static inline const Byte *pass_value(Window *w, const Byte *p, Step *step)
{
    const Byte *end = pass_short_number(p);
    if (end)
        return end;
    if (step->recent.n && w->stop - p >= step->recent.n && begins(p, step->recent))
        return p + step->recent.n;
    end = scan_value(w, p, step->levels);
    if (end && (*p == '"' || *p == '[' || *p == '{'))
        step->recent = (Text){p, end - p};
    return end;
}

/* A text that came after the last one before, from its first byte; NULL if it is another. */
static inline const Byte *expected_text(const Window *w, const Byte *p, const Distinct *texts, Staged *staged)
{
    if (staged->step->last < 0)
        return NULL;
    const Entry *before = &texts->entries[staged->step->last];
    for (int i = 0; i < 2 && before->next[i] >= 0; i++) {
        Text text = texts->entries[before->next[i]].a;
        if (w->stop - p >= text.n && begins(p, text)) {
            staged->code = before->next[i];
            return p + text.n;
        }
    }
    return NULL;
}

static inline const Byte *stage_value(Scan *s, const Byte *p, Staged *staged)
{
    const Step *step = staged->step;
    Kind kind = step->kind;
    const Byte *end = NULL;
    staged->state = NUMBER;
    if (kind != TEXT) {
        if ((end = scan_plain_number(p, kind, &staged->number)))
            return end;
    } else {
        staged->state = RAW;
        if ((end = expected_text(&s->window, p, &s->columns[step->field].distinct, staged)))
            return end;
        staged->code = -1;
    }
    end = scan_value(&s->window, p, step->levels);
    if (!end)
        return NULL;
    staged->raw = (Text){p, end - p};
    if (end - p == 4 && *p == 'n')
        staged->state = ABSENT;
    else if (kind != TEXT)
        staged->state = plain_number(staged->raw, kind, &staged->number) ? NUMBER : RAW;
    return end;
}

/* The code of a text, which is expected next time after the same one before. */
static inline int32_t staged_code(Distinct *texts, const Staged *staged)
{
    Step *step = staged->step;
    int32_t code = staged->code >= 0 ? staged->code : distinct_index(texts, staged->raw, (Text){NULL, 0});
    if (code >= 0 && step->last >= 0) {
        int32_t *next = texts->entries[step->last].next;
        if (next[0] != code) {
            next[1] = next[0];
            next[0] = code;
        }
    }
    step->last = code;
    return code;
}

static int add_staged(Scan *s, const Step *end, const Staged *staged, int n)
{
    if (make_room(s) < 0)
        return -1;
    if (end->ph >= 0)
        put_code(&s->columns[0], s->rows, end->ph);
    if (end->cat >= 0)
        put_code(&s->columns[1], s->rows, end->cat);
    for (int i = 0; i < n; i++) {
        int field = staged[i].step->field;
        Column *c = &s->columns[field];
        if (staged[i].state == NUMBER) {
            put_number(c, s->rows, staged[i].number);
        } else if (staged[i].state == RAW && c->valid) {
            if (add_odd(s, field, staged[i].raw) < 0)
                return -1;
        } else if (staged[i].state == RAW) {
            int32_t code = staged_code(&c->distinct, &staged[i]);
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

/* The event after p, the end of the one before, if its shape was met; NULL leaves it to the general way, which
 * alone decides what is wrong with it, if anything is (or FAILED). */
static inline const Byte *match_event(Scan *s, const Byte *p)
{
    Shapes *shapes = &s->shapes;
    Window *w = &s->window;
    Staged staged[MOST_SHAPE_VALUES];
    int n = 0;
    Step *step = follow_end(shapes, p, w->stop);
    if (!step)
        return NULL;
    while (step->levels) {
        p += step->text.n;
        if (step->kind == NO_FIELD) {
            p = pass_value(w, p, step);
        } else {
            staged[n].step = step;
            p = stage_value(s, p, &staged[n++]);
        }
        if (!p || !(step = follow(step, p, w->stop)))
            return NULL;
    }
    Entry *entry = &s->pairs.entries[step->pair];
    entry->count++;
    if (entry->keep && add_staged(s, step, staged, n) < 0)
        return give_up(w, FAILED);
    shapes->end = step;
    shape_hit(shapes);
    return p + step->text.n;
}

static Status scan_window(Scan *s, const Byte *p, const Byte **end)
{
    int comma = 0;
    *end = p;
    for (;;) {
        if (p == *end && s->shapes.credit > 0) {
            s->window.verdict = DECLINED;
            const Byte *matched = match_event(s, p);
            if (matched) {
                *end = p = matched;
                continue;
            }
            if (s->window.verdict == FAILED)
                return FAILED;
            s->shapes.credit -= 2;
        }
        p = skip_space(p, s->window.stop);
        if (p == s->window.stop)
            return MORE;
        if (*p == '{') {
            p = scan_event(s, p, *end);
            if (!p)
                return s->window.verdict;
            *end = p;
            comma = 0;
        } else if (*p == ',' && !comma) {
            comma = 1;
            p++;
        } else if (*p == ']') {
            *end = p + 1;
            return CLOSED;
        } else {
            return DECLINED;
        }
    }
}

/* Results as Python objects. */

static PyObject *text_bytes(Text t) { return PyBytes_FromStringAndSize((const char *)t.p, t.n); }

static PyObject *make_unique(const Distinct *d)
{
    PyObject *unique = PyList_New(d->used);
    for (int32_t i = 0; unique && i < d->used; i++) {
        PyObject *value = text_bytes(d->entries[i].a);
        if (!value)
            Py_CLEAR(unique);
        else
            PyList_SET_ITEM(unique, i, value);
    }
    return unique;
}

static PyObject *make_columns(Scan *s)
{
    PyObject *columns = PyList_New(s->scanner->n_fields);
    for (Py_ssize_t i = 0; columns && i < s->scanner->n_fields; i++) {
        Column *c = &s->columns[i];
        PyObject *column = c->valid ? Py_BuildValue("OO", c->values, c->valid)
                                    : Py_BuildValue("ON", c->values, make_unique(&c->distinct));
        if (!column)
            Py_CLEAR(columns);
        else
            PyList_SET_ITEM(columns, i, column);
    }
    return columns;
}

static PyObject *make_skipped(const Distinct *pairs)
{
    PyObject *skipped = PyDict_New();
    for (int32_t i = 0; skipped && i < pairs->used; i++) {
        const Entry *e = &pairs->entries[i];
        if (e->keep)
            continue;
        PyObject *pair = Py_BuildValue("NN", text_bytes(e->a), text_bytes(e->b));
        PyObject *count = PyLong_FromSsize_t(e->count);
        if (!pair || !count || PyDict_SetItem(skipped, pair, count) < 0)
            Py_CLEAR(skipped);
        Py_XDECREF(pair);
        Py_XDECREF(count);
    }
    return skipped;
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

PyDoc_STRVAR(scan_doc, "scan(data, start, stop, /)\n--\n\n"
                       "Columns of the events in data[start:stop]: (end, status, rows, columns, odd, skipped).");

static PyObject *scanner_scan(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "y*nn:scan", &data, &start, &stop))
        return NULL;
    PyObject *result = NULL;
    Scan s = {.scanner = (const Scanner *)self};
    if (start < 0 || start > stop || stop > data.len) {
        PyErr_SetString(PyExc_ValueError, "the window lies outside the data");
    } else if (scan_begin(&s, stop - start) == 0) {
        const Byte *base = data.buf, *end;
        s.window.stop = base + stop;
        Status status = scan_window(&s, base + start, &end);
        for (Py_ssize_t i = 0; status != FAILED && i < s.scanner->n_fields; i++)
            fill_column(&s.columns[i], s.rows);
        if (status != FAILED && grow_columns(&s, s.rows) == 0) {
            PyObject *columns = make_columns(&s), *skipped = columns ? make_skipped(&s.pairs) : NULL;
            if (skipped)
                result = Py_BuildValue("ninOOO", (Py_ssize_t)(end - base), (int)status, s.rows, columns, s.odd, skipped);
            Py_XDECREF(columns);
            Py_XDECREF(skipped);
        }
    }
    scan_end(&s);
    PyBuffer_Release(&data);
    return result;
}

/* Making a Scanner. */

static int own_text(Scanner *self, PyObject *value, const char *what, Text *text)
{
    if (!PyBytes_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes, not %.80s", what, Py_TYPE(value)->tp_name);
        return -1;
    }
    *text = (Text){(const Byte *)PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)};
    return PyList_Append(self->owned, value);
}

static int parse_field(Scanner *self, PyObject *item, Field *field)
{
    PyObject *key;
    const char *kind;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a field is a tuple (key, kind, in_args)");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "Osp:field", &key, &kind, &field->in_args))
        return -1;
    field->next = -1;
    if (strcmp(kind, "text") == 0 || strcmp(kind, "json") == 0)
        field->kind = TEXT;
    else if (strcmp(kind, "int") == 0)
        field->kind = INT;
    else if (strcmp(kind, "time") == 0)
        field->kind = TIME;
    else {
        PyErr_Format(PyExc_ValueError, "no kind of field: %.80s", kind);
        return -1;
    }
    return own_text(self, key, "a key", &field->key);
}

static KeySlot *add_key(Keys *keys, Text key)
{
    size_t at = key_slot(key) & keys->mask;
    while (keys->slots[at].key.p && !same(keys->slots[at].key, key))
        at = (at + 1) & keys->mask;
    if (!keys->slots[at].key.p)
        keys->slots[at] = (KeySlot){key, -1, 0};
    return &keys->slots[at];
}

static int make_keys(Scanner *self)
{
    size_t room = 64;
    while (room < (size_t)self->n_fields * 4 + 4)
        room *= 2;
    self->event_keys = (Keys){PyMem_Calloc(room, sizeof(KeySlot)), room - 1};
    self->args_keys = (Keys){PyMem_Calloc(room, sizeof(KeySlot)), room - 1};
    if (!self->event_keys.slots || !self->args_keys.slots) {
        PyErr_NoMemory();
        return -1;
    }
    KeySlot *args = add_key(&self->event_keys, (Text){(const Byte *)"args", 4});
    args->is_args = 1;
    self->fields_have_own_keys = 1;
    for (int i = 0; i < (int)self->n_fields; i++) {
        Field *field = &self->fields[i];
        KeySlot *slot = add_key(field->in_args ? &self->args_keys : &self->event_keys, field->key);
        if (slot->field >= 0 || slot == args)
            self->fields_have_own_keys = 0;
        field->next = slot->field;
        slot->field = i;
    }
    return 0;
}

static int parse_fields(Scanner *self, PyObject *fields)
{
    PyObject *items = PySequence_Tuple(fields);
    if (!items)
        return -1;
    int failed = 0;
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    self->fields = n < INT32_MAX ? PyMem_Calloc((size_t)n + 1, sizeof(Field)) : NULL;
    if (!self->fields) {
        PyErr_NoMemory();
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < n; i++)
        failed = parse_field(self, PyTuple_GET_ITEM(items, i), &self->fields[i]) < 0;
    Py_DECREF(items);
    if (failed)
        return -1;
    self->n_fields = n;
    const Field *f = self->fields;
    if (n < 2 || !same(f[0].key, (Text){(const Byte *)"ph", 2}) || f[0].kind != TEXT || f[0].in_args ||
        !same(f[1].key, (Text){(const Byte *)"cat", 3}) || f[1].kind != TEXT || f[1].in_args) {
        PyErr_SetString(PyExc_ValueError, "the first fields must be the texts ph and cat");
        return -1;
    }
    return make_keys(self);
}

static int parse_cats(Scanner *self, PyObject *cats, Wanted *wanted)
{
    PyObject *items = PySequence_Tuple(cats);
    if (!items)
        return -1;
    int failed = 0;
    wanted->n_cats = PyTuple_GET_SIZE(items);
    wanted->cats = PyMem_Calloc((size_t)wanted->n_cats + 1, sizeof(Text));
    if (!wanted->cats) {
        PyErr_NoMemory();
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < wanted->n_cats; i++)
        failed = own_text(self, PyTuple_GET_ITEM(items, i), "a cat", &wanted->cats[i]) < 0;
    Py_DECREF(items);
    return failed ? -1 : 0;
}

static int parse_wanted(Scanner *self, PyObject *mapping)
{
    PyObject *items = PyMapping_Items(mapping);
    if (!items)
        return -1;
    int failed = 0;
    Py_ssize_t n = PyList_GET_SIZE(items);
    self->wanted = PyMem_Calloc((size_t)n + 1, sizeof(Wanted));
    if (!self->wanted) {
        PyErr_NoMemory();
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < n; i++) {
        PyObject *ph, *cats;
        self->n_wanted = i + 1;
        failed = !PyArg_ParseTuple(PyList_GET_ITEM(items, i), "OO:wanted", &ph, &cats) ||
                 own_text(self, ph, "a ph", &self->wanted[i].ph) < 0 ||
                 (cats != Py_None && parse_cats(self, cats, &self->wanted[i]) < 0);
    }
    Py_DECREF(items);
    return failed ? -1 : 0;
}

static void scanner_dealloc(PyObject *object)
{
    Scanner *self = (Scanner *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (Py_ssize_t i = 0; i < self->n_wanted; i++)
        PyMem_Free(self->wanted[i].cats);
    PyMem_Free(self->wanted);
    PyMem_Free(self->fields);
    PyMem_Free(self->event_keys.slots);
    PyMem_Free(self->args_keys.slots);
    Py_XDECREF(self->owned);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "wanted", NULL};
    PyObject *fields, *wanted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Scanner", names, &fields, &wanted))
        return NULL;
    Scanner *self = (Scanner *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->owned = PyList_New(0);
    if (!self->owned || parse_fields(self, fields) < 0 || parse_wanted(self, wanted) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

PyDoc_STRVAR(scanner_doc, "Scanner(fields, wanted)\n--\n\n"
                          "Takes the wanted events out of Chrome-trace text; one column per field (key, kind, in_args).");

static PyMethodDef scanner_methods[] = {{"scan", scanner_scan, METH_VARARGS, scan_doc}, {NULL, NULL, 0, NULL}};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, (void *)scanner_doc},
    {Py_tp_new, (void *)scanner_new},
    {Py_tp_dealloc, (void *)scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    .name = "tracetool.readers._scan.Scanner",
    .basicsize = sizeof(Scanner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = scanner_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *seed = PyBytes_FromString("tracetool"), *type;
    if (!seed)
        return -1;
    hash_seed = (uint64_t)PyObject_Hash(seed);
    Py_DECREF(seed);
    type = PyType_FromModuleAndSpec(module, &scanner_spec, NULL);
    int failed = !type || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracetool.readers._scan",
    .m_doc = "Compiled event scanner; the package works without it.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&module_def); }

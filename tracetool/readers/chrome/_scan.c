/* The compiled event scanner: a window of Chrome-trace text to columns of raw values.
 *
 * It takes only what is strictly valid JSON of the usual shape and leaves the rest to Python (DECLINED),
 * so every check here may be stricter than JSON but never laxer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_scan_match.h"

#if PY_BIG_ENDIAN
#error "columns are little-endian; the plain scanner serves here"
#endif

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
                note_member(&s->shapes, (Text){value, p - value}, field, levels);
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

static inline int is_escaped(Text t) { return t.n && memchr(t.p, '\\', t.n) != NULL; }

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
    if (is_escaped(ph) || is_escaped(cat)) /* its meaning tells whether it is wanted, not its spelling */
        return give_up(&s->window, DECLINED);
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
    if (s->shapes.plain)
        learn_event(s, from, p, pair);
    else
        s->shapes.end = s->shapes.steps;
    return p;
}

static Status scan_window(Scan *s, const Byte *p, const Byte **end)
{
    int comma = 0;
    *end = p;
    for (;;) {
        if (p == *end && s->shapes.credit > 0) {
            const Byte *matched = match_event(s, p);
            if (matched) {
                *end = p = matched;
                continue;
            }
            if (s->window.verdict == FAILED)
                return FAILED;
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

PyDoc_STRVAR(scanner_doc, "Scanner(fields, wanted, unwanted=())\n--\n\n"
                          "Takes the wanted events out of Chrome-trace text; one column per field (key, kind, in_args).\n"
                          "Events of an unwanted category are left out whatever wanted says.");

static PyMethodDef scanner_methods[] = {{"scan", scanner_scan, METH_VARARGS, scan_doc}, {NULL, NULL, 0, NULL}};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, (void *)scanner_doc},
    {Py_tp_new, (void *)scanner_new},
    {Py_tp_dealloc, (void *)scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    .name = "tracetool.readers.chrome._scan.Scanner",
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
    .m_name = "tracetool.readers.chrome._scan",
    .m_doc = "Compiled event scanner; the package works without it.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&module_def); }

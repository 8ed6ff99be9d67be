/* What a Scanner was made for: fields, and the events that are wanted. */
#ifndef TRACETOOL_SCAN_FIELDS_H
#define TRACETOOL_SCAN_FIELDS_H

#include "_scan_number.h"

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
    Wanted unwanted; /* categories that are never taken */
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

static int lists(const Wanted *w, Text cat)
{
    for (Py_ssize_t j = 0; j < w->n_cats; j++)
        if (same(w->cats[j], cat))
            return 1;
    return 0;
}

static int is_wanted(const Scanner *scanner, Text ph, Text cat)
{
    if (lists(&scanner->unwanted, cat))
        return 0;
    for (Py_ssize_t i = 0; i < scanner->n_wanted; i++) {
        const Wanted *w = &scanner->wanted[i];
        if (same(w->ph, ph))
            return !w->cats || lists(w, cat);
    }
    return 0;
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
    PyMem_Free(self->unwanted.cats);
    PyMem_Free(self->fields);
    PyMem_Free(self->event_keys.slots);
    PyMem_Free(self->args_keys.slots);
    Py_XDECREF(self->owned);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "wanted", "unwanted", NULL};
    PyObject *fields, *wanted, *unwanted = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Scanner", names, &fields, &wanted, &unwanted))
        return NULL;
    Scanner *self = (Scanner *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->owned = PyList_New(0);
    if (!self->owned || parse_fields(self, fields) < 0 || parse_wanted(self, wanted) < 0 ||
        (unwanted && parse_cats(self, unwanted, &self->unwanted) < 0))
        Py_CLEAR(self);
    return (PyObject *)self;
}

#endif

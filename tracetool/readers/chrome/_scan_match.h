/* Events of a shape met before: their values are taken without parsing what is between. */
#ifndef TRACETOOL_SCAN_MATCH_H
#define TRACETOOL_SCAN_MATCH_H

#include "_scan_rows.h"

/* A value of an event whose shape is known. */
typedef struct {
    Step *step;
    CellState state;
    int32_t code; /* of a text met before, or -1 */
    Text raw;
    int64_t number;
} Staged;

/* Learn the shape of the event that was just parsed, and added if it is wanted; from is the end of the one
 * before. */
static void learn_event(Scan *s, const Byte *from, const Byte *end, int32_t pair)
{
    Shapes *shapes = &s->shapes;
    int taken = s->pairs.entries[pair].keep;
    Step *step = learn_shape(shapes, s->scanner->fields, from, end, taken);
    shapes->end = step ? step : shapes->steps;
    if (!step)
        return;
    step->pair = pair;
    step->ph = taken ? code_at(&s->columns[0], s->rows - 1) : -1;
    step->cat = taken ? code_at(&s->columns[1], s->rows - 1) : -1;
}

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

/* A text that lately followed the one that was last in this place: comparing finds its end and what it is, and
 * it was found valid before. NULL: another text. */
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

/* The value of a field. What it is decided here, but it leaves no trace until the whole event fits. */
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

/* The event after p, the end of the one before, if its shape was met. NULL leaves it to the general way, which
 * alone decides what is wrong with it, if anything is; or the verdict is FAILED. */
static inline const Byte *match_event(Scan *s, const Byte *p)
{
    Shapes *shapes = &s->shapes;
    Window *w = &s->window;
    w->verdict = DECLINED;
    Staged staged[MOST_SHAPE_VALUES];
    int n = 0; /* as many as the general way noted, at most */
    Step *step = follow_end(shapes, p, w->stop);
    while (step && step->levels) {
        p += step->text.n;
        if (step->kind == NO_FIELD) {
            p = pass_value(w, p, step);
        } else {
            staged[n].step = step;
            p = stage_value(s, p, &staged[n++]);
        }
        step = p ? follow(step, p, w->stop) : NULL;
    }
    if (!step) {
        shapes->credit -= SHAPE_COST;
        return NULL;
    }
    Entry *entry = &s->pairs.entries[step->pair];
    entry->count++;
    if (entry->keep && add_staged(s, step, staged, n) < 0)
        return give_up(w, FAILED);
    shapes->end = step;
    shapes->credit += shapes->credit < MOST_CREDIT;
    return p + step->text.n;
}

#endif

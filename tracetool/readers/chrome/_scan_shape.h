/* Shapes of events: the text around their values, as met before in the window.
 *
 * A writer puts the same keys, separators and white space around the values of each kind of event. What was
 * found valid once between two values is valid again where it stands between two values byte for byte: the
 * grammar reaches the same state. So comparing stands for parsing, and the values alone are looked at.
 *
 * Shapes are the paths of a tree, from the end of an event to the end of the next. The values of ph and cat
 * belong to the text, so that an event's kind is known by its path. A path holds no key of a field twice.
 */
#ifndef TRACETOOL_SCAN_SHAPE_H
#define TRACETOOL_SCAN_SHAPE_H

#include "_scan_fields.h"

#define MOST_SHAPE_STEPS 512 /* all shapes together */
#define MOST_SHAPE_VALUES 64 /* of one event */
#define MOST_BRANCHES 24
#define MOST_CREDIT 1024
#define SHAPE_COST 2 /* in credit, of an event that has no known shape: trying it was for nothing */
#define SHAPE_MARGIN NUMBER_MARGIN /* bytes readable after a step's text, so that few checks are needed */

/* Text, and the value after it or the end of an event. */
typedef struct Step Step;
struct Step {
    Text text; /* it lies in the window; SHAPE_MARGIN bytes more do once there is text after it to compare it with */
    uint32_t mask; /* the first 32 bytes of them that are the text's */
    Text recent; /* the last value here that belongs to no field */
    Step *child; /* first of the steps that may follow, or NULL; after an end, the step that last did */
    Step *sibling; /* another step from the same place, or NULL */
    int32_t field; /* of the value, if its kind is not NO_FIELD */
    Kind kind; /* NO_FIELD if no row needs it */
    int32_t levels; /* open at the value; 0: the event has ended */
    int32_t last; /* where a text was found last among the field's distinct ones, or -1 */
    int32_t pair; /* at the end: ph and cat among the distinct pairs, and each alone, or -1 */
    int32_t ph, cat;
};

/* A value of the event that is being parsed. */
typedef struct {
    Text raw;
    int32_t field, levels; /* no field: -1 */
} Member;

typedef struct {
    Step *steps; /* the first is the root */
    int32_t used;
    Step *end; /* step that ended the last event, or the root */
    int credit; /* gained by events of a known shape, lost by others; without it, no more are tried in this window */
    int plain; /* whether the event that is being parsed can have a shape */
    int32_t n_members;
    Member members[MOST_SHAPE_VALUES];
} Shapes;

static int shapes_begin(Shapes *shapes)
{
    shapes->steps = PyMem_Malloc(MOST_SHAPE_STEPS * sizeof(Step));
    if (!shapes->steps)
        return -1;
    shapes->steps[0] = (Step){.kind = NO_FIELD, .last = -1};
    shapes->end = shapes->steps;
    shapes->used = 1;
    shapes->credit = MOST_CREDIT / 4;
    return 0;
}

static inline void note_member(Shapes *shapes, Text raw, int32_t field, int32_t levels)
{
    if (!shapes->plain)
        return;
    if (shapes->n_members < MOST_SHAPE_VALUES)
        shapes->members[shapes->n_members++] = (Member){raw, field, levels};
    else
        shapes->plain = 0;
}

/* Whether the step's text stands at p, for many lengths with no branch on the length. */
static inline int stands(const Step *step, const Byte *p)
{
#ifdef __SSE2__
    const Byte *q = step->text.p;
    __m128i first = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), _mm_loadu_si128((const __m128i *)q));
    __m128i second =
        _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + 16)), _mm_loadu_si128((const __m128i *)(q + 16)));
    uint32_t equal = (uint32_t)_mm_movemask_epi8(first) | (uint32_t)_mm_movemask_epi8(second) << 16;
    if (~equal & step->mask)
        return 0;
    return step->text.n <= 32 || begins(p + 32, (Text){q + 32, step->text.n - 32});
#else
    return begins(p, step->text);
#endif
}

/* The step after this one whose text stands at p, or NULL. */
static inline Step *follow(Step *from, const Byte *p, const Byte *stop)
{
    Step *before = NULL;
    for (Step *step = from->child; step; before = step, step = step->sibling) {
        if (stop - p < step->text.n + SHAPE_MARGIN || !stands(step, p))
            continue;
        if (before) { /* to the front: what was met last is likely to come again */
            before->sibling = step->sibling;
            step->sibling = from->child;
            from->child = step;
        }
        return step;
    }
    return NULL;
}

/* The first step of an event: likely the one that last followed the end of such an event as the last one was. */
static inline Step *follow_end(Shapes *shapes, const Byte *p, const Byte *stop)
{
    Step *end = shapes->end, *step = end->child;
    if (end == shapes->steps)
        return follow(end, p, stop);
    if (!step || stop - p < step->text.n + SHAPE_MARGIN || !stands(step, p))
        end->child = step = follow(shapes->steps, p, stop);
    return step;
}

/* The step after this one with exactly this text, made if need be; NULL without room. */
static Step *grow_step(Shapes *shapes, Step *from, Text text, int32_t levels)
{
    int branches = 0;
    for (Step *step = from->child; step; step = step->sibling, branches++)
        if (same(step->text, text))
            return step;
    if (shapes->used == MOST_SHAPE_STEPS || branches == MOST_BRANCHES)
        return NULL;
    Step *step = &shapes->steps[shapes->used++];
    uint32_t mask = text.n < 32 ? (UINT32_C(1) << text.n) - 1 : UINT32_MAX;
    *step = (Step){.text = text, .mask = mask, .sibling = from->child, .kind = NO_FIELD, .levels = levels, .last = -1};
    from->child = step;
    return step;
}

/* Learn the shape of the event whose members were noted; from is the end of the event before. Its last step,
 * or NULL without room. */
static Step *learn_shape(Shapes *shapes, const Field *fields, const Byte *from, const Byte *end, int taken)
{
    Step *step = shapes->steps;
    for (int32_t i = 0; i < shapes->n_members; i++) {
        const Member *m = &shapes->members[i];
        step = grow_step(shapes, step, (Text){from, m->raw.p - from}, m->levels);
        if (!step)
            return NULL;
        if (taken && m->field >= 0) {
            step->field = m->field;
            step->kind = fields[m->field].kind;
        }
        from = m->raw.p + m->raw.n;
    }
    return grow_step(shapes, step, (Text){from, end - from}, 0);
}

#endif

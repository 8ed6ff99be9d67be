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

#include "_scan_json.h"

#define MOST_SHAPE_STEPS 512 /* all shapes together */
#define MOST_SHAPE_VALUES 64 /* of one event */
#define MOST_BRANCHES 24
#define SHAPE_MARGIN 32 /* bytes readable after a step's text, so that numbers need no checks */

/* Text, and the value after it or the end of an event. */
typedef struct {
    Text text; /* it lies in the window */
    Text recent; /* the last value here that belongs to no field */
    int32_t child; /* first of the steps that may follow; after an end, the step that last did; 0: none */
    int32_t sibling; /* another step from the same place, or 0 */
    int32_t field; /* of the value, or -1 if no row needs it */
    int32_t levels; /* open at the value; 0: the event has ended */
    int32_t last; /* where a text was found last among the field's distinct ones, or -1 */
    int32_t pair; /* at the end: ph and cat among the distinct pairs, and each alone, or -1 */
    int32_t ph, cat;
} Step;

/* A value of the event that is being parsed. */
typedef struct {
    Text raw;
    int32_t field, levels;
} Member;

typedef struct {
    Step *steps; /* the first is the root */
    int32_t used;
    int32_t end; /* step that ended the last event, or 0 */
    int credit; /* gained by events of a known shape, lost by others; without any, shapes are left alone */
    int plain; /* whether the event that is being parsed can have a shape */
    int32_t n_members;
    Member members[MOST_SHAPE_VALUES];
} Shapes;

static int shapes_begin(Shapes *shapes)
{
    shapes->steps = PyMem_Malloc(MOST_SHAPE_STEPS * sizeof(Step));
    if (!shapes->steps)
        return -1;
    shapes->steps[0] = (Step){.field = -1, .last = -1};
    shapes->used = 1;
    shapes->credit = 512;
    return 0;
}

static inline void shape_hit(Shapes *shapes)
{
    shapes->credit += shapes->credit < 1024;
}

static inline void note_member(Shapes *shapes, Text raw, int32_t field, int32_t levels)
{
    if (shapes->n_members < MOST_SHAPE_VALUES)
        shapes->members[shapes->n_members++] = (Member){raw, field, levels};
    else
        shapes->plain = 0;
}

/* The step after this one whose text stands at p, or NULL. */
static inline Step *follow(Shapes *shapes, Step *from, const Byte *p, const Byte *stop)
{
    Step *steps = shapes->steps;
    int32_t before = 0;
    for (int32_t i = from->child; i; before = i, i = steps[i].sibling) {
        Step *step = &steps[i];
        if (stop - p < step->text.n + SHAPE_MARGIN || !begins(p, step->text))
            continue;
        if (before) { /* to the front: what was met last is likely to come again */
            steps[before].sibling = step->sibling;
            step->sibling = from->child;
            from->child = i;
        }
        return step;
    }
    return NULL;
}

/* The step after this one with exactly this text, made if need be; NULL without room. */
static Step *grow_step(Shapes *shapes, Step *from, Text text, int32_t levels)
{
    int branches = 0;
    for (int32_t i = from->child; i; i = shapes->steps[i].sibling, branches++)
        if (same(shapes->steps[i].text, text))
            return &shapes->steps[i];
    if (shapes->used == MOST_SHAPE_STEPS || branches == MOST_BRANCHES)
        return NULL;
    Step *step = &shapes->steps[shapes->used];
    *step = (Step){.text = text, .sibling = from->child, .field = -1, .levels = levels, .last = -1};
    from->child = shapes->used++;
    return step;
}

/* Learn the shape of the event whose members were noted; from is the end of the event before. Its last step,
 * or NULL without room. */
static Step *learn_shape(Shapes *shapes, const Byte *from, const Byte *end, int taken)
{
    Step *step = &shapes->steps[0];
    for (int32_t i = 0; i < shapes->n_members; i++) {
        const Member *m = &shapes->members[i];
        step = grow_step(shapes, step, (Text){from, m->raw.p - from}, m->levels);
        if (!step)
            return NULL;
        if (taken)
            step->field = m->field;
        from = m->raw.p + m->raw.n;
    }
    return grow_step(shapes, step, (Text){from, end - from}, 0);
}

#endif

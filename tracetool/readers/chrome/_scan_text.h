/* Pieces of the window, and tables of the distinct ones. */
#ifndef TRACETOOL_SCAN_TEXT_H
#define TRACETOOL_SCAN_TEXT_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef unsigned char Byte;

typedef struct {
    const Byte *p;
    Py_ssize_t n;
} Text;

/* Comparing and hashing text. */

static inline uint64_t load8(const Byte *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static inline uint32_t load4(const Byte *p)
{
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

/* Keys and values are mostly short: two overlapping loads are quicker than a call of memcmp. */
static inline int same(Text a, Text b)
{
    Py_ssize_t n = a.n;
    if (n != b.n)
        return 0;
    if (n > 16)
        return load8(a.p) == load8(b.p) && memcmp(a.p + 8, b.p + 8, (size_t)n - 8) == 0;
    if (n >= 8)
        return load8(a.p) == load8(b.p) && load8(a.p + n - 8) == load8(b.p + n - 8);
    if (n >= 4)
        return load4(a.p) == load4(b.p) && load4(a.p + n - 4) == load4(b.p + n - 4);
    for (Py_ssize_t i = 0; i < n; i++)
        if (a.p[i] != b.p[i])
            return 0;
    return 1;
}

/* Whether p begins with a text; as many bytes must be readable. Its end is compared first: the text before a
 * value and most names begin alike and end differently. */
static inline int begins(const Byte *p, Text t)
{
    Py_ssize_t n = t.n;
#ifdef __SSE2__
    if (n >= 16) {
        for (Py_ssize_t at = n - 16;; at = at > 16 ? at - 16 : 0) {
            __m128i here = _mm_loadu_si128((const __m128i *)(p + at));
            __m128i there = _mm_loadu_si128((const __m128i *)(t.p + at));
            if (_mm_movemask_epi8(_mm_cmpeq_epi8(here, there)) != 0xFFFF)
                return 0;
            if (at == 0)
                return 1;
        }
    }
#endif
    return same((Text){p, n}, t);
}

/* Differs from process to process, so that no trace can be made to fall into one bucket. */
static uint64_t hash_seed;

static inline uint64_t mix(uint64_t h, uint64_t word)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)(h ^ word) * (hash_seed | 1);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    h = (h ^ word) * (hash_seed | 1);
    return h ^ (h >> 32);
#endif
}

static uint64_t hash(uint64_t h, Text t)
{
    const Byte *p = t.p;
    Py_ssize_t n = t.n;
    h = mix(h, (uint64_t)n);
    for (; n >= 8; p += 8, n -= 8)
        h = mix(h, load8(p));
    if (n > 0) {
        uint64_t word = 0;
        memcpy(&word, p, (size_t)n);
        h = mix(h, word);
    }
    return h;
}

/* Distinct texts (or pairs of texts) in the order they were met. They point into the window. */

typedef struct {
    uint64_t hash;
    Text a, b;
    Py_ssize_t count;
    int32_t keep;
    int32_t next[2]; /* what came after it in the same place, latest first, or -1: names come in sequences */
} Entry;

typedef struct {
    Entry *entries;
    int32_t *slots; /* index into entries + 1; 0: free */
    int32_t used, room, last;
    uint32_t mask;
} Distinct;

static void distinct_free(Distinct *d)
{
    PyMem_Free(d->entries);
    PyMem_Free(d->slots);
}

static int distinct_grow(Distinct *d)
{
    int32_t room = d->room ? d->room * 2 : 16;
    if (d->room > INT32_MAX / 4)
        return -1;
    Entry *entries = PyMem_Realloc(d->entries, (size_t)room * sizeof(Entry));
    if (!entries)
        return -1;
    d->entries = entries;
    int32_t *slots = PyMem_Calloc((size_t)room * 2, sizeof(int32_t));
    if (!slots)
        return -1;
    PyMem_Free(d->slots);
    d->slots = slots;
    d->room = room;
    d->mask = (uint32_t)room * 2 - 1;
    for (int32_t i = 0; i < d->used; i++) {
        uint32_t at = (uint32_t)d->entries[i].hash & d->mask;
        while (slots[at])
            at = (at + 1) & d->mask;
        slots[at] = i + 1;
    }
    return 0;
}

/* Index of a pair of texts, or -1 without memory. A new one has count 0. */
static inline int32_t distinct_index(Distinct *d, Text a, Text b)
{
    if (d->used && same(d->entries[d->last].a, a) && same(d->entries[d->last].b, b))
        return d->last;
    if (d->used == d->room && distinct_grow(d) < 0)
        return -1;
    uint64_t h = hash(hash_seed, a);
    if (b.n)
        h = hash(h, b);
    uint32_t at = (uint32_t)h & d->mask;
    for (int32_t i; (i = d->slots[at] - 1) >= 0; at = (at + 1) & d->mask)
        if (d->entries[i].hash == h && same(d->entries[i].a, a) && same(d->entries[i].b, b))
            return d->last = i;
    d->entries[d->used] = (Entry){h, a, b, 0, 0, {-1, -1}};
    d->slots[at] = d->used + 1;
    return d->last = d->used++;
}

#endif

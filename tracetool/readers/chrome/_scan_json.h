/* The grammar of JSON: where values end, and whether they are strictly valid. Stricter in two things: keys
 * have no escapes, and levels are limited. Nothing outside the window is read, and nothing recurses.
 */
#ifndef TRACETOOL_SCAN_JSON_H
#define TRACETOOL_SCAN_JSON_H

#include "_scan_text.h"

#define MOST_LEVELS 100
#define NUMBER_MARGIN 32 /* bytes that functions may read where they say so */

#if defined(__GNUC__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define LIKELY(x) (x)
#endif

typedef enum { MORE = 0, DECLINED = 1, CLOSED = 2, FAILED = 3 } Status;

typedef struct {
    const Byte *stop;
    Status verdict; /* why a function below returned NULL */
} Window;

static inline const Byte *give_up(Window *w, Status verdict)
{
    w->verdict = verdict;
    return NULL;
}

/* At the end of the window more text may make it valid; anywhere else it is not. */
static inline const Byte *unfit(Window *w, const Byte *p) { return give_up(w, p == w->stop ? MORE : DECLINED); }

/* JSON values. Each function takes the position where the value begins and returns the one after it, or
 * NULL with the verdict set. */

static inline const Byte *skip_space(const Byte *p, const Byte *stop)
{
    while (p < stop && *p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* The next quote, backslash or control character, or stop. */
static inline const Byte *skip_plain(const Byte *p, const Byte *stop)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (; stop - p >= 16; p += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash));
        int found = _mm_movemask_epi8(_mm_or_si128(ends, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v)));
        if (found)
            return p + __builtin_ctz((unsigned)found);
    }
#else
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    for (; stop - p >= 8; p += 8) {
        uint64_t v = load8(p), quote = v ^ (ones * '"'), backslash = v ^ (ones * '\\');
        if ((((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((v - ones * 0x20) & ~v)) & tops)
            break;
    }
#endif
    while (p < stop && *p != '"' && *p != '\\' && *p >= 0x20)
        p++;
    return p;
}

/* The four digits after \u. */
static const Byte *scan_hex(Window *w, const Byte *p, unsigned *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, p++) {
        if (p == w->stop)
            return give_up(w, MORE);
        Byte c = *p, lower = c | 0x20;
        if (c >= '0' && c <= '9')
            *code = *code * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code * 16 + (lower - 'a' + 10);
        else
            return give_up(w, DECLINED);
    }
    return p;
}

/* p is after the backslash. */
static const Byte *scan_escape(Window *w, const Byte *p)
{
    unsigned code, low;
    if (p == w->stop || (*p != 'u' && (*p == 0 || !strchr("\"\\/bfnrt", *p))))
        return unfit(w, p);
    if (*p != 'u')
        return p + 1;
    p = scan_hex(w, p + 1, &code);
    if (!p || (code & 0xF800) != 0xD800)
        return p;
    if (code >= 0xDC00)
        return give_up(w, DECLINED);
    if (p == w->stop || *p != '\\' || ++p == w->stop || *p != 'u')
        return unfit(w, p);
    p = scan_hex(w, p + 1, &low);
    if (p && (low & 0xFC00) != 0xDC00)
        return give_up(w, DECLINED);
    return p;
}

static inline const Byte *scan_string(Window *w, const Byte *p)
{
    for (p++;;) {
        p = skip_plain(p, w->stop);
        if (p == w->stop)
            return give_up(w, MORE);
        if (LIKELY(*p == '"'))
            return p + 1;
        if (*p != '\\')
            return give_up(w, DECLINED);
        p = scan_escape(w, p + 1);
        if (!p)
            return NULL;
    }
}

static inline int is_digit(Byte c) { return (Byte)(c - '0') <= 9; }

static inline const Byte *scan_digits(Window *w, const Byte *p)
{
    if (p == w->stop || !is_digit(*p))
        return unfit(w, p);
    while (p < w->stop && is_digit(*p))
        p++;
    return p;
}

/* Eight bytes of text, less '0' in each: how many digits they begin with. */
static inline uint64_t load_digits(const Byte *p) { return load8(p) ^ UINT64_C(0x3030303030303030); }

static inline unsigned count_digits(uint64_t word)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    /* Carries spoil only what comes after the first byte that is no digit. */
    uint64_t others = ((word + ones * (0x80 - 10)) | word) & (ones << 7);
#if defined(__GNUC__)
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
#else
    unsigned n = 0;
    while (n < 8 && !(others >> (8 * n + 7) & 1))
        n++;
    return n;
#endif
}

/* The end of a number of up to 7 digits and 7 decimals; NULL: of another form, maybe. Reads NUMBER_MARGIN. */
static inline const Byte *pass_short_number(const Byte *p)
{
    unsigned n = count_digits(load_digits(p));
    if (n - 1 > 6 || (n > 1 && *p == '0'))
        return NULL;
    p += n;
    if (*p == '.') {
        n = count_digits(load_digits(p + 1));
        if (n - 1 > 6)
            return NULL;
        p += 1 + n;
    }
    return (*p | 0x20) == 'e' ? NULL : p;
}

static inline const Byte *scan_number(Window *w, const Byte *p)
{
    const Byte *end = w->stop - p >= NUMBER_MARGIN ? pass_short_number(p) : NULL;
    if (end)
        return end;
    p += *p == '-';
    if (p < w->stop && *p == '0')
        p++;
    else if (!(p = scan_digits(w, p)))
        return NULL;
    if (p < w->stop && *p == '.' && !(p = scan_digits(w, p + 1)))
        return NULL;
    if (p < w->stop && (*p | 0x20) == 'e') {
        p++;
        p += p < w->stop && (*p == '+' || *p == '-');
        p = scan_digits(w, p);
    }
    return p;
}

static const Byte *scan_word(Window *w, const Byte *p, const char *word)
{
    for (; *word; word++, p++)
        if (p == w->stop || *p != (Byte)*word)
            return unfit(w, p);
    return p;
}

static inline const Byte *scan_scalar(Window *w, const Byte *p)
{
    switch (*p) {
    case '"':
        return scan_string(w, p);
    case 't':
        return scan_word(w, p, "true");
    case 'f':
        return scan_word(w, p, "false");
    case 'n':
        return scan_word(w, p, "null");
    default:
        return scan_number(w, p);
    }
}

/* A key and its colon, to the position of the value. */
static inline const Byte *scan_key(Window *w, const Byte *p, Text *key)
{
    const Byte *stop = w->stop;
    if (p == stop || *p != '"')
        return unfit(w, p);
    key->p = ++p;
    p = skip_plain(p, stop);
    if (p == stop || *p != '"')
        return unfit(w, p);
    key->n = p - key->p;
    p = skip_space(p + 1, stop);
    if (p == stop || *p != ':')
        return unfit(w, p);
    p = skip_space(p + 1, stop);
    return LIKELY(p < stop) ? p : give_up(w, MORE);
}

/* An object or list that holds no field, below this many levels. */
static const Byte *scan_nested(Window *w, const Byte *p, int levels)
{
    const Byte *stop = w->stop;
    Byte closing[MOST_LEVELS];
    int top = levels;
    Text key;
    for (;;) {
        if (*p == '{' || *p == '[') {
            if (top == MOST_LEVELS)
                return give_up(w, DECLINED);
            closing[top++] = *p == '{' ? '}' : ']';
            p = skip_space(p + 1, stop);
            if (p == stop)
                return give_up(w, MORE);
            if (*p != closing[top - 1]) {
                if (closing[top - 1] == '}' && !(p = scan_key(w, p, &key)))
                    return NULL;
                continue;
            }
        } else {
            p = scan_scalar(w, p);
            if (!p)
                return NULL;
            p = skip_space(p, stop);
        }
        while (p < stop && *p == closing[top - 1]) {
            if (--top == levels)
                return p + 1;
            p = skip_space(p + 1, stop);
        }
        if (p == stop || *p != ',')
            return unfit(w, p);
        p = skip_space(p + 1, stop);
        if (closing[top - 1] == '}' && !(p = scan_key(w, p, &key)))
            return NULL;
        if (p == stop)
            return give_up(w, MORE);
    }
}

static inline const Byte *scan_value(Window *w, const Byte *p, int levels)
{
    return *p == '{' || *p == '[' ? scan_nested(w, p, levels) : scan_scalar(w, p);
}

#endif

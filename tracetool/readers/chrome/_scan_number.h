/* Numbers of fields in their plain forms. */
#ifndef TRACETOOL_SCAN_NUMBER_H
#define TRACETOOL_SCAN_NUMBER_H

#include "_scan_json.h"

typedef enum { TEXT, INT, TIME, NO_FIELD } Kind;

/* The plain forms of numbers: an integer, or microseconds with up to three decimals as nanoseconds. */
static inline int plain_number(Text raw, Kind kind, int64_t *number)
{
    static const uint64_t tens[] = {1, 10, 100, 1000};
    const Byte *p = raw.p, *end = raw.p + raw.n;
    if (*p == '"') {
        p++;
        end--;
    }
    int negative = p < end && *p == '-';
    p += negative;
    const Byte *digits = p;
    uint64_t v = 0;
    for (; p < end && is_digit(*p); p++)
        v = v * 10 + (*p - '0');
    /* What fits: 16 digits of microseconds up to 8.99e15, as old releases count from 1970, times 1000. */
    if (p == digits || p - digits > (kind == TIME ? 15 + (*digits <= '8') : 18))
        return 0;
    if (kind == TIME) {
        Py_ssize_t decimals = 0;
        if (p < end && *p == '.') {
            decimals = end - ++p;
            if (decimals < 1 || decimals > 3)
                return 0;
            for (; p < end && is_digit(*p); p++)
                v = v * 10 + (*p - '0');
        }
        v *= tens[3 - decimals];
    }
    *number = negative ? -(int64_t)v : (int64_t)v;
    return p == end;
}

/* What the first n of eight digits amount to; n is 1 to 8. */
static inline uint64_t digits_value(uint64_t word, unsigned n)
{
    word <<= 64 - 8 * n;
    word = (word * 10 + (word >> 8)) & UINT64_C(0x00FF00FF00FF00FF);
    word = (word * 100 + (word >> 16)) & UINT64_C(0x0000FFFF0000FFFF);
    return (word * 10000 + (word >> 32)) & UINT64_C(0xFFFFFFFF);
}

/* A number in its plain form, as most are, and its end if what follows may end a number; NULL: of another form,
 * maybe. Takes 16 digits at most. Reads NUMBER_MARGIN. */
static inline const Byte *scan_plain_number(const Byte *p, Kind kind, int64_t *number)
{
    static const uint32_t tens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    int negative = *p == '-';
    p += negative;
    uint64_t word = load_digits(p);
    unsigned n = count_digits(word);
    if (!n || (n > 1 && *p == '0'))
        return NULL;
    uint64_t v = digits_value(word, n);
    p += n;
    if (n == 8 && (n = count_digits(word = load_digits(p)))) {
        if (n == 8 && p[-8] > '8')
            return NULL;
        v = v * tens[n] + digits_value(word, n);
        p += n;
    }
    if (kind == TIME) {
        v *= 1000;
        if (*p == '.') {
            word = load_digits(++p);
            n = count_digits(word);
            if (n - 1 > 2)
                return NULL;
            v += digits_value(word, n) * tens[3 - n];
            p += n;
        }
    }
    *number = negative ? -(int64_t)v : (int64_t)v;
    return p;
}

#endif

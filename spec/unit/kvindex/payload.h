/* payload.h - batches of events as an engine would write them, for specs: arrays, small numbers. */
#ifndef SPEC_KVINDEX_PAYLOAD_H
#define SPEC_KVINDEX_PAYLOAD_H

#include "base/str.h"

#define PAYLOAD_BLOCK 4u

/* Block `i` (below 31) of the one prompt that there is: tokens 4i, 4i+1, ..; its name is i + 1. */
static inline bt_str_t payload_stored(unsigned i, char out[64])
{
    const char parent = i == 0 ? '\xc0' : (char) i;
    const char bytes[] = {'\x92',
                          '\x01',
                          '\x91',
                          '\x95',
                          '\xab',
                          'B',
                          'l',
                          'o',
                          'c',
                          'k',
                          'S',
                          't',
                          'o',
                          'r',
                          'e',
                          'd',
                          '\x91',
                          (char) (i + 1),
                          parent,
                          '\x94',
                          (char) (4 * i),
                          (char) (4 * i + 1),
                          (char) (4 * i + 2),
                          (char) (4 * i + 3),
                          '\x04'};

    memcpy(out, bytes, sizeof(bytes));
    return (bt_str_t){out, sizeof(bytes)};
}

static inline bt_str_t payload_removed(unsigned i, char out[64])
{
    const char bytes[] = {'\x92', '\x01', '\x91', '\x92', '\xac',        'B', 'l',
                          'o',    'c',    'k',    'R',    'e',           'm', 'o',
                          'v',    'e',    'd',    '\x91', (char) (i + 1)};

    memcpy(out, bytes, sizeof(bytes));
    return (bt_str_t){out, sizeof(bytes)};
}

#endif

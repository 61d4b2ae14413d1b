/* sse_fuzz.c - the event splitter under any bytes and any cuts: same events as the oracle, same count as counting.
 *
 * The first byte seeds the cuts; the rest is the stream.
 */
#include "sse_oracle.h"

#include <stdint.h>

static size_t cut_all(size_t at, void *arg)
{
    (void) at;
    (void) arg;
    return SIZE_MAX;
}

static size_t cut_one(size_t at, void *arg)
{
    (void) at;
    (void) arg;
    return 1;
}

static size_t cut_some(size_t at, void *arg)
{
    uint32_t *seed = arg;

    *seed = *seed * 1664525 + 1013904223 + (uint32_t) at;
    return 1 + (*seed >> 16) % 7;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint32_t seed = data[0];
    const char *p = (const char *) data + 1;
    sse_oracle_t oracle;

    sse_oracle_init(&oracle, p, size - 1);
    sse_oracle_check(&oracle, p, size - 1, cut_all, NULL);
    sse_oracle_check(&oracle, p, size - 1, cut_one, NULL);
    sse_oracle_check(&oracle, p, size - 1, cut_some, &seed);
    sse_oracle_fini(&oracle);
    return 0;
}

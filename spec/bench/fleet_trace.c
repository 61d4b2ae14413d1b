/* How it works: a block of text is its id, written again and again, so two texts differ in their first eight bytes when the
 * ids do; of token ids, its ten decimal digits. An id stands for the block and for all before it, hence equal ids mean equal prompts up to there.
 *
 * The cache is counted as an engine counts: whole blocks only, never the one with the last token, which is always computed;
 * a partial block takes a place too and is never found. A prompt's first block is the last to be evicted. */
#include "fleet_trace.h"

#include "net.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_BYTES 8 /* "%07x " */
#define DIGITS 10  /* of a block's id, as token ids */

static void *need(void *memory)
{
    if (memory == NULL)
        bench_die("malloc");
    return memory;
}

static void bad_row(const char *path, unsigned row, const char *key)
{
    fprintf(stderr,
            "fleet: %s:%u: no usable %s; a row is {\"timestamp\": ms, \"input_length\": "
            "tokens, ..., \"hash_ids\": [...]}\n",
            path, row + 1, key);
    exit(2);
}

/* The text behind "key":, NULL = not there. */
static const char *value_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at != NULL && (at = strchr(at, ':')) != NULL ? at + 1 : NULL;
}

static uint64_t number_of(const char *path, unsigned row, const char *line, const char *key)
{
    const char *value = value_of(line, key);
    char *end = NULL;
    uint64_t number = value != NULL ? strtoull(value, &end, 10) : 0;

    if (value == NULL || end == value)
        bad_row(path, row, key);
    return number;
}

static void read_ids(struct trace *t, struct trace_row *row, const char *list)
{
    unsigned room = 0;
    char *end;

    for (const char *at = list + 1; *at != ']' && *at != '\0'; at = end) {
        uint32_t id = (uint32_t) strtoul(at, &end, 10);

        if (end == at)
            return;
        if (row->id_count == room) {
            room = room == 0 ? 16 : 2 * room;
            row->ids = need(realloc(row->ids, room * sizeof(*row->ids)));
        }
        row->ids[row->id_count++] = id;
        t->id_max = id > t->id_max ? id : t->id_max;
        end += strspn(end, ", ");
    }
}

static void read_row(struct trace *t, const char *path, const char *line)
{
    struct trace_row *row = &t->rows[t->count];
    const char *ids = value_of(line, "\"hash_ids\"");

    *row = (struct trace_row){.due_ms = number_of(path, t->count, line, "\"timestamp\""),
                              .input_tokens = number_of(path, t->count, line, "\"input_length\"")};
    if (ids == NULL || (ids = strchr(ids, '[')) == NULL)
        bad_row(path, t->count, "\"hash_ids\"");
    read_ids(t, row, ids);
    if (row->input_tokens == 0 ||
        row->id_count != (row->input_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS)
        bad_row(path, t->count, "\"hash_ids\"");
    t->count++;
}

void trace_read(struct trace *t, const char *path, unsigned rows_max, unsigned block_tokens)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    unsigned rows = 0;

    if (f == NULL)
        bench_die(path);
    *t = (struct trace){.block_tokens = block_tokens};
    while ((rows_max == 0 || t->count < rows_max) && getline(&line, &room, f) > 0) {
        if (t->count == rows) {
            rows = rows == 0 ? 1024 : 2 * rows;
            t->rows = need(realloc(t->rows, rows * sizeof(*t->rows)));
        }
        read_row(t, path, line);
    }
    free(line);
    fclose(f);
}

uint64_t trace_tokens(const struct trace *t, const struct trace_row *row)
{
    return (row->input_tokens * t->block_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
}

size_t trace_prompt_bytes(const struct trace *t, const struct trace_row *row)
{
    const size_t tokens = trace_tokens(t, row);

    return t->has_ids ? 2 * tokens + 1 : tokens * TRACE_TOKEN_BYTES + 2;
}

static void put_text(const struct trace *t, const struct trace_row *row, char *out)
{
    const size_t block = (size_t) t->block_tokens * TRACE_TOKEN_BYTES;
    size_t left = trace_tokens(t, row) * TRACE_TOKEN_BYTES;

    *out++ = '"';
    for (unsigned i = 0; i < row->id_count; i++) {
        char id[ID_BYTES + 1];

        snprintf(id, sizeof(id), "%07x ", row->ids[i] & 0xfffffff);
        for (size_t at = 0; at < block && left > 0; at++, left--)
            *out++ = id[at % ID_BYTES];
    }
    *out = '"';
}

static void put_ids(const struct trace *t, const struct trace_row *row, char *out)
{
    size_t left = trace_tokens(t, row);

    *out++ = '[';
    for (unsigned i = 0; i < row->id_count; i++) {
        char id[DIGITS + 1];

        snprintf(id, sizeof(id), "%010u", row->ids[i]);
        for (size_t at = 0; at < t->block_tokens && left > 0; at++, left--) {
            *out++ = id[at % DIGITS];
            *out++ = ',';
        }
    }
    out[-1] = ']'; /* for the last comma */
}

void trace_prompt(const struct trace *t, const struct trace_row *row, char *out)
{
    (t->has_ids ? put_ids : put_text)(t, row, out);
}

/* ---- the LRU cache ---- */

struct lru {
    uint32_t *older, *newer; /* by place: id + 1, partial blocks behind them; 0 = the ring's end */
    bool *is_in;
    unsigned used, blocks;
};

static void unlink_place(struct lru *c, uint32_t place)
{
    c->newer[c->older[place]] = c->newer[place];
    c->older[c->newer[place]] = c->older[place];
    c->is_in[place] = false;
    c->used--;
}

/* As the newest; what is oldest goes when there is no room. */
static void put(struct lru *c, uint32_t place)
{
    if (c->is_in[place])
        unlink_place(c, place);
    if (c->blocks != 0 && c->used == c->blocks)
        unlink_place(c, c->newer[0]);
    c->older[place] = c->older[0];
    c->newer[place] = 0;
    c->newer[c->older[0]] = place;
    c->older[0] = place;
    c->is_in[place] = true;
    c->used++;
}

static uint64_t ask(struct lru *c, const struct trace *t, unsigned number)
{
    const struct trace_row *row = &t->rows[number];
    uint64_t tokens = trace_tokens(t, row), full = tokens / t->block_tokens;
    unsigned hits = 0;

    while ((hits + 1) * (uint64_t) t->block_tokens < tokens && c->is_in[row->ids[hits] + 1])
        hits++;
    for (unsigned i = row->id_count; i-- > 0;)
        put(c, i < full ? row->ids[i] + 1 : t->id_max + 2 + number);
    return (uint64_t) hits * t->block_tokens;
}

uint64_t trace_lru_hits(const struct trace *t, unsigned blocks)
{
    size_t places = (size_t) t->id_max + 2 + t->count;
    struct lru c = {need(calloc(places, sizeof(*c.older))), need(calloc(places, sizeof(*c.newer))),
                    need(calloc(places, sizeof(*c.is_in))), 0, blocks};
    uint64_t hits = 0;

    for (unsigned i = 0; i < t->count; i++)
        hits += ask(&c, t, i);
    free(c.older);
    free(c.newer);
    free(c.is_in);
    return hits;
}

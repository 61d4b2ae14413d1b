/* chunk.c - chunked framing (RFC 9112 7.1).
 *
 *   SIZE -> SIZE_LF -> DATA -> DATA_CR -> DATA_LF -> SIZE ...
 *     \-> EXTENSION -/   \- size 0 -> LINE -> (TRAILER_NAME -> TRAILER -> TRAILER_LF -> LINE)* -> END_LF -> END
 *
 * Not llhttp: how it reads what stands around a chunk's size (bare LF, anything after the CR, spaces) depends on its
 * version and on how it was compiled, and a body that two parsers end at different places is how requests get smuggled.
 */
#include "http/chunk.h"

#include "base/err.h"

enum {
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    LINE,
    TRAILER_NAME,
    TRAILER,
    TRAILER_LF,
    END_LF,
    END
};

void bt_chunk_init(bt_chunk_t *chunk)
{
    *chunk = (bt_chunk_t){.state = SIZE};
}

/* Fifteen digits cannot overflow, and nobody sends a chunk of 2^60 bytes. */
static int step_size(bt_chunk_t *chunk, unsigned char c)
{
    int digit = bt_str_hex((char) c);

    if (digit >= 0) {
        if (++chunk->digits > 15)
            return BT_E_HTTP;
        chunk->left = chunk->left << 4 | (unsigned) digit;
        return SIZE;
    }
    if (chunk->digits == 0)
        return BT_E_HTTP;
    return c == '\r' ? SIZE_LF : c == ';' ? EXTENSION : BT_E_HTTP;
}

/* Inside an extension or a trailer line: text, ended by CR; no other control character. */
static int step_text(unsigned char c, int self, int next)
{
    if (c == '\r')
        return next;
    return (c >= 0x20 && c != 0x7f) || c == '\t' ? self : BT_E_HTTP;
}

static int step_line_end(bt_chunk_t *chunk, unsigned char c, int next)
{
    if (c != '\n')
        return BT_E_HTTP;
    chunk->digits = 0;
    return next;
}

/* One framing byte: the next state, or BT_E_HTTP. */
static int step(bt_chunk_t *chunk, unsigned char c)
{
    switch (chunk->state) {
    case SIZE:
        return step_size(chunk, c);
    case EXTENSION:
        return step_text(c, EXTENSION, SIZE_LF);
    case SIZE_LF:
        chunk->overhead = 0;
        return step_line_end(chunk, c, chunk->left > 0 ? DATA : LINE);
    case DATA_CR:
        return c == '\r' ? DATA_LF : BT_E_HTTP;
    case DATA_LF:
        return step_line_end(chunk, c, SIZE);
    case LINE:
        if (c == '\r')
            return END_LF;
        /* A trailer begins with its name: no folding, no empty name. */
        return c > 0x20 && c < 0x7f && c != ':' ? TRAILER_NAME : BT_E_HTTP;
    case TRAILER_NAME:
        if (c == ':')
            return TRAILER;
        return c > 0x20 && c < 0x7f ? TRAILER_NAME : BT_E_HTTP;
    case TRAILER:
        return step_text(c, TRAILER, TRAILER_LF);
    case TRAILER_LF:
        return step_line_end(chunk, c, LINE);
    case END_LF:
        return step_line_end(chunk, c, END);
    default:
        return BT_E_HTTP;
    }
}

static bt_str_t take_data(bt_chunk_t *chunk, bt_str_t piece, size_t *at_p)
{
    size_t n = piece.n - *at_p;

    if (n > chunk->left)
        n = (size_t) chunk->left;
    bt_str_t data = {piece.p + *at_p, n};
    *at_p += n;
    chunk->left -= n;
    if (chunk->left == 0)
        chunk->state = DATA_CR;
    return data;
}

/* The usual framing, if it stands there whole: the CRLF behind a chunk's data, a size and CRLF. How many bytes that are; 0: any other is
 * for the steps to judge. */
static size_t take_plain(bt_chunk_t *chunk, const char *p, size_t n)
{
    uint64_t bytes = 0;
    size_t at = 0, first;
    int digit;

    if (chunk->state == DATA_CR && n >= 2 && p[0] == '\r' && p[1] == '\n') {
        chunk->state = SIZE;
        chunk->digits = 0;
        at = 2;
    }
    if (chunk->state != SIZE || chunk->digits != 0)
        return at;
    for (first = at; at < n && at - first < 15 && (digit = bt_str_hex(p[at])) >= 0; at++)
        bytes = bytes << 4 | (unsigned) digit;
    if (bytes == 0 || n - at < 2 || p[at] != '\r' || p[at + 1] != '\n')
        return first;
    chunk->left = bytes;
    chunk->overhead = 0;
    chunk->state = DATA;
    return at + 2;
}

int bt_chunk_next(bt_chunk_t *chunk, bt_str_t piece, size_t *at_p, bt_str_t *data_p)
{
    if (*at_p < piece.n)
        *at_p += take_plain(chunk, piece.p + *at_p, piece.n - *at_p);
    while (chunk->state != END && *at_p < piece.n) {
        if (chunk->state == DATA) {
            *data_p = take_data(chunk, piece, at_p);
            return BT_CHUNK_DATA;
        }
        int next = step(chunk, (unsigned char) piece.p[(*at_p)++]);
        if (next < 0 || ++chunk->overhead > BT_CHUNK_OVERHEAD_MAX)
            return BT_E_HTTP;
        chunk->state = (uint8_t) next;
    }
    return chunk->state == END ? BT_CHUNK_END : BT_CHUNK_MORE;
}

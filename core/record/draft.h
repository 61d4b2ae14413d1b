/* draft.h - a line of JSON that is not written yet: its members' names and values, one after the other.
 *
 * Owner: the caller; the bytes may be copied anywhere.
 * Life:  zeroed -> put* -> render, as often as somebody asks for the line; emptied for the next one by len = 0.
 * Flow:  nearly no line is ever read, so its numbers become digits and its text is quoted when it is.
 * Cost:  16 bytes and a few stores a member, and the text's own bytes. Sticky failure, as bt_text_t.
 */
#ifndef BT_RECORD_DRAFT_H
#define BT_RECORD_DRAFT_H

#include "base/text.h"

typedef struct bt_record_draft {
    char *data;
    size_t len, cap;
    bool failed;
} bt_record_draft_t;

/* What follows a piece's literal. MS: microseconds as milliseconds. RAW: bytes that are JSON. COMMA is added to another one: a
 * comma comes first, unless the piece is the first of its object or list. */
enum bt_record_draft_kind {
    BT_DRAFT_NOTHING,
    BT_DRAFT_U64,
    BT_DRAFT_MS,
    BT_DRAFT_TEXT,
    BT_DRAFT_RAW,
    BT_DRAFT_COMMA = 16
};

typedef struct bt_record_draft_piece {
    int32_t literal; /* distance from bt_record_draft_origin: literals are all of this program */
    uint16_t literal_n;
    uint16_t kind;
    uint64_t value; /* TEXT, RAW: so many bytes follow; TEXT: and above bit 32, where to cut */
} bt_record_draft_piece_t;

extern const char bt_record_draft_origin[];

void bt_record_draft_fini(bt_record_draft_t *d);
bool bt_record_draft_reserve(bt_record_draft_t *d, size_t n); /* false: it has failed */
/* Appends the line to out. The bytes are a draft's. */
void bt_record_draft_render(bt_str_t draft, bt_text_t *out);

static inline bt_str_t bt_record_draft_str(const bt_record_draft_t *d)
{
    return (bt_str_t){d->data, d->len};
}

/* literal: of the program, and at most 64 KiB. */
static inline void bt_record_draft_put(bt_record_draft_t *d, bt_str_t literal, unsigned kind,
                                       uint64_t value)
{
    const bt_record_draft_piece_t piece = {(int32_t) (literal.p - bt_record_draft_origin),
                                           (uint16_t) literal.n, (uint16_t) kind, value};

    if (d->cap - d->len < sizeof(piece) && !bt_record_draft_reserve(d, sizeof(piece)))
        return;
    memcpy(d->data + d->len, &piece, sizeof(piece));
    d->len += sizeof(piece);
}

static inline void bt_record_draft_put_bytes(bt_record_draft_t *d, bt_str_t literal, unsigned kind,
                                             bt_str_t bytes, uint32_t cut)
{
    if (d->cap - d->len < sizeof(bt_record_draft_piece_t) + bytes.n &&
        !bt_record_draft_reserve(d, sizeof(bt_record_draft_piece_t) + bytes.n))
        return;
    bt_record_draft_put(d, literal, kind, (uint64_t) cut << 32 | (uint32_t) bytes.n);
    if (bytes.n > 0)
        memcpy(d->data + d->len, bytes.p, bytes.n);
    d->len += bytes.n;
}

/* A JSON string (kind: TEXT, with a comma or without); more than max bytes are cut (bt_text_json_cut). */
static inline void bt_record_draft_put_text(bt_record_draft_t *d, bt_str_t literal, unsigned kind,
                                            bt_str_t text, uint32_t max)
{
    if (text.n > max)
        text.n = (size_t) max + 1; /* tells that there was more, and where a character ends */
    bt_record_draft_put_bytes(d, literal, kind, text, max);
}

#endif

#include "record/draft.h"

#include <stdlib.h>

#define FIRST_BYTES 2048
#define DIGITS_MAX 24

const char bt_record_draft_origin[] = "";

void bt_record_draft_fini(bt_record_draft_t *d)
{
    free(d->data);
    *d = (bt_record_draft_t){.data = NULL};
}

bool bt_record_draft_reserve(bt_record_draft_t *d, size_t n)
{
    size_t cap = d->cap != 0 ? d->cap : FIRST_BYTES;
    char *data;

    while (cap - d->len < n && cap < BT_TEXT_MAX_BYTES)
        cap *= 2;
    data = d->failed || cap - d->len < n ? NULL : realloc(d->data, cap);
    if (data == NULL) {
        d->failed = true;
        return false;
    }
    d->data = data;
    d->cap = cap;
    return true;
}

/* ---- values ---- */

/* Digits of value, written so that they end before `end`; returns where they begin. */
static char *digits(char *end, uint64_t value)
{
    do {
        *--end = (char) ('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

static void put_u64(bt_text_t *out, uint64_t value)
{
    char z[DIGITS_MAX], *end = z + sizeof(z), *at = digits(end, value);

    bt_text_put(out, (bt_str_t){at, (size_t) (end - at)});
}

/* Microseconds as milliseconds: 31, 0.25, 1.001. */
static void put_ms(bt_text_t *out, uint64_t us)
{
    char z[DIGITS_MAX], *end = z + sizeof(z), *at = end;
    const unsigned rest = (unsigned) (us % 1000);

    if (rest != 0) {
        at = digits(end, 1000 + rest);
        *at = '.'; /* over the 1 that kept the zeros */
        while (end[-1] == '0')
            end--;
    }
    at = digits(at, us / 1000);
    bt_text_put(out, (bt_str_t){at, (size_t) (end - at)});
}

static void put_comma(bt_text_t *out)
{
    if (out->len > 0 && out->data[out->len - 1] != '{' && out->data[out->len - 1] != '[')
        bt_text_put(out, BT_STR(","));
}

static unsigned kind_of(const bt_record_draft_piece_t *piece)
{
    return piece->kind & (BT_DRAFT_COMMA - 1U);
}

static void put_value(bt_text_t *out, const bt_record_draft_piece_t *piece, bt_str_t bytes)
{
    switch (kind_of(piece)) {
    case BT_DRAFT_U64:
        put_u64(out, piece->value);
        break;
    case BT_DRAFT_MS:
        put_ms(out, piece->value);
        break;
    case BT_DRAFT_TEXT:
        bt_text_json_cut(out, bytes, (size_t) (piece->value >> 32));
        break;
    case BT_DRAFT_RAW:
        bt_text_put(out, bytes);
        break;
    default:
        break;
    }
}

void bt_record_draft_render(bt_str_t draft, bt_text_t *out)
{
    bt_record_draft_piece_t piece;

    while (draft.n >= sizeof(piece)) {
        bt_str_t bytes = {draft.p + sizeof(piece), 0};

        memcpy(&piece, draft.p, sizeof(piece));
        if (kind_of(&piece) == BT_DRAFT_TEXT || kind_of(&piece) == BT_DRAFT_RAW)
            bytes.n = (uint32_t) piece.value;
        if (piece.kind & BT_DRAFT_COMMA)
            put_comma(out);
        bt_text_put(out, (bt_str_t){bt_record_draft_origin + piece.literal, piece.literal_n});
        put_value(out, &piece, bytes);
        draft.p = bytes.p + bytes.n;
        draft.n -= sizeof(piece) + bytes.n;
    }
}

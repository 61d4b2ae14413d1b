/* The names of GenAI's conventions are not stable, so they stand in one table (span.h) with their version. int64 is a string in
 * OTLP's JSON, as in all JSON of protobuf.
 */
#include "trace/span.h"

#define TEXT_MAX 256

#define OPENING_TEXT(key) "{\"key\":\"" key "\",\"value\":{\"stringValue\":"
#define OPENING_INT(key) "{\"key\":\"" key "\",\"value\":{\"intValue\":\""
#define OPENING_MS(key) "{\"key\":\"" key "\",\"value\":{\"doubleValue\":"

enum type { TEXT, INT, MS };

static const struct {
    bt_str_t opening;
    enum type type;
} attributes[] = {
#define ROW(name, key, type) {BT_STR(OPENING_##type(key)), type},
    BT_TRACE_ATTRIBUTES(ROW)
#undef ROW
};

const char *bt_trace_attribute_name(enum bt_trace_attribute attribute)
{
    static const char *const names[] = {
#define NAME(name, key, type) key,
        BT_TRACE_ATTRIBUTES(NAME)
#undef NAME
    };

    return names[attribute];
}

static void put_literal(bt_record_draft_t *out, bt_str_t literal)
{
    bt_record_draft_put(out, literal, BT_DRAFT_NOTHING, 0);
}

static void put_span_id(bt_record_draft_t *out, bt_str_t before, uint64_t id)
{
    char hex[BT_TRACE_SPAN_CHARS];

    bt_trace_print_span(hex, id);
    bt_record_draft_put_bytes(out, before, BT_DRAFT_RAW, (bt_str_t){hex, sizeof(hex)}, 0);
}

void bt_span_open(bt_record_draft_t *out, const bt_span_t *s)
{
    const uint64_t end_us = s->end_us > s->start_us ? s->end_us : s->start_us;

    bt_record_draft_put_bytes(out, BT_STR("{\"traceId\":\""), BT_DRAFT_COMMA | BT_DRAFT_RAW,
                              (bt_str_t){s->trace, BT_TRACE_ID_CHARS}, 0);
    put_span_id(out, BT_STR("\",\"spanId\":\""), s->id);
    if (s->parent != 0)
        put_span_id(out, BT_STR("\",\"parentSpanId\":\""), s->parent);
    bt_record_draft_put_text(out, BT_STR("\",\"name\":"), BT_DRAFT_TEXT, s->name, TEXT_MAX);
    bt_record_draft_put(out, BT_STR(",\"kind\":"), BT_DRAFT_U64, s->kind);
    bt_record_draft_put(out, BT_STR(",\"startTimeUnixNano\":\""), BT_DRAFT_U64, s->start_us);
    bt_record_draft_put(out, BT_STR("000\",\"endTimeUnixNano\":\""), BT_DRAFT_U64, end_us);
    put_literal(out, BT_STR("000\",\"attributes\":["));
}

void bt_span_text(bt_record_draft_t *out, enum bt_trace_attribute attribute, bt_str_t value)
{
    if (value.n == 0)
        return;
    bt_record_draft_put_text(out, attributes[attribute].opening, BT_DRAFT_COMMA | BT_DRAFT_TEXT,
                             value, TEXT_MAX);
    put_literal(out, BT_STR("}}"));
}

void bt_span_number(bt_record_draft_t *out, enum bt_trace_attribute attribute, uint64_t value)
{
    const bool is_ms = attributes[attribute].type == MS;

    bt_record_draft_put(out, attributes[attribute].opening,
                        BT_DRAFT_COMMA | (is_ms ? (unsigned) BT_DRAFT_MS : BT_DRAFT_U64), value);
    put_literal(out, is_ms ? BT_STR("}}") : BT_STR("\"}}"));
}

void bt_span_event(bt_record_draft_t *out, bt_str_t name, uint64_t at_us)
{
    bt_record_draft_put(out, BT_STR("],\"events\":[{\"timeUnixNano\":\""), BT_DRAFT_U64, at_us);
    bt_record_draft_put_text(out, BT_STR("000\",\"name\":"), BT_DRAFT_TEXT, name, TEXT_MAX);
    put_literal(out, BT_STR("}"));
}

void bt_span_close(bt_record_draft_t *out, const char *error)
{
    if (error == NULL) {
        put_literal(out, BT_STR("],\"status\":{}}"));
        return;
    }
    bt_record_draft_put_text(out, BT_STR("],\"status\":{\"code\":2,\"message\":"), BT_DRAFT_TEXT,
                             bt_str(error), TEXT_MAX);
    put_literal(out, BT_STR("}}"));
}

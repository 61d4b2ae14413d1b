/* span.h - writes spans as OTLP has them in JSON, and knows the names of their attributes.
 *
 * Owner: the caller; the draft's bytes may be copied anywhere.
 * Life:  open -> attributes -> [event] -> close, span after span into one draft.
 * Flow:  numbers become digits, and text is quoted, when the draft is rendered: off the loops (record/draft.h).
 * Cost:  about 20 pieces a span.
 */
#ifndef BT_TRACE_SPAN_H
#define BT_TRACE_SPAN_H

#include "record/draft.h"
#include "trace/context.h"

/* The names below are this version's. One that changes them changes this table, and nothing else. */
#define BT_TRACE_SCHEMA "https://opentelemetry.io/schemas/1.41.0"

/* name in the code, the attribute, its type */
#define BT_TRACE_ATTRIBUTES(X)                                                                     \
    X(OPERATION, "gen_ai.operation.name", TEXT)                                                    \
    X(PROVIDER, "gen_ai.provider.name", TEXT)                                                      \
    X(MODEL, "gen_ai.request.model", TEXT)                                                         \
    X(MAX_TOKENS, "gen_ai.request.max_tokens", INT)                                                \
    X(INPUT_TOKENS, "gen_ai.usage.input_tokens", INT)                                              \
    X(OUTPUT_TOKENS, "gen_ai.usage.output_tokens", INT)                                            \
    X(CACHED_TOKENS, "gen_ai.usage.cache_read.input_tokens", INT)                                  \
    X(SERVER_ADDRESS, "server.address", TEXT)                                                      \
    X(SERVER_PORT, "server.port", INT)                                                             \
    X(METHOD, "http.request.method", TEXT)                                                         \
    X(PATH, "url.path", TEXT)                                                                      \
    X(STATUS, "http.response.status_code", INT)                                                    \
    X(ERROR, "error.type", TEXT)                                                                   \
    X(REQUEST_ID, "baton.request.id", TEXT)                                                        \
    X(TENANT, "baton.tenant", TEXT)                                                                \
    X(POOL, "baton.pool", TEXT)                                                                    \
    X(POLICY, "baton.policy", TEXT)                                                                \
    X(RULE, "baton.rule", TEXT)                                                                    \
    X(KEPT, "baton.trace.kept", TEXT)                                                              \
    X(PLAN, "baton.plan.kind", TEXT)                                                               \
    X(ATTEMPT, "baton.attempt", INT)                                                               \
    X(CHILD, "baton.child", INT)                                                                   \
    X(WORKER, "baton.worker", TEXT)                                                                \
    X(REPLACES, "baton.replaces", TEXT)                                                            \
    X(REPLAY, "baton.replay", TEXT)                                                                \
    X(REPLAYED_TOKENS, "baton.replayed_tokens", INT)                                               \
    X(KV_BYTES, "baton.kv.bytes", INT)                                                             \
    X(KV_TRANSFER, "baton.kv.transfer_ms", MS)                                                     \
    X(EVENTS, "baton.events", INT)                                                                 \
    X(LEFT_OUT, "baton.spans_left_out", INT)

/* Metrics of the same version, as OpenTelemetry's exporters spell them for Prometheus: dots become underscores, the unit is a suffix. */
#define BT_GEN_AI_DURATION "gen_ai_server_request_duration_seconds"
#define BT_GEN_AI_TTFT "gen_ai_server_time_to_first_token_seconds"
#define BT_GEN_AI_TPOT "gen_ai_server_time_per_output_token_seconds"

enum bt_trace_attribute {
#define BT_TRACE_ENUM(name, key, type) BT_TRACE_##name,
    BT_TRACE_ATTRIBUTES(BT_TRACE_ENUM)
#undef BT_TRACE_ENUM
};

/* As OTLP numbers them. */
enum bt_span_kind { BT_SPAN_INTERNAL = 1, BT_SPAN_SERVER = 2, BT_SPAN_CLIENT = 3 };

typedef struct bt_span {
    const char *trace;   /* BT_TRACE_ID_CHARS */
    uint64_t id, parent; /* parent 0 = none */
    enum bt_span_kind kind;
    bt_str_t name;
    uint64_t start_us, end_us; /* unix time */
} bt_span_t;

/* "gen_ai.request.model" */
const char *bt_trace_attribute_name(enum bt_trace_attribute attribute);

void bt_span_open(bt_record_draft_t *out, const bt_span_t *span);
/* Empty text and NULL are left out. */
void bt_span_text(bt_record_draft_t *out, enum bt_trace_attribute attribute, bt_str_t value);
/* Of an attribute whose type is INT; or MS, of microseconds. */
void bt_span_number(bt_record_draft_t *out, enum bt_trace_attribute attribute, uint64_t value);
/* Behind the attributes, once. name: of the program. */
void bt_span_event(bt_record_draft_t *out, bt_str_t name, uint64_t at_us);
/* error: why it failed, or NULL. */
void bt_span_close(bt_record_draft_t *out, const char *error);

#endif

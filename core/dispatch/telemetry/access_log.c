/* access_log.c - one line a request, as text or JSON.
 *
 * The line is made on the stack: what a client wrote is cut (base/line.h), so LINE_BYTES holds the longest there can be.
 */
#include "dispatch/telemetry/access_log.h"

#include "base/line.h"
#include "base/log.h"
#include "dispatch/answer/usage.h"
#include "dispatch/state/encode_params.h"

#define LINE_BYTES 12288

/* Microseconds, as milliseconds with one digit behind the point. */
static void put_tenths(bt_line_t *l, uint64_t us)
{
    bt_line_decimal(l, (us + 50) / 100, 1);
}

/* A member of the line, comma and all. */
#define put_name(l, name) bt_line_lit((l), ",\"" name "\":")
#define put_str(l, name, value) (put_name(l, name), bt_line_quoted((l), (value), BT_LINE_FIELD_MAX))
#define put_u64(l, name, value) (put_name(l, name), bt_line_u64((l), (value)))
#define put_ms(l, name, us) (put_name(l, name), bt_line_decimal((l), (us), 3))

static const char *decider(const bt_request_t *r)
{
    return r->is_default ? "default" : r->policy_name;
}

/* A request that was refused early has none but its key's. */
static bt_str_t tenant_of(const bt_request_t *r)
{
    return r->tenant.n == 0 ? r->identity->tenant : r->tenant;
}

static void put_tokens(bt_line_t *l, const bt_request_t *r)
{
    const bt_usage_t usage = bt_usage_of(r);

    put_name(l, "tokens");
    bt_line_lit(l, "{\"prompt\":");
    bt_line_u64(l, usage.input);
    put_u64(l, "output", usage.output);
    bt_line_lit(l, "}");
}

static void log_json(bt_request_t *r, bt_line_t *l, uint64_t us, uint64_t ttft)
{
    char when[32];

    bt_clock_iso8601(bt_clock_wall_ms(), when, sizeof(when));
    bt_line_lit(l, "{\"time\":\"");
    bt_line_z(l, when);
    bt_line_lit(l, "\",\"level\":\"info\"");
    put_str(l, "request", bt_str(r->id));
    if (r->trace != NULL)
        put_str(l, "trace_id", bt_str(r->trace->id));
    put_str(l, "client", r->peer);
    if (r->tls_version != NULL)
        put_str(l, "tls", bt_str(r->tls_version));
    put_str(l, "tenant", tenant_of(r));
    put_str(l, "identity", r->identity->id);
    put_str(l, "pool", bt_str(r->pool != NULL ? r->pool->spec.name : NULL));
    put_str(l, "route", bt_str(bt_route_info(r->route)->label));
    put_str(l, "path", r->path);
    put_str(l, "model", r->intent.model);
    put_u64(l, "status", r->status);
    put_str(l, "plan", bt_str(bt_plan_kind_name(bt_request_kind(r))));
    if (r->encode != NULL)
        put_str(l, "encode", bt_encode_names(r));
    put_str(l, "prefill", bt_str(bt_request_worker(r, BT_LEG_PREFILL)));
    put_str(l, "decode", bt_str(bt_request_worker(r, BT_LEG_DECODE)));
    put_str(l, "worker", bt_str(bt_request_worker(r, BT_LEG_SINGLE)));
    put_u64(l, "attempts", r->attempts);
    put_ms(l, "ms", us);
    put_ms(l, "ttft_ms", ttft);
    put_u64(l, "bytes_in", r->body_bytes);
    put_u64(l, "bytes_out", r->sent_bytes);
    put_u64(l, "events", r->events);
    put_tokens(l, r);
    put_u64(l, "plan_us", r->record.plan_us);
    put_str(l, "error", bt_str(r->fail_name));
    put_str(l, "policy", bt_str(decider(r)));
    bt_line_lit(l, "}");
}

static void put_field(bt_line_t *l, const char *value)
{
    bt_line_plain(l, bt_str(value), BT_LINE_FIELD_MAX);
}

static void put_workers(bt_line_t *l, const bt_request_t *r)
{
    if (bt_request_worker(r, BT_LEG_SINGLE)[0] != '\0') {
        put_field(l, bt_request_worker(r, BT_LEG_SINGLE));
        return;
    }
    put_field(l, bt_request_worker(r, BT_LEG_PREFILL));
    bt_line_lit(l, ">");
    put_field(l, bt_request_worker(r, BT_LEG_DECODE));
}

static void log_text(const bt_request_t *r, bt_line_t *l, uint64_t us, uint64_t ttft)
{
    char when[32];

    bt_clock_iso8601(bt_clock_wall_ms(), when, sizeof(when));
    bt_line_z(l, when);
    bt_line_lit(l, " access ");
    put_field(l, r->id);
    bt_line_lit(l, " ");
    bt_line_plain(l, r->path, BT_LINE_FIELD_MAX);
    bt_line_lit(l, " ");
    bt_line_u64(l, r->status);
    bt_line_lit(l, " ");
    bt_line_z(l, bt_plan_kind_name(bt_request_kind(r)));
    bt_line_lit(l, " ");
    put_workers(l, r);
    bt_line_lit(l, " attempts ");
    bt_line_u64(l, r->attempts);
    bt_line_lit(l, " in ");
    bt_line_u64(l, r->body_bytes);
    bt_line_lit(l, " out ");
    bt_line_u64(l, r->sent_bytes);
    bt_line_lit(l, " ttft ");
    put_tenths(l, ttft);
    bt_line_lit(l, " ms total ");
    put_tenths(l, us);
    bt_line_lit(l, " ms by ");
    put_field(l, r->policy_name != NULL || r->is_default ? decider(r) : "nobody");
    bt_line_lit(l, " in ");
    bt_line_u64(l, r->record.plan_us);
    bt_line_lit(l, " us");
    if (r->trace != NULL) {
        bt_line_lit(l, " trace ");
        bt_line_z(l, r->trace->id);
    }
    if (r->fail_name != NULL) {
        bt_line_lit(l, " error ");
        put_field(l, r->fail_name);
    }
}

void bt_access_log(bt_request_t *r, uint64_t us)
{
    uint64_t ttft = r->first_byte_us != 0 ? r->first_byte_us - r->start_us : 0;
    char memory[LINE_BYTES];
    bt_line_t l;

    if (!r->d->shared->config.access_log)
        return;
    bt_line_init(&l, memory, sizeof(memory));
    if (r->d->shared->config.access_log_json)
        log_json(r, &l, us, ttft);
    else
        log_text(r, &l, us, ttft);
    bt_log_line(bt_line_str(&l));
    bt_stats_inc(&r->d->stats, access_log_lines);
}

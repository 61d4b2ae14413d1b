/* access_log.c - one line a request, as text or JSON. */
#include "base/log.h"
#include "base/text.h"
#include "dispatch/request.h"

static void log_json(const bt_request_t *r, bt_text_t *t, uint64_t us, uint64_t ttft)
{
    bt_text_printf(t, "{\"request\":\"%s\",\"route\":\"%s\",\"path\":", r->id,
                   bt_route_info(r->route)->label);
    bt_text_json_str(t, r->path);
    bt_text_puts(t, ",\"model\":");
    bt_text_json_str(t, r->intent.model);
    bt_text_printf(
        t,
        ",\"status\":%u,\"plan\":\"%s\",\"prefill\":\"%s\",\"decode\":\"%s\",\"worker\":\"%s\","
        "\"attempts\":%u,\"ms\":%.3f,\"ttft_ms\":%.3f,\"bytes_in\":%zu,\"bytes_out\":%llu,"
        "\"events\":%llu,"
        "\"plan_us\":%llu,\"error\":\"%s\",\"policy\":",
        r->status, bt_plan_kind_name(r->kind), r->workers[0], r->workers[1], r->workers[2],
        r->attempts, (double) us / 1000.0, (double) ttft / 1000.0, r->intent.body.text.n,
        (unsigned long long) r->sent_bytes, (unsigned long long) r->events,
        (unsigned long long) r->record.plan_us, r->fail_name != NULL ? r->fail_name : "");
    bt_text_json_str(t, bt_str(r->policy_name != NULL ? r->policy_name : ""));
    bt_text_puts(t, "}");
}

static void log_text(const bt_request_t *r, bt_text_t *t, uint64_t us, uint64_t ttft)
{
    char when[32];
    const char *single = r->workers[BT_LEG_SINGLE];

    bt_clock_iso8601(bt_clock_wall_ms(), when, sizeof(when));
    bt_text_printf(
        t,
        "%s access %s %.*s %u %s %s%s%s attempts %u in %zu out %llu ttft %.1f ms total %.1f ms by "
        "%s in "
        "%llu us%s%s",
        when, r->id, BT_STR_ARG(r->path), r->status, bt_plan_kind_name(r->kind),
        single[0] != '\0' ? single : r->workers[BT_LEG_PREFILL], single[0] != '\0' ? "" : ">",
        single[0] != '\0' ? "" : r->workers[BT_LEG_DECODE], r->attempts, r->intent.body.text.n,
        (unsigned long long) r->sent_bytes, (double) ttft / 1000.0, (double) us / 1000.0,
        r->policy_name != NULL ? r->policy_name : "nobody", (unsigned long long) r->record.plan_us,
        r->fail_name != NULL ? " error " : "", r->fail_name != NULL ? r->fail_name : "");
}

void bt_access_log(bt_request_t *r, uint64_t us)
{
    uint64_t ttft = r->first_byte_us != 0 ? r->first_byte_us - r->start_us : 0;
    bt_text_t t;

    if (!r->d->gate->config.access_log)
        return;
    bt_text_init(&t);
    if (r->d->gate->config.access_log_json)
        log_json(r, &t, us, ttft);
    else
        log_text(r, &t, us, ttft);
    bt_log_line(bt_text_str(&t));
    bt_text_fini(&t);
    bt_stats_inc(&r->d->stats, access_log_lines);
}

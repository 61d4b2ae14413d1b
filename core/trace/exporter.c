/*   idle --enough waits, or it has waited a second--> (resolving) -> calling --2xx--> idle
 *    ^                                                               |  other status: the batch is rejected -> idle
 *    +---- a pause of 1 s to 30 s, or as Retry-After says <-- 429, 502-504, no answer (the batch stays)
 *
 * Closing makes no pauses: the first failure, or its deadline, is the end.
 */
#include "trace/exporter.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rand.h"
#include "discovery/https.h"
#include "loop/resolve.h"
#include "trace/span.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>

#define TICK_MS 250
#define WAIT_MS 1000 /* a trace waits for others at most so long */
#define CALL_MS 10000
#define CLOSE_MS 2000
#define ADDRESS_MS 30000 /* the host's is looked up again after it */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 30000
#define RETRY_AFTER_MAX_MS 300000 /* a collector that asks for more is asked again then */
#define BATCH_BYTES ((size_t) 128 << 10)
#define ANSWER_BYTES_MAX ((size_t) 64 << 10)
#define FILE_BYTES_MAX ((size_t) 1 << 20)
#define HEADERS_MAX 32

struct bt_trace_exporter {
    bt_loop_t *loop;
    bt_trace_queue_t *queue;
    bt_https_t *https;
    bt_https_call_t call;
    bt_resolve_t resolve;
    bt_timer_t tick, deadline;
    char *url, *service_name, *instance;
    const char *version;
    char host[256], address[64];
    bt_text_t ca, headers_text, body, answer;
    const char *headers[HEADERS_MAX + 1];
    bt_trace_batch_t batch;
    uint64_t waiting_since_ms; /* 0 = nothing does */
    uint64_t resolved_ms, pause_until_ms, pause_ms;
    bool is_resolving, is_failing, is_closing, is_over;
    void (*done)(void *user);
    void *user;
};

/* ---- the end ---- */

static void free_when_done(bt_trace_exporter_t *e)
{
    if (e->is_resolving)
        return;
    bt_text_fini(&e->ca);
    bt_text_fini(&e->headers_text);
    bt_text_fini(&e->body);
    bt_text_fini(&e->answer);
    bt_text_fini(&e->batch.drafts);
    free(e->url);
    free(e->service_name);
    free(e->instance);
    free(e);
}

static void drop_rest(bt_trace_exporter_t *e)
{
    unsigned dropped = e->batch.spans;

    e->batch.spans = 0;
    do {
        e->batch.drafts.len = 0;
        e->batch.drafts.failed = false;
        bt_trace_queue_take(e->queue, BT_TRACE_QUEUE_BYTES, &e->batch);
    } while (e->batch.drafts.failed);
    dropped += e->batch.spans;
    bt_trace_queue_note(e->queue, 0, 0, dropped);
    if (dropped > 0)
        bt_log_warn("traces", "%u spans were not sent before the end", dropped);
}

static void end(bt_trace_exporter_t *e)
{
    void (*done)(void *) = e->done;
    void *user = e->user;

    if (e->is_over)
        return;
    e->is_over = true;
    bt_timer_stop(&e->tick);
    bt_timer_stop(&e->deadline);
    bt_https_cancel(&e->call);
    bt_https_close(e->https);
    drop_rest(e);
    if (e->is_resolving)
        bt_resolve_cancel(&e->resolve); /* its end comes all the same */
    else
        free_when_done(e);
    if (done != NULL)
        done(user);
}

static void on_deadline(bt_timer_t *timer)
{
    end(bt_container_of(timer, bt_trace_exporter_t, deadline));
}

/* ---- what comes of a batch ---- */

static void send_next(bt_trace_exporter_t *e);

static void let_go(bt_trace_exporter_t *e)
{
    e->batch.spans = 0;
    e->batch.drafts.len = 0;
    bt_text_fini(&e->body);
    bt_text_init(&e->body);
}

/* It goes out again. */
static void fail(bt_trace_exporter_t *e, const char *why, uint64_t retry_after_ms)
{
    bt_trace_queue_note_error(e->queue);
    if (!e->is_failing)
        bt_log_warn(
            "traces",
            "%s: %s; spans wait in memory, and are dropped when more than %u MiB of them do",
            e->url, why, (unsigned) (BT_TRACE_QUEUE_BYTES >> 20));
    e->is_failing = true;
    if (e->is_closing) {
        bt_timer_start(&e->deadline, 0); /* not inside of a call's end */
        return;
    }
    e->resolved_ms = 0;
    e->pause_ms = e->pause_ms == 0 ? PAUSE_MIN_MS : 2 * e->pause_ms;
    if (e->pause_ms > PAUSE_MAX_MS)
        e->pause_ms = PAUSE_MAX_MS;
    /* Gateways that have lost the same collector do not come back in step, and none before it is asked to. */
    uint64_t pause_ms = e->pause_ms / 2 + bt_rand_below(e->pause_ms / 2 + 1);
    if (retry_after_ms > RETRY_AFTER_MAX_MS)
        retry_after_ms = RETRY_AFTER_MAX_MS;
    if (retry_after_ms > pause_ms)
        pause_ms = retry_after_ms + bt_rand_below(PAUSE_MIN_MS);
    e->pause_until_ms = bt_clock_ms() + pause_ms;
}

static bool is_temporary(int status)
{
    return status == 429 || status == 502 || status == 503 || status == 504;
}

/* {"partialSuccess":{"rejectedSpans":"3","errorMessage":".."}}; a number is as good. */
static uint64_t rejected_spans(bt_str_t answer)
{
    const bt_str_t partial = bt_json_type_of(answer) == BT_JSON_OBJECT
                                 ? bt_json_find(answer, BT_STR("partialSuccess"))
                                 : BT_STR_NULL;
    bt_str_t value = bt_json_type_of(partial) == BT_JSON_OBJECT
                         ? bt_json_find(partial, BT_STR("rejectedSpans"))
                         : BT_STR_NULL;
    uint64_t n = 0;

    if (value.n > 2 && value.p[0] == '"')
        value = (bt_str_t){value.p + 1, value.n - 2};
    return value.n > 0 && bt_str_u64(value, &n) == 0 ? n : 0;
}

static void taken(bt_trace_exporter_t *e)
{
    uint64_t rejected = 0;
    const bt_str_t answer = bt_text_str(&e->answer);

    if (answer.n > 0 && bt_json_validate(answer, NULL) == 0)
        rejected = rejected_spans(answer);
    rejected = rejected < e->batch.spans ? rejected : e->batch.spans;
    if (rejected > 0)
        bt_log_warn("traces", "%s has refused %llu of %u spans: %.*s", e->url,
                    (unsigned long long) rejected, e->batch.spans,
                    (int) (answer.n < 512 ? answer.n : 512), answer.p);
    bt_trace_queue_note(e->queue, e->batch.spans - rejected, rejected, 0);
    if (e->is_failing)
        bt_log_info("traces", "%s takes spans again", e->url);
    e->is_failing = false;
    e->pause_ms = 0;
}

static void on_head(bt_https_call_t *call, int status)
{
    (void) call;
    (void) status;
}

static bool on_data(bt_https_call_t *call, int status, bt_str_t bytes)
{
    bt_trace_exporter_t *e = bt_container_of(call, bt_trace_exporter_t, call);

    (void) status;
    if (e->answer.len < ANSWER_BYTES_MAX) /* what is longer says nothing to us */
        bt_text_put(&e->answer, bytes);
    return true;
}

static void on_end(bt_https_call_t *call, const bt_https_end_t *answer)
{
    bt_trace_exporter_t *e = bt_container_of(call, bt_trace_exporter_t, call);
    char why[64];

    snprintf(why, sizeof(why), "it answers with status %d", answer->status);
    if (answer->status == 0 || !answer->is_whole) {
        fail(e, answer->why, 0);
        return;
    }
    if (is_temporary(answer->status)) {
        fail(e, why, answer->retry_after_ms);
        return;
    }
    if (answer->status >= 200 && answer->status < 300) {
        taken(e);
    } else {
        bt_log_error("traces", "%s: %s; %u spans are lost: %.*s", e->url, why, e->batch.spans,
                     (int) (e->answer.len < 512 ? e->answer.len : 512), bt_text_str(&e->answer).p);
        bt_trace_queue_note_error(e->queue);
        bt_trace_queue_note(e->queue, 0, e->batch.spans, 0);
    }
    let_go(e);
    send_next(e);
}

/* ---- sending one ---- */

static void put_attribute(bt_text_t *out, const char *key, const char *value)
{
    if (value == NULL || value[0] == '\0')
        return;
    bt_text_printf(out, "%s{\"key\":\"%s\",\"value\":{\"stringValue\":",
                   out->data[out->len - 1] == '[' ? "" : ",", key);
    bt_text_json_str(out, bt_str(value));
    bt_text_puts(out, "}}");
}

static void render(bt_trace_exporter_t *e)
{
    bt_text_t *out = &e->body;

    bt_text_puts(out, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    put_attribute(out, "service.name", e->service_name);
    put_attribute(out, "service.version", e->version);
    put_attribute(out, "service.instance.id", e->instance);
    bt_text_puts(out,
                 "]},\"schemaUrl\":\"" BT_TRACE_SCHEMA "\",\"scopeSpans\":[{\"scope\":{\"name\":"
                 "\"baton\",\"version\":");
    bt_text_json_str(out, bt_str(e->version));
    bt_text_puts(out, "},\"schemaUrl\":\"" BT_TRACE_SCHEMA "\",\"spans\":[");
    bt_record_draft_render(bt_text_str(&e->batch.drafts), out);
    bt_text_puts(out, "]}]}]}");
}

static void call(bt_trace_exporter_t *e)
{
    const bt_https_request_t request = {.url = e->url,
                                        .address = e->address[0] != '\0' ? e->address : NULL,
                                        .ca = bt_text_str(&e->ca),
                                        .total_ms = CALL_MS,
                                        .headers = e->headers,
                                        .body = bt_text_str(&e->body)};

    e->answer.len = 0;
    const int rc = bt_https_post(e->https, &e->call, &request);
    if (rc < 0)
        fail(e, bt_err_text(rc), 0);
}

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    bt_trace_exporter_t *e = r->user;

    e->is_resolving = false;
    if (e->is_over) {
        free_when_done(e);
        return;
    }
    if (rc == 0 && getnameinfo((const struct sockaddr *) addr, sizeof(*addr), e->address,
                               sizeof(e->address), NULL, 0, NI_NUMERICHOST) != 0)
        rc = BT_E_RESOLVE;
    if (rc < 0) {
        fail(e, bt_err_text(rc), 0);
        return;
    }
    e->resolved_ms = bt_clock_ms();
    call(e);
}

/* The batch: rendered, and the way known. */
static void send_batch(bt_trace_exporter_t *e)
{
    struct sockaddr_storage numeric;

    if (bt_resolve_numeric(e->host, 0, &numeric) == 0 ||
        (e->resolved_ms != 0 && bt_clock_ms() - e->resolved_ms < ADDRESS_MS)) {
        call(e);
        return;
    }
    e->resolve.user = e;
    const int rc = bt_resolve_start(&e->resolve, e->loop, e->host, 0, on_resolved);
    e->is_resolving = rc == 0;
    if (rc < 0)
        fail(e, bt_err_text(rc), 0);
}

static void lose_batch(bt_trace_exporter_t *e)
{
    bt_trace_queue_note(e->queue, 0, 0, e->batch.spans);
    e->batch.drafts.failed = false;
    let_go(e);
}

/* May it go now, or shall more come? */
static bool is_time(bt_trace_exporter_t *e, size_t bytes)
{
    const uint64_t now_ms = bt_clock_ms();

    if (bytes == 0) {
        e->waiting_since_ms = 0;
        return false;
    }
    if (e->waiting_since_ms == 0)
        e->waiting_since_ms = now_ms;
    return e->is_closing || bytes >= BATCH_BYTES || now_ms - e->waiting_since_ms >= WAIT_MS;
}

static void send_next(bt_trace_exporter_t *e)
{
    if (e->is_resolving || bt_https_runs(&e->call) || bt_clock_ms() < e->pause_until_ms)
        return;
    if (e->batch.spans > 0) { /* once more */
        send_batch(e);
        return;
    }
    if (!is_time(e, bt_trace_queue_bytes(e->queue))) {
        if (e->is_closing)
            bt_timer_start(&e->deadline, 0);
        return;
    }
    e->waiting_since_ms = 0;
    bt_trace_queue_take(e->queue, BATCH_BYTES, &e->batch);
    render(e);
    if (e->body.failed || e->batch.drafts.failed) {
        lose_batch(e);
        return;
    }
    send_batch(e);
}

static void on_tick(bt_timer_t *timer)
{
    bt_trace_exporter_t *e = bt_container_of(timer, bt_trace_exporter_t, tick);

    bt_timer_start(timer, TICK_MS);
    send_next(e);
}

/* ---- life ---- */

static int read_file(const char *flag, const char *path, bt_text_t *out, char *err, size_t err_size)
{
    char piece[4096];
    size_t n;

    if (path == NULL)
        return 0;
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return bt_err_refuse(err, err_size, "%s: %s: %s", flag, path, strerror(errno));
    while ((n = fread(piece, 1, sizeof(piece), in)) > 0 && out->len <= FILE_BYTES_MAX)
        bt_text_put(out, (bt_str_t){piece, n});
    const bool is_bad = ferror(in) || out->len == 0 || out->len > FILE_BYTES_MAX;
    fclose(in);
    return is_bad ? bt_err_refuse(err, err_size, "%s: %s: it is empty, or above 1 MiB", flag, path)
                  : 0;
}

static bool is_header(const char *line)
{
    const size_t n =
        strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");

    if (n == 0 || line[n] != ':')
        return false;
    for (const char *p = line + n; *p != '\0'; p++)
        if ((*p < ' ' && *p != '\t') || *p == 0x7f)
            return false;
    return true;
}

/* Lines are cut where they stand. */
static int read_headers(bt_trace_exporter_t *e, const char *path, char *err, size_t err_size)
{
    unsigned count = 0, number = 0;
    int rc = read_file("--trace-headers-file", path, &e->headers_text, err, err_size);

    if (rc < 0 || path == NULL)
        return rc;
    for (char *at = e->headers_text.data; at != NULL && *at != '\0';) {
        char *line = at, *newline = strchr(at, '\n');

        number++;
        at = newline != NULL ? newline + 1 : NULL;
        if (newline != NULL)
            *newline = '\0';
        line[strcspn(line, "\r")] = '\0';
        if (line[0] == '\0' || line[0] == '#')
            continue;
        if (!is_header(line) || count == HEADERS_MAX)
            return bt_err_refuse(err, err_size,
                                 "--trace-headers-file: %s:%u: expected \"name: value\", at most "
                                 "%d lines",
                                 path, number, HEADERS_MAX);
        e->headers[count++] = line;
    }
    return 0;
}

/* config/traces.c has looked at it. */
static int take_endpoint(bt_trace_exporter_t *e, const char *endpoint)
{
    const char *from = strstr(endpoint, "://") + 3;
    const char *path = strchr(from, '/');
    const bool is_v6 = *from == '[', has_path = path != NULL && path[1] != '\0';
    const size_t n = strlen(endpoint) - (path != NULL && !has_path);

    snprintf(e->host, sizeof(e->host), "%.*s", (int) strcspn(from + is_v6, is_v6 ? "]" : "/:?"),
             from + is_v6);
    if (asprintf(&e->url, "%.*s%s", (int) n, endpoint, has_path ? "" : "/v1/traces") < 0) {
        e->url = NULL;
        return BT_E_NOMEM;
    }
    return 0;
}

static int take_names(bt_trace_exporter_t *e, const bt_trace_exporter_config_t *config)
{
    e->version = config->version;
    e->service_name = bt_str_dup(bt_str(config->service_name));
    e->instance = bt_str_dup(bt_str(config->instance != NULL ? config->instance : ""));
    return e->service_name != NULL && e->instance != NULL ? 0 : BT_E_NOMEM;
}

int bt_trace_exporter_new(bt_trace_exporter_t **e_p, bt_loop_t *loop, bt_trace_queue_t *queue,
                          const bt_trace_exporter_config_t *config, char *err, size_t err_size)
{
    bt_trace_exporter_t *e = calloc(1, sizeof(*e));
    int rc;

    if (e == NULL)
        return BT_E_NOMEM;
    e->loop = loop;
    e->queue = queue;
    e->call.on_head = on_head;
    e->call.on_data = on_data;
    e->call.on_end = on_end;
    bt_timer_init(loop, &e->tick, on_tick);
    bt_timer_init(loop, &e->deadline, on_deadline);
    rc = take_endpoint(e, config->endpoint);
    if (rc == 0)
        rc = take_names(e, config);
    if (rc == 0)
        rc = read_file("--trace-ca-file", config->ca_file, &e->ca, err, err_size);
    if (rc == 0)
        rc = read_headers(e, config->headers_file, err, err_size);
    if (rc == 0)
        rc = bt_https_new(&e->https, loop, err, err_size);
    if (rc < 0) {
        free_when_done(e);
        return rc;
    }
    *e_p = e;
    return 0;
}

void bt_trace_exporter_start(bt_trace_exporter_t *e)
{
    bt_timer_start(&e->tick, TICK_MS);
}

void bt_trace_exporter_close(bt_trace_exporter_t *e, void (*done)(void *user), void *user)
{
    if (e == NULL) {
        done(user);
        return;
    }
    e->done = done;
    e->user = user;
    e->is_closing = true;
    if (e->is_failing) {
        end(e);
        return;
    }
    bt_timer_stop(&e->tick);
    bt_timer_start(&e->deadline, CLOSE_MS);
    e->pause_until_ms = 0;
    send_next(e);
}

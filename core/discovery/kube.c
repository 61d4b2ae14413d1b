/*            prepare (pool thread: token, CA, address)
 *               │
 *       ┌──── must_list? ────┐
 *       ▼                    ▼
 *     list ── next page    watch ── ends well, or the connection breaks: watch again from the last event
 *       │                    │
 *       └── whole: watch     └── 410, what cannot be read, refused several times: list
 *
 * Whatever fails is tried again after a while that grows, but for a 410 and a first 401 (the token may be another one by now).
 */
#include "discovery/kube.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "discovery/https.h"
#include "discovery/json_stream.h"
#include "discovery/kube_access.h"
#include "discovery/kube_json.h"
#include "loop/offload.h"
#include "loop/resolve.h"

#include <stdio.h>
#include <stdlib.h>

#define OBJECT_MAX ((size_t) 4 << 20) /* etcd's own limit for one is 1.5 MiB */
#define LIST_MS 60000
#define WATCH_MIN_SECS 240 /* and up to a minute more, so that replicas do not come together */
#define WATCH_GRACE_MS 15000
#define HALF_LINE_MS 10000
#define SHORT_WATCH_MS 1000
#define STEADY_MS 5000
#define RETRY_FIRST_MS 500
#define RETRY_MAX_MS 30000
#define REFUSED_TIMES 3
#define ERROR_BODY_MAX 2048
#define VERSION_MAX 128

struct bt_kube {
    bt_loop_t *loop;
    const bt_kube_options_t *options;
    bt_kube_access_t access;
    char *label;
    bt_kube_table_t *table;
    bt_https_t *https;
    bt_https_call_t call;
    bt_json_stream_t stream;
    bt_offload_t work;
    bt_resolve_t resolve; /* the name of the API server */
    bool is_resolving;
    bt_timer_t retry, half_line;
    bool is_preparing, is_closed;
    bool must_list, is_listing; /* is_listing: what runs is a list */
    char version[VERSION_MAX];  /* of the last event or list */
    char *next_page;            /* NULL: from the beginning */
    /* of the call that runs */
    uint64_t begun_ms;
    int stream_rc;
    bool is_gone;  /* an event has said 410 */
    bool has_news; /* something could be read */
    bt_text_t error_body;
    char event_why[200];
    /* since the last that went well */
    unsigned failures, refused;
    bool is_synced, is_watching;
    char why[400];
    uint64_t events, lists, watches, failures_total;
};

static void begin(bt_kube_t *k);

/* ---- what the answers say ---- */

static bool note_version(bt_kube_t *k, bt_str_t object)
{
    char version[VERSION_MAX];

    if (!bt_kube_text(bt_kube_member(bt_kube_member(object, "metadata"), "resourceVersion"),
                      version, sizeof version) ||
        version[0] == '\0')
        return false;
    memcpy(k->version, version, sizeof version);
    return true;
}

/* Something has come that could be used. */
static void note_news(bt_kube_t *k)
{
    k->has_news = true;
    k->failures = k->refused = 0;
}

static int take_pod(bt_kube_t *k, bt_str_t object, bool is_deleted)
{
    bt_kube_pod_t pod;
    int rc = bt_kube_pod_read(&pod, k->options, object);

    if (rc < 0)
        return rc;
    if (is_deleted)
        bt_kube_table_drop(k->table, &pod);
    else
        rc = bt_kube_table_take(k->table, &pod);
    bt_kube_pod_fini(&pod);
    return rc == BT_E_LIMIT ? 0 : rc; /* the table has said so */
}

static bool on_item(void *user, bt_str_t value)
{
    bt_kube_t *k = user;

    k->stream_rc = take_pod(k, value, false);
    return k->stream_rc == 0;
}

/* An ERROR event: its object is a Status. */
static int take_error(bt_kube_t *k, bt_str_t object)
{
    int64_t code = 0;
    char message[160] = "";

    (void) bt_json_i64(bt_kube_member(object, "code"), &code);
    (void) bt_kube_text(bt_kube_member(object, "message"), message, sizeof message);
    snprintf(k->event_why, sizeof k->event_why, "the watch says %d: %s", (int) code, message);
    k->is_gone = code == 410;
    return BT_E_CANCELLED;
}

static int take_event(bt_kube_t *k, bt_str_t line)
{
    char type[16];
    size_t err_off;

    if (bt_json_validate(line, &err_off) < 0 ||
        !bt_kube_text(bt_kube_member(line, "type"), type, sizeof type))
        return BT_E_JSON;
    const bt_str_t object = bt_kube_member(line, "object");
    int rc = 0;
    if (strcmp(type, "ERROR") == 0)
        return take_error(k, object);
    if (strcmp(type, "BOOKMARK") != 0)
        rc = take_pod(k, object, strcmp(type, "DELETED") == 0);
    if (rc == 0 && !note_version(k, object))
        rc = BT_E_JSON;
    if (rc < 0)
        return rc;
    k->events++;
    note_news(k);
    return 0;
}

static bool on_line(void *user, bt_str_t line)
{
    bt_kube_t *k = user;

    k->stream_rc = take_event(k, line);
    return k->stream_rc == 0;
}

/* A line that has begun has to end. */
static void guard_line(bt_kube_t *k)
{
    if (!bt_json_stream_is_within(&k->stream))
        bt_timer_stop(&k->half_line);
    else if (!bt_timer_active(&k->half_line))
        bt_timer_start(&k->half_line, HALF_LINE_MS);
}

static void on_head(bt_https_call_t *call, int status)
{
    bt_kube_t *k = bt_container_of(call, bt_kube_t, call);

    if (status != 200)
        return;
    k->is_watching = !k->is_listing;
    if (k->why[0] != '\0')
        bt_log_info("discovery", "%s: the API server answers again", k->label);
    k->why[0] = '\0';
}

static bool on_data(bt_https_call_t *call, int status, bt_str_t bytes)
{
    bt_kube_t *k = bt_container_of(call, bt_kube_t, call);
    int rc;

    if (status != 200) {
        const size_t left = ERROR_BODY_MAX - k->error_body.len;
        bt_text_put(&k->error_body, (bt_str_t){bytes.p, bytes.n < left ? bytes.n : left});
        return true;
    }
    rc = bt_json_stream_feed(&k->stream, bytes, k->is_listing ? on_item : on_line, k);
    if (rc < 0 && k->stream_rc == 0)
        k->stream_rc = rc;
    if (!k->is_listing)
        guard_line(k);
    return k->stream_rc == 0;
}

/* ---- how a call has ended ---- */

static void begin_again(bt_timer_t *timer)
{
    begin(bt_container_of(timer, bt_kube_t, retry));
}

static uint64_t retry_ms(const bt_kube_t *k, uint64_t at_least_ms)
{
    const unsigned doublings = k->failures < 7 ? k->failures - 1 : 6;
    uint64_t ms = (uint64_t) RETRY_FIRST_MS << doublings;

    ms = ms < RETRY_MAX_MS ? ms : RETRY_MAX_MS;
    ms = ms / 2 + bt_rand_below(ms / 2 + 1);
    at_least_ms = at_least_ms < 2 * RETRY_MAX_MS ? at_least_ms : 2 * RETRY_MAX_MS;
    return ms > at_least_ms ? ms : at_least_ms;
}

/* k->why says what it was. Told at the first, and then ever more seldom. */
static void fail(bt_kube_t *k, uint64_t at_least_ms)
{
    bt_kube_counts_t counts;

    k->failures++;
    k->failures_total++;
    if ((k->failures & (k->failures - 1)) == 0) {
        bt_kube_table_count(k->table, &counts);
        bt_log_warn("discovery", "%s: %s; %u pods stay as they are, asked again", k->label, k->why,
                    counts.pods);
    }
    bt_timer_start(&k->retry, retry_ms(k, at_least_ms));
}

static void drop_page(bt_kube_t *k)
{
    free(k->next_page);
    k->next_page = NULL;
}

static void list_anew(bt_kube_t *k)
{
    k->must_list = true;
    drop_page(k);
}

/* The message of a Status, or the first of whatever else came. */
static void explain_status(bt_kube_t *k, int status)
{
    const bt_str_t body = bt_text_str(&k->error_body);
    char message[240] = "";
    size_t err_off;

    if (bt_json_validate(body, &err_off) == 0)
        (void) bt_kube_text(bt_kube_member(body, "message"), message, sizeof message);
    snprintf(k->why, sizeof k->why, "%s is answered %d%s%s", k->is_listing ? "list" : "watch",
             status, message[0] != '\0' ? ": " : "", message);
}

/* Not worth a word: it is known what to do. */
static void begin_at_once(bt_kube_t *k)
{
    k->why[0] = '\0';
    begin(k);
}

static void end_refused(bt_kube_t *k, const bt_https_end_t *end)
{
    explain_status(k, end->status);
    k->refused++;
    if (end->status == 410) { /* the version or the page is too old */
        list_anew(k);
        if (k->refused == 1) {
            begin_at_once(k);
            return;
        }
    }
    /* An overloaded one gets the cheaper question again; one that does not know the version (400), or not any more (504), another one. */
    const bool is_busy = end->status == 429 || end->status >= 500;
    if (end->status != 401 && end->status != 403 && (!is_busy || k->refused >= REFUSED_TIMES))
        list_anew(k);
    if (end->status == 401 && k->refused == 1) {
        begin_at_once(k);
        return;
    }
    fail(k, end->retry_after_ms);
}

/* What came cannot be read, or says itself that it is over: events may be missing. */
static void end_unreadable(bt_kube_t *k)
{
    const int rc = k->stream_rc;
    const bool at_once = k->is_gone && k->has_news;

    if (rc == BT_E_CANCELLED)
        snprintf(k->why, sizeof k->why, "%s", k->event_why);
    else
        snprintf(k->why, sizeof k->why, "%s cannot be read: %s", k->is_listing ? "list" : "watch",
                 rc == BT_E_LIMIT ? "one object is larger than 4 MiB" : bt_err_text(rc));
    list_anew(k);
    if (at_once || (k->is_gone && k->refused++ == 0)) {
        begin_at_once(k);
        return;
    }
    fail(k, 0);
}

static void end_watch(bt_kube_t *k, const bt_https_end_t *end)
{
    if (end->is_whole && bt_clock_ms() - k->begun_ms >= SHORT_WATCH_MS) {
        note_news(k);
        begin(k);
        return;
    }
    snprintf(k->why, sizeof k->why, "watch: %s", end->is_whole ? "it ends at once" : end->why);
    fail(k, 0);
}

static void end_whole_list(bt_kube_t *k)
{
    bt_kube_counts_t counts;

    bt_kube_table_end_list(k->table);
    drop_page(k);
    k->must_list = false;
    k->lists++;
    note_news(k);
    if (!k->is_synced) {
        bt_kube_table_count(k->table, &counts);
        bt_log_info("discovery", "%s: %u pods, %u of them ready", k->label, counts.pods,
                    counts.by_state[BT_KUBE_READY]);
    }
    k->is_synced = true;
    begin(k);
}

static void end_list(bt_kube_t *k, const bt_https_end_t *end)
{
    const bt_str_t rest = {k->stream.rest.data, k->stream.rest.len};
    char kind[32], next[4096] = "";
    size_t err_off;

    if (!end->is_whole) {
        snprintf(k->why, sizeof k->why, "list: %s", end->why);
        fail(k, 0);
        return;
    }
    if (bt_json_validate(rest, &err_off) < 0 ||
        !bt_kube_text(bt_kube_member(rest, "kind"), kind, sizeof kind) ||
        strcmp(kind, "PodList") != 0 || !note_version(k, rest)) {
        k->stream_rc = BT_E_JSON;
        end_unreadable(k);
        return;
    }
    if (k->stream.too_large > 0)
        bt_log_error("discovery", "%s: %llu pods are larger than 4 MiB and left out", k->label,
                     (unsigned long long) k->stream.too_large);
    (void) bt_kube_text(bt_kube_member(bt_kube_member(rest, "metadata"), "continue"), next,
                        sizeof next);
    drop_page(k);
    if (next[0] == '\0') {
        end_whole_list(k);
        return;
    }
    k->next_page = bt_str_dup(bt_str(next));
    if (k->next_page == NULL) {
        snprintf(k->why, sizeof k->why, "%s", bt_err_text(BT_E_NOMEM));
        fail(k, 0);
        return;
    }
    begin(k);
}

/* A watch may be quiet for long: one that has stood for a while was well. */
static void leave_watch(bt_kube_t *k)
{
    if (k->is_watching && bt_clock_ms() - k->begun_ms >= STEADY_MS)
        note_news(k);
    k->is_watching = false;
}

static void on_end(bt_https_call_t *call, const bt_https_end_t *end)
{
    bt_kube_t *k = bt_container_of(call, bt_kube_t, call);

    bt_timer_stop(&k->half_line);
    leave_watch(k);
    if (k->stream_rc < 0)
        end_unreadable(k);
    else if (end->status != 0 && end->status != 200)
        end_refused(k, end);
    else if (k->is_listing)
        end_list(k, end);
    else
        end_watch(k, end);
}

static void on_half_line(bt_timer_t *timer)
{
    bt_kube_t *k = bt_container_of(timer, bt_kube_t, half_line);

    bt_https_cancel(&k->call);
    leave_watch(k);
    snprintf(k->why, sizeof k->why, "watch: an event has begun and not ended within %d s",
             HALF_LINE_MS / 1000);
    fail(k, 0);
}

/* ---- how one begins ---- */

static int call(bt_kube_t *k)
{
    const unsigned watch_secs = WATCH_MIN_SECS + (unsigned) bt_rand_below(60);
    const bt_kube_access_t *a = &k->access;
    bt_text_t url;

    k->is_listing = k->must_list;
    k->stream_rc = 0;
    k->is_gone = k->has_news = false;
    k->begun_ms = bt_clock_ms();
    bt_text_fini(&k->error_body);
    bt_text_init(&k->error_body);
    bt_json_stream_reset(&k->stream, k->is_listing ? BT_JSON_STREAM_ITEMS : BT_JSON_STREAM_LINES);
    if (k->is_listing && k->next_page == NULL)
        bt_kube_table_begin_list(k->table);
    bt_text_init(&url);
    if (k->is_listing)
        bt_kube_access_put_list(a, k->options->selector, k->next_page, &url);
    else
        bt_kube_access_put_watch(a, k->options->selector, k->version, watch_secs, &url);
    const bt_https_request_t request = {
        .url = url.data,
        .address = a->host != NULL ? a->address : NULL,
        .token = a->token,
        .ca = {a->ca, a->ca_size},
        .total_ms = k->is_listing ? LIST_MS : watch_secs * 1000 + WATCH_GRACE_MS};
    int rc = url.failed ? BT_E_NOMEM : bt_https_get(k->https, &k->call, &request);
    bt_text_fini(&url);
    return rc;
}

static void read_access(bt_offload_t *work)
{
    bt_kube_access_read(&bt_container_of(work, bt_kube_t, work)->access);
}

static void free_kube(bt_kube_t *k)
{
    bt_kube_access_fini(&k->access);
    bt_json_stream_fini(&k->stream);
    bt_text_fini(&k->error_body);
    free(k->next_page);
    free(k->label);
    free(k);
}

/* All that a call needs is there, or it is known why not. */
static void on_prepared(bt_kube_t *k)
{
    int rc = 0;

    k->is_preparing = false;
    if (k->is_closed) {
        free_kube(k);
        return;
    }
    if (k->access.why[0] != '\0')
        snprintf(k->why, sizeof k->why, "%s", k->access.why);
    else if ((rc = call(k)) < 0)
        snprintf(k->why, sizeof k->why, "%s", bt_err_text(rc));
    if (k->access.why[0] != '\0' || rc < 0)
        fail(k, 0);
    else
        k->watches += !k->is_listing;
}

static void on_address(bt_resolve_t *resolve, int rc, const struct sockaddr_storage *address)
{
    bt_kube_t *k = bt_container_of(resolve, bt_kube_t, resolve);

    k->is_resolving = false;
    bt_kube_access_set_address(&k->access, rc == 0 ? address : NULL);
    on_prepared(k);
}

static void on_access(bt_offload_t *work)
{
    bt_kube_t *k = bt_container_of(work, bt_kube_t, work);

    if (!k->is_closed && k->access.why[0] == '\0' && k->access.host != NULL)
        k->is_resolving =
            bt_resolve_start(&k->resolve, k->loop, k->access.host, 0, on_address) == 0;
    if (k->is_resolving)
        return;
    if (k->access.host != NULL && k->access.why[0] == '\0')
        bt_kube_access_set_address(&k->access, NULL);
    on_prepared(k);
}

static void begin(bt_kube_t *k)
{
    k->is_preparing = true;
    bt_offload_start(&k->work, k->loop, read_access, on_access);
}

/* ---- telling ---- */

void bt_kube_stats(const bt_kube_t *k, bt_kube_stats_t *stats)
{
    *stats = (bt_kube_stats_t){.label = k->label,
                               .is_synced = k->is_synced,
                               .is_watching = k->is_watching,
                               .events = k->events,
                               .lists = k->lists,
                               .watches = k->watches,
                               .failures = k->failures_total};
    bt_kube_table_count(k->table, &stats->counts);
}

void bt_kube_describe(const bt_kube_t *k, bt_text_t *out)
{
    bt_text_puts(out, "{\"source\":\"kubernetes\",\"api\":");
    bt_text_json_str(out, bt_str(k->access.url));
    bt_text_json_member(out, "namespace", k->access.namespace);
    bt_text_json_member(out, "selector", k->options->selector);
    bt_text_json_member(out, "pool", k->options->pool);
    bt_text_json_member(out, "state",
                        k->is_watching    ? "watching"
                        : k->failures > 0 ? "retrying"
                                          : "starting");
    bt_text_json_member(out, "why", k->why[0] != '\0' ? k->why : NULL);
    bt_text_json_member(out, "resource_version", k->version[0] != '\0' ? k->version : NULL);
    bt_text_printf(out, ",\"events\":%llu,\"lists\":%llu,\"watches\":%llu,\"failures\":%llu",
                   (unsigned long long) k->events, (unsigned long long) k->lists,
                   (unsigned long long) k->watches, (unsigned long long) k->failures_total);
    bt_kube_table_describe(k->table, out);
    bt_text_puts(out, "}");
}

/* ---- life ---- */

static int make_label(bt_kube_t *k)
{
    bt_text_t label;

    bt_text_init(&label);
    if (k->options->api != NULL)
        bt_text_printf(&label, "%s ", k->options->api);
    bt_text_printf(&label, "%s%s%s", k->access.namespace, k->options->selector != NULL ? " " : "",
                   k->options->selector != NULL ? k->options->selector : "");
    k->label = bt_text_take(&label);
    return k->label != NULL ? 0 : BT_E_NOMEM;
}

int bt_kube_open(bt_kube_t **kube_p, bt_loop_t *loop, const bt_kube_options_t *options,
                 bt_kube_sink sink, void *user, char *err, size_t err_size)
{
    bt_kube_t *k = calloc(1, sizeof *k);

    if (k == NULL)
        return BT_E_NOMEM;
    k->loop = loop;
    k->must_list = true;
    k->call.on_head = on_head;
    k->call.on_data = on_data;
    k->call.on_end = on_end;
    bt_text_init(&k->error_body);
    bt_timer_init(loop, &k->retry, begin_again);
    bt_timer_init(loop, &k->half_line, on_half_line);
    bt_json_stream_init(&k->stream, BT_JSON_STREAM_ITEMS, OBJECT_MAX);
    k->options = options;
    int rc = bt_kube_access_open(&k->access, options, err, err_size);
    if (rc == 0)
        rc = make_label(k);
    if (rc == 0)
        rc = bt_kube_table_new(&k->table, loop, k->label, k->options->pool, sink, user);
    if (rc == 0)
        rc = bt_https_new(&k->https, loop, err, err_size);
    if (rc < 0) {
        bt_kube_table_free(k->table);
        free_kube(k);
        return rc;
    }
    *kube_p = k;
    return 0;
}

void bt_kube_start(bt_kube_t *k)
{
    begin(k);
}

void bt_kube_again(bt_kube_t *k)
{
    bt_kube_table_again(k->table);
}

void bt_kube_close(bt_kube_t *k)
{
    if (k == NULL)
        return;
    bt_https_cancel(&k->call);
    bt_https_close(k->https);
    bt_timer_stop(&k->retry);
    bt_timer_stop(&k->half_line);
    bt_kube_table_free(k->table);
    k->is_closed = true;
    if (k->is_resolving) /* its end comes all the same, as the work's does */
        bt_resolve_cancel(&k->resolve);
    else if (k->is_preparing)
        bt_offload_cancel(&k->work);
    else
        free_kube(k);
}

/* How it works: whatever has come on any of an engine's connections is read when a spec looks for a
 * request, and the first that is whole becomes the engine's last request. */
#include "dispatch/attempt_rig.h"
#include "base/pages.h"
#include "transfer/metaserver.h"

struct hub hub;
struct metaserver_answers metaserver;
struct rig rig;
struct engine engines[ENGINES];
const char *const names[ENGINES] = {"p0", "p1", "p2", "d0", "d1", "s0", "s1"};
static struct rig_options options;

/* ---- the hub ---- */

int bt_transfer_room_open(bt_transfer_t *t, const bt_transfer_room_spec_t *spec)
{
    assert_ptr_equal(t, &hub);
    if (hub.rc < 0)
        return hub.rc;
    assert_true(hub.open_count < CALLS_MAX);
    hub.opened[hub.open_count] = *spec;
    snprintf(hub.opened_for[hub.open_count][0], 32, "%s", spec->prefill->name);
    snprintf(hub.opened_for[hub.open_count][1], 32, "%s", spec->decode->name);
    hub.open_count++;
    return 0;
}

int bt_transfer_repair(bt_transfer_t *t, uint64_t room, uint64_t source_room, bt_worker_t *prefill)
{
    assert_ptr_equal(t, &hub);
    if (hub.rc < 0)
        return hub.rc;
    assert_true(hub.repair_count < CALLS_MAX);
    hub.repaired[hub.repair_count].room = room;
    hub.repaired[hub.repair_count].source_room = source_room;
    snprintf(hub.repaired[hub.repair_count++].prefill, 32, "%s", prefill->name);
    return 0;
}

void bt_transfer_room_close(bt_transfer_t *t, uint64_t room, bool is_abort, const char *reason)
{
    assert_ptr_equal(t, &hub);
    assert_true(hub.close_count < CALLS_MAX);
    hub.closed[hub.close_count].room = room;
    hub.closed[hub.close_count].is_abort = is_abort;
    snprintf(hub.closed[hub.close_count++].reason, 200, "%s", reason);
}

void tell(unsigned i, enum bt_transfer_what what, uint64_t source_room, int fault)
{
    const bt_transfer_room_spec_t *spec = &hub.opened[i];
    bt_transfer_event_t e = {
        .what = what,
        .room = spec->room,
        .source_room = source_room != 0 ? source_room : spec->room,
        .rc = BT_E_KV_TRANSFER,
        .is_prefill_fault = fault == PREFILL_FAULT,
        .is_decode_fault = fault == DECODE_FAULT,
        .bytes = 65536,
        .wait_us = 30000,
        .transfer_us = 1200,
        .reason = "as the spec says",
    };

    spec->on_event(spec->user, &e);
}

/* ---- the metaserver ---- */

void bt_metaserver_answer(bt_metaserver_call_t *call, unsigned status, const char *words)
{
    assert_true(metaserver.count < CALLS_MAX);
    metaserver.status[metaserver.count++] = status;
    snprintf(metaserver.words, sizeof(metaserver.words), "%s", words != NULL ? words : "");
    free(call);
}

void call_metaserver(uint64_t room, const char *body)
{
    bt_metaserver_call_t *call = calloc(1, sizeof(*call));

    assert_non_null(call);
    *call = (bt_metaserver_call_t){.room = room, .body = bt_str(body)};
    bt_dispatch_shared_metaserver_call(&rig.shared, call);
    turn(&rig.loop, 2);
}

uint64_t called_room(int which)
{
    const char *at = strstr(body_of(which), "/v1/metaserver?attempt=");

    assert_non_null(at);
    return strtoull(at + strlen("/v1/metaserver?attempt="), NULL, 10);
}

/* ---- engines ---- */

static void let_in(struct engine *e)
{
    int fd = e->listener >= 0 ? accept4(e->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

    for (int i = 0; fd >= 0 && i < CONNS_MAX; i++)
        if (e->conns[i] < 0) {
            e->conns[i] = fd;
            e->parts[i].len = 0;
            return;
        }
    assert_true(fd < 0);
}

static bool is_whole(const char *text)
{
    const char *end = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");

    if (end == NULL)
        return false;
    return length == NULL || length > end ||
           strlen(end + 4) >= strtoul(length + strlen("Content-Length: "), NULL, 10);
}

static bool read_one(struct engine *e, int i)
{
    char *text = e->parts[i].text;
    size_t *len = &e->parts[i].len;
    ssize_t n = e->conns[i] < 0 ? -1 : read(e->conns[i], text + *len, sizeof(e->got) - 1 - *len);

    if (n > 0)
        *len += (size_t) n;
    text[*len] = '\0';
    if (*len == 0 || !is_whole(text))
        return false;
    memcpy(e->got, text, *len + 1);
    *len = 0;
    e->conn = e->conns[i];
    e->requests++;
    return true;
}

bool has_request(int which)
{
    struct engine *e = &engines[which];

    let_in(e);
    for (int i = 0; i < CONNS_MAX; i++)
        if (read_one(e, i))
            return true;
    return false;
}

void take(int which)
{
    STEP_UNTIL(has_request(which), turn_once(&rig.loop));
}

bool has_hung_up(const struct engine *e)
{
    char byte;
    ssize_t n = e->conn >= 0 ? recv(e->conn, &byte, 1, MSG_PEEK) : -1;

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

bool has_caller(const struct engine *e)
{
    struct pollfd one = {.fd = e->listener, .events = POLLIN};

    return poll(&one, 1, 0) == 1;
}

static void forget_conn(struct engine *e, int fd)
{
    for (int i = 0; i < CONNS_MAX; i++)
        if (e->conns[i] == fd)
            e->conns[i] = -1;
    e->conn = -1;
}

void hang_up(struct engine *e)
{
    for (int i = 0; i < CONNS_MAX; i++) {
        if (e->conns[i] >= 0)
            close(e->conns[i]);
        e->conns[i] = -1;
    }
    e->conn = -1;
}

void reset(int which)
{
    int fd = engines[which].conn;

    forget_conn(&engines[which], fd);
    close_with_reset(fd);
}

void refuse(int which)
{
    close(engines[which].listener);
    engines[which].listener = -1;
}

uint64_t room_in(int which)
{
    const char *at = strstr(engines[which].got, "\"baton_room\":");

    assert_non_null(at);
    return strtoull(at + strlen("\"baton_room\":"), NULL, 10);
}

const char *body_of(int which)
{
    const char *end = strstr(engines[which].got, "\r\n\r\n");

    assert_non_null(end);
    return end + 4;
}

bool heard(int which, const char *what)
{
    return strstr(engines[which].got, what) != NULL;
}

static void say(int which, const char *text, size_t n)
{
    assert_int_equal(send(engines[which].conn, text, n, MSG_NOSIGNAL), n);
}

void answer_with(int which, unsigned status, const char *headers, const char *body)
{
    char text[4096];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 %u X\r\nContent-Type: application/json\r\n%sContent-Length: "
                     "%zu\r\n\r\n%s",
                     status, headers, strlen(body), body);

    say(which, text, (size_t) n);
}

void answer(int which, unsigned status, const char *body)
{
    answer_with(which, status, "", body);
}

void stream_head(int which)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";

    say(which, head, sizeof(head) - 1);
}

void event(int which, const char *data)
{
    char text[4096];
    int n = snprintf(text, sizeof(text), "%zx\r\ndata: %s\n\n\r\n", strlen(data) + 8, data);

    say(which, text, (size_t) n);
}

void stream_end(int which)
{
    event(which, "[DONE]");
    say(which, "0\r\n\r\n", 5);
}

/* ---- the client ---- */

static void client_reads(void)
{
    ssize_t n =
        read(rig.client, rig.answer + rig.answer_len, sizeof(rig.answer) - 1 - rig.answer_len);

    if (n > 0)
        rig.answer_len += (size_t) n;
    rig.has_hung_up |= n == 0 || (n < 0 && errno == ECONNRESET);
    rig.answer[rig.answer_len] = '\0';
}

bool has_answer(void)
{
    const char *end, *length;

    client_reads();
    end = strstr(rig.answer, "\r\n\r\n");
    length = strcasestr(rig.answer, "Content-Length: ");
    if (end == NULL)
        return false;
    if (length == NULL || length > end)
        return rig.has_hung_up || strstr(end, "0\r\n\r\n") != NULL;
    return strlen(end + 4) >= strtoul(length + 16, NULL, 10);
}

bool client_got(const char *what)
{
    client_reads();
    return strstr(rig.answer, what) != NULL;
}

void ask_with(const char *path, const char *headers, const char *body)
{
    char text[8192];
    int n = snprintf(text, sizeof(text),
                     "POST %s HTTP/1.1\r\nHost: h\r\nX-Request-Id: req-1\r\n%s"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     path, headers, strlen(body), body);

    rig.answer_len = 0;
    rig.answer[0] = '\0';
    assert_int_equal(write(rig.client, text, (size_t) n), n);
}

void ask_body(const char *body)
{
    ask_with("/v1/completions", "", body);
}

void ask(void)
{
    ask_body(BODY);
}

void client_leaves(void)
{
    close(rig.client);
    rig.client = -1;
}

void answered(const char *what)
{
    TURN_UNTIL(&rig.loop, has_answer());
    if (strstr(rig.answer, what) == NULL)
        fail_msg("no \"%s\" in %s", what, rig.answer);
}

void begin(int prefill, int decode)
{
    ask();
    take(prefill);
    take(decode);
    assert_int_equal(hub.open_count, 1);
    assert_string_equal(hub.opened_for[0][0], names[prefill]);
    assert_string_equal(hub.opened_for[0][1], names[decode]);
    assert_int_equal(room_in(prefill), hub.opened[0].room);
    assert_int_equal(room_in(decode), hub.opened[0].room);
}

void recorded(const char *what)
{
    bt_text_t line;

    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    bt_text_init(&line);
    assert_true(bt_record_ring_find(rig.d->records, BT_STR("req-1"), &line));
    if (strstr(line.data, what) == NULL)
        fail_msg("no %s in %s", what, line.data);
    bt_text_fini(&line);
}

bt_attempt_t *live_attempt(void)
{
    assert_false(bt_list_empty(&rig.d->live));
    return bt_container_of(rig.d->live.next, bt_request_t, link)->tasks[0].attempt;
}

static enum bt_role role_of(int which)
{
    return which < D0 ? BT_ROLE_PREFILL : which < S0 ? BT_ROLE_DECODE : BT_ROLE_HYBRID;
}

static enum bt_phase phase_of(int which)
{
    return which < D0 ? BT_PHASE_PREFILL : BT_PHASE_DECODE;
}

uint64_t legs_of(int which, enum bt_blame how)
{
    const enum bt_leg_role role = which < D0   ? BT_LEG_PREFILL
                                  : which < S0 ? BT_LEG_DECODE
                                               : BT_LEG_SINGLE;

    return atomic_load(&engines[which].worker->legs_total[role][how]);
}

uint64_t blamed(int which)
{
    return legs_of(which, BT_BLAME_GUILTY);
}

int64_t held(int which, enum bt_phase phase)
{
    const int64_t put = phase == phase_of(which) ? 1000 * which : 0;

    return atomic_load(&bt_worker_total(engines[which].worker, phase)->tokens) - put;
}

/* ---- fixture ---- */

static bool is_there(int which)
{
    if (which == S0)
        return options.has_single || options.is_single_only;
    return which == S1 ? options.has_other_pool : !options.is_single_only;
}

static void add_engine(int which, const char *url)
{
    const char *connector = options.connector != NULL ? options.connector : "BatonConnector";
    bt_worker_spec_t spec;
    char err[256] = "";

    bt_worker_spec_init(&spec);
    spec.role = role_of(which);
    spec.url = bt_str_dup(bt_str(url));
    spec.name = bt_str_dup(bt_str(names[which]));
    spec.connector = bt_str_dup(bt_str(connector));
    spec.lease_ms = options.lease_ms;
    spec.dp_size = which < D0 ? (int) options.dp_size : 0;
    if (strcmp(connector, "sglang") == 0)
        spec.bootstrap_port = 8998;
    if (bt_registry_add(rig.registry, which == S1 ? "other" : "default", &spec, err, sizeof(err)) <
        0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
}

static void open_engine(int which)
{
    struct engine *e = &engines[which];
    struct sockaddr_storage addr;
    char url[64];

    e->listener = raw_listen(AF_INET, &addr);
    assert_true(e->listener >= 0);
    fcntl(e->listener, F_SETFL, O_NONBLOCK);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u",
             ntohs(((struct sockaddr_in *) &addr)->sin_port));
    add_engine(which, url);
}

/* The least loaded are p0 and d0, then p1 and d1. */
static void make_usable(int which)
{
    bt_worker_t *w = bt_workers_find(bt_registry_current(rig.registry), bt_str(names[which]));

    engines[which].worker = w;
    atomic_store(&w->has_agents, true);
    bt_worker_set_health(w, BT_HEALTH_UP, "spec");
    atomic_store(&bt_worker_total(w, phase_of(which))->tokens, 1000 * which);
}

static void open_engines(void)
{
    for (int i = 0; i < ENGINES; i++) {
        engines[i].listener = engines[i].conn = -1;
        engines[i].worker = NULL;
        engines[i].requests = 0;
        engines[i].got[0] = '\0';
        for (int k = 0; k < CONNS_MAX; k++)
            engines[i].conns[k] = -1;
        if (is_there(i))
            open_engine(i);
    }
    for (int i = 0; i < ENGINES; i++)
        if (is_there(i))
            make_usable(i);
}

static void open_dispatcher(void)
{
    char err[256] = "";

    options.config.debug_headers = true;
    options.config.upstream.idle_max = options.keeps_idle ? 8 : 0;
    assert_int_equal(bt_dispatch_shared_init(&rig.shared, &options.config), 0);
    rig.shared.transfer = (struct bt_transfer *) &hub;
    atomic_store(&bt_worker_has_metaserver, true);
    rig.shared.metaserver_url = "http://gateway:12000/v1/metaserver";
    if (bt_dispatcher_new(&rig.d, &rig.loop, &rig.shared, err, sizeof(err)) < 0 ||
        bt_dispatcher_set_workers(rig.d, bt_registry_current(rig.registry), err, sizeof(err)) < 0)
        fail_msg("%s", err);
    rig.shared.dispatchers = &rig.d;
    rig.shared.dispatcher_count = 1;
}

static void open_server(void)
{
    static bt_server_config_t config;

    bt_server_config_defaults(&config);
    assert_int_equal(
        bt_server_new(&rig.server, &rig.loop, &bt_dispatcher_server_ops, &config, rig.d), 0);
}

void client_comes(void)
{
    int ours, small = 4096;

    tcp_pair(&ours, &rig.client);
    fcntl(rig.client, F_SETFL, O_NONBLOCK);
    fcntl(ours, F_SETFL, O_NONBLOCK);
    setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    atomic_fetch_add(&rig.loop.connections, 1);
    bt_server_accept(rig.server, ours, NULL);
}

static void set_deadlines(bt_pool_deadlines_t *to)
{
    const bt_pool_deadlines_t *from = &options.deadlines;

#define TAKE(field) to->field = from->field != 0 ? from->field : 60000
    TAKE(connect_ms);
    TAKE(prefill_reply_ms);
    TAKE(first_event_ms);
    TAKE(stall_ms);
    TAKE(total_ms);
    TAKE(answer_ms);
    TAKE(callback_ms);
#undef TAKE
    to->tokenize_ms = from->tokenize_ms;
    to->room_start_ms = 20000;
    to->room_stall_ms = 3000;
    to->room_repair_ms = 700;
}

static void open_pools(void)
{
    const bt_worker_spec_t *workers[2] = {NULL, NULL};
    unsigned counts[2] = {0, 0};
    bt_pool_spec_t pools[2];
    char err[256] = "";

    for (int i = 0; i < 2; i++) {
        bt_pool_spec_init(&pools[i]);
        pools[i].name = bt_str_dup(bt_str(i == 0 ? "default" : "other"));
        set_deadlines(&pools[i].deadlines);
        if (options.max_attempts != 0)
            pools[i].max_attempts = options.max_attempts;
        if (options.max_fanout != 0)
            pools[i].max_fanout = options.max_fanout;
        pools[i].retry_budget_percent = options.retry_budget_percent;
        pools[i].engine_request_limit = options.engine_request_limit;
        pools[i].refuse_recompute = options.refuse_recompute;
    }
    pools[1].models[0] = bt_str_dup(BT_STR("other-model"));
    pools[1].model_count = 1;
    assert_int_equal(bt_registry_new(&rig.registry, NULL, NULL, NULL), 0);
    assert_int_equal(bt_registry_apply(rig.registry, pools, options.has_other_pool ? 2 : 1, workers,
                                       counts, err, sizeof(err)),
                     0);
    bt_pool_spec_fini(&pools[0]);
    bt_pool_spec_fini(&pools[1]);
}

static void put_policy(bt_policy_bundle_t *bundle, unsigned pool, enum bt_policy_slot slot,
                       const char *text)
{
    bt_policy_source_t *source = NULL;

    if (text == NULL)
        return;
    assert_int_equal(
        bt_policy_source_new(&source, BT_SOURCE_ADMIN, "mine", "mine.lua", bt_str(text)), 0);
    assert_int_equal(bt_bundle_put(bundle, pool, slot, source, NULL, bundle->number), 0);
    bt_policy_source_unref(source);
}

void rig_serve(const char *policy, const char *rules)
{
    const bt_generation_t *before = rig.d->generations.serving;
    const uint64_t number = before != NULL ? before->bundle->number + 1 : 1;
    bt_policy_bundle_t *bundle;
    char err[512] = "";
    int rc;

    assert_int_equal(bt_bundle_new(&bundle, number, 2), 0);
    assert_int_equal(bt_bundle_name(bundle, 0, "default"), 0);
    assert_int_equal(bt_bundle_name(bundle, 1, "other"), 0);
    bundle->first_variant = 2;
    put_policy(bundle, 0, BT_SLOT_BOTH, policy);
    put_policy(bundle, 0, BT_SLOT_PREFILL, options.prefill_policy);
    put_policy(bundle, 0, BT_SLOT_DECODE, options.decode_policy);
    put_policy(bundle, 1, BT_SLOT_BOTH, options.other_policy);
    if (rules != NULL &&
        bt_rules_parse(&bundle->rules, "rules.lua", bt_str(rules), err, sizeof(err)) < 0)
        fail_msg("%s", err);
    assert_int_equal(bt_generations_begin(&rig.d->generations, bundle), 0);
    bt_bundle_unref(bundle);
    while ((rc = bt_generations_build(&rig.d->generations, err, sizeof(err))) > 0)
        bt_generations_wait(&rig.d->generations);
    if (rc < 0)
        fail_msg("%s", err);
    bt_dispatcher_commit(rig.d);
}

void rig_start(const struct rig_options *how)
{
    bt_log_set(BT_LOG_ERROR, false, 2);
    options = *how;
    hub = (struct hub){.rc = 0};
    metaserver = (struct metaserver_answers){.count = 0};
    memset(&rig, 0, sizeof(rig));
    rig.client = -1;
    assert_int_equal(bt_loop_init(&rig.loop, 0), 0);
    open_pools();
    open_engines();
    open_dispatcher();
    if (options.policy != NULL || options.rules != NULL)
        rig_serve(options.policy, options.rules);
    open_server();
    client_comes();
}

int setup(void **state)
{
    rig_start(&(struct rig_options){0});
    return 0;
}

static void on_closed(void *arg)
{
    *(bool *) arg = true;
}

static void nothing_is_held(void)
{
    assert_int_equal(rig.d->rooms.live, 0);
    assert_int_equal(hub.close_count, hub.open_count); /* each once */
    for (unsigned i = 0; i < hub.close_count; i++)
        assert_int_equal(hub.closed[i].room, hub.opened[i].room);
    for (int i = 0; i < ENGINES; i++)
        assert_true(!is_there(i) || atomic_load(&engines[i].worker->limited_legs) == 0);
    for (int i = 0; i < ENGINES; i++)
        for (unsigned rank = 0; is_there(i) && engines[i].worker->rank_legs != NULL &&
                                rank < engines[i].worker->dp_size;
             rank++)
            assert_int_equal(engines[i].worker->rank_legs[rank], 0);
    for (int i = 0; i < ENGINES; i++)
        for (int phase = 0; is_there(i) && phase < BT_PHASE_COUNT; phase++) {
            assert_int_equal(held(i, (enum bt_phase) phase), 0);
            assert_int_equal(atomic_load(&bt_worker_total(engines[i].worker, phase)->requests), 0);
        }
}

int teardown(void **state)
{
    if (rig.client >= 0)
        close(rig.client);
    bt_server_close(rig.server, on_closed, &rig.is_closed);
    TURN_UNTIL(&rig.loop, rig.is_closed);
    bt_dispatcher_cancel_all(rig.d);
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    nothing_is_held();
    bt_dispatcher_free(rig.d);
    bt_dispatch_shared_fini(&rig.shared);
    bt_registry_free(rig.registry);
    for (int i = 0; i < ENGINES; i++) {
        hang_up(&engines[i]);
        if (engines[i].listener >= 0)
            close(engines[i].listener);
    }
    bt_loop_fini(&rig.loop);
    bt_pages_thread_fini();
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    assert_int_equal(bt_soft_count(), 0);
    return 0;
}

/* help.h - a registry with workers, a gate with bare dispatchers, and one question; shared by the specs of core/admin. */
#ifndef SPEC_ADMIN_HELP_H
#define SPEC_ADMIN_HELP_H

#include "cluster/help.h"

#include "admin/routes.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

#define LOOPS_MAX 4

typedef struct rig {
    bt_registry_t *registry;
    bt_dispatch_shared_t shared;
    bt_dispatcher_t *dispatchers[LOOPS_MAX];
    bt_loop_t loops[LOOPS_MAX]; /* only their index, unless a spec starts them */
    bt_admin_config_t config;
    bt_admin_reply_t reply; /* of the last question */
    enum bt_answer_state state;
} rig_t;

/* One pool "default" without workers, and n dispatchers that hold nothing. */
static inline void rig_open(rig_t *rig, unsigned loops)
{
    static const bt_dispatch_config_t none;
    const bt_worker_spec_t *workers[2] = {NULL, NULL};
    unsigned counts[2] = {0, 0};
    bt_pool_spec_t pools[2];
    char err[256] = "";

    memset(rig, 0, sizeof *rig);
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_registry_new(&rig->registry, NULL, NULL, NULL), 0);
    for (unsigned i = 0; i < 2; i++) {
        bt_pool_spec_init(&pools[i]);
        pools[i].name = text(i == 0 ? "default" : "other");
    }
    assert_int_equal(bt_registry_apply(rig->registry, pools, 2, workers, counts, err, sizeof err),
                     0);
    for (unsigned i = 0; i < 2; i++)
        bt_pool_spec_fini(&pools[i]);
    assert_int_equal(bt_dispatch_shared_init(&rig->shared, &none), 0);
    for (unsigned i = 0; i < loops; i++) {
        rig->dispatchers[i] = calloc(1, sizeof(bt_dispatcher_t));
        assert_non_null(rig->dispatchers[i]);
        rig->loops[i].index = i;
        rig->dispatchers[i]->loop = &rig->loops[i];
        rig->dispatchers[i]->shared = &rig->shared;
        bt_list_init(&rig->dispatchers[i]->live);
        bt_list_init(&rig->dispatchers[i]->draining);
        bt_list_init(&rig->dispatchers[i]->walks);
    }
    rig->shared.dispatchers = rig->dispatchers;
    rig->shared.dispatcher_count = loops;
    rig->config =
        (bt_admin_config_t){.registry = rig->registry, .shared = &rig->shared, .version = "1.2.3"};
    bt_reply_init(&rig->reply);
}

static inline void rig_close(rig_t *rig)
{
    bt_reply_fini(&rig->reply);
    for (unsigned i = 0; i < rig->shared.dispatcher_count; i++)
        free(rig->dispatchers[i]);
    bt_dispatch_shared_fini(&rig->shared);
    bt_registry_free(rig->registry);
}

static inline bt_worker_t *rig_add(rig_t *rig, enum bt_role role, const char *name, const char *url,
                                   const char *connector)
{
    bt_worker_spec_t spec;
    char err[256] = "";

    make_spec(&spec, role, url, connector);
    spec.name = text(name);
    if (bt_registry_add(rig->registry, NULL, &spec, err, sizeof err) != 0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
    return bt_workers_find(bt_registry_current(rig->registry), bt_str(name));
}

/* So many workers of the pool "default" instead of all that are there, at once: w0, w1, ... */
static inline void rig_set_many(rig_t *rig, unsigned n)
{
    bt_worker_spec_t *specs = calloc(n, sizeof *specs);
    const bt_worker_spec_t *workers[1] = {specs};
    bt_pool_spec_t pool;
    char err[256] = "", word[48];

    assert_non_null(specs);
    for (unsigned i = 0; i < n; i++) {
        snprintf(word, sizeof word, "http://10.0.%u.%u:8000", i / 250, i % 250 + 1);
        make_spec(&specs[i], i % 2 == 0 ? BT_ROLE_PREFILL : BT_ROLE_DECODE, word, "NixlConnector");
        snprintf(word, sizeof word, "w%u", i);
        specs[i].name = text(word);
    }
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    if (bt_registry_apply(rig->registry, &pool, 1, workers, &n, err, sizeof err) != 0)
        fail_msg("%s", err);
    bt_pool_spec_fini(&pool);
    for (unsigned i = 0; i < n; i++)
        bt_worker_spec_fini(&specs[i]);
    free(specs);
}

/* How often a part stands in a text. strstr measures all that is left of it each time under a sanitizer: a minute for
 * ten thousand rows. */
static inline unsigned count_of(const bt_text_t *text, const char *part)
{
    bt_str_t left = bt_text_str(text);
    unsigned n = 0;

    for (ptrdiff_t at; (at = bt_str_find(left, bt_str(part))) >= 0; n++)
        left = (bt_str_t){left.p + at + 1, left.n - (size_t) at - 1};
    return n;
}

static inline enum bt_method method_of(const char *word)
{
    static const char *const words[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"};

    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i]) == 0)
            return (enum bt_method) i;
    return BT_METHOD_OTHER;
}

/* Status of the answer; the rest is in rig->reply. */
static inline unsigned ask_as(rig_t *rig, bt_admin_request_t request, const char *method,
                              const char *target, const char *body)
{
    const char *mark = strchr(target, '?');

    request.method = method_of(method);
    request.path = mark != NULL ? (bt_str_t){target, (size_t) (mark - target)} : bt_str(target);
    request.query = mark != NULL ? bt_str(mark + 1) : BT_STR("");
    request.body = body != NULL ? bt_str(body) : BT_STR("");
    bt_reply_fini(&rig->reply);
    bt_reply_init(&rig->reply);
    rig->state = bt_routes_answer(&rig->config, &request, &rig->reply);
    while (rig->state == BT_ANSWERED && !bt_reply_go_on(&rig->reply))
        ;
    return rig->reply.status;
}

static inline unsigned ask(rig_t *rig, const char *method, const char *target, const char *body)
{
    return ask_as(rig, (bt_admin_request_t){.authorized = true}, method, target, body);
}

static inline const char *said(const rig_t *rig)
{
    return rig->reply.body.len > 0 ? rig->reply.body.data : "";
}

static inline void assert_said(const rig_t *rig, const char *part)
{
    if (strstr(said(rig), part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, said(rig));
}

static inline void assert_json(bt_str_t body)
{
    size_t at = 0;

    if (bt_json_validate(body, &at) != 0)
        fail_msg("no JSON at %zu: %.*s", at, BT_STR_ARG(body));
}

#endif

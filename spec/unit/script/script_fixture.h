/* script_fixture.h - workers, policies and dialects made from a few words, for the specs of core/script. */
#ifndef BT_SPEC_SCRIPT_FIXTURE_H
#define BT_SPEC_SCRIPT_FIXTURE_H

#include "base/err.h"
#include "script/dialect/dialect.h"
#include "script/policy/policy.h"
#include "script/view/hook.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- workers ---- */

static inline bt_worker_t *make_worker(uint64_t id, enum bt_role role, const char *connector)
{
    bt_worker_spec_t spec;
    bt_worker_t *w = NULL;
    char url[64], name[16], err[256] = "";

    snprintf(url, sizeof(url), "http://10.0.0.%u:8000", (unsigned) id % 250 + 1);
    snprintf(name, sizeof(name), "%c%u", "pdh"[role], (unsigned) id);
    bt_worker_spec_init(&spec);
    spec.url = strdup(url);
    spec.name = strdup(name);
    spec.role = role;
    spec.connector = strdup(connector);
    spec.zone = strdup(id % 2 == 0 ? "east" : "west");
    spec.labels = strdup("gpu=h100, fast");
    bt_breaker_config_t breaker;
    bt_breaker_config_defaults(&breaker);
    assert_int_equal(bt_worker_new(&w, &spec, id, (unsigned) id, &breaker, err, sizeof(err)), 0);
    bt_worker_spec_fini(&spec);
    return w;
}

#define FLEET_MAX 16
struct fleet {
    bt_worker_t *prefill_items[FLEET_MAX], *decode_items[FLEET_MAX], *hybrid_items[FLEET_MAX];
    bt_worker_set_t prefill, decode, hybrid;
    bt_policy_view_t view;
    bt_policy_request_t req;
    uint64_t next_id;
};

static inline bt_worker_t *fleet_add(struct fleet *f, enum bt_role role, const char *connector)
{
    bt_worker_set_t *const sets[] = {&f->prefill, &f->decode, &f->hybrid};
    bt_worker_t *w = make_worker(++f->next_id, role, connector);

    sets[role]->items[sets[role]->count++] = w;
    f->view.key++;
    return w;
}

/* p prefill and d decode workers of NixlConnector, h hybrids. Ids after + 1, + 2, ... in that order. */
static inline void fleet_init_after(struct fleet *f, uint64_t after, unsigned p, unsigned d,
                                    unsigned h)
{
    memset(f, 0, sizeof(*f));
    f->next_id = after;
    f->prefill.items = f->prefill_items;
    f->decode.items = f->decode_items;
    f->hybrid.items = f->hybrid_items;
    f->view = (bt_policy_view_t){.sets = {&f->prefill, &f->decode, &f->hybrid, &f->hybrid},
                                 .key = after * 1000 + 1,
                                 .pool = BT_STR("default")};
    f->req = (bt_policy_request_t){.path = BT_STR("/v1/completions"), .model = BT_STR("m"), .n = 1};
    for (unsigned i = 0; i < p + d + h; i++)
        fleet_add(f,
                  i < p       ? BT_ROLE_PREFILL
                  : i < p + d ? BT_ROLE_DECODE
                              : BT_ROLE_HYBRID,
                  "NixlConnector");
}

static inline void fleet_init(struct fleet *f, unsigned p, unsigned d, unsigned h)
{
    fleet_init_after(f, 0, p, d, h);
}

static inline void fleet_fini(struct fleet *f)
{
    const bt_worker_set_t *const sets[] = {&f->prefill, &f->decode, &f->hybrid};

    for (unsigned s = 0; s < 3; s++)
        for (unsigned i = 0; i < sets[s]->count; i++) {
            assert_int_equal(atomic_load(&sets[s]->items[i]->refs), 1); /* nobody kept one */
            bt_worker_unref(sets[s]->items[i]);
        }
}

/* ---- files ---- */

/* Writes text to a new *.lua file in dir (NULL = a new folder, whose path stays in `folder`). */
struct temp_file {
    char folder[64], path[128];
};

static inline void temp_write(struct temp_file *t, const char *name, const char *text)
{
    FILE *out;

    snprintf(t->folder, sizeof(t->folder), "/tmp/bt_script_XXXXXX");
    assert_non_null(mkdtemp(t->folder));
    snprintf(t->path, sizeof(t->path), "%s/%s", t->folder, name);
    out = fopen(t->path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, strlen(text), out), strlen(text));
    assert_int_equal(fclose(out), 0);
}

static inline void temp_remove(struct temp_file *t)
{
    unlink(t->path);
    rmdir(t->folder);
}

/* ---- policies ---- */

#define POLICY(body)                                                                               \
    "return { api = 2, name = 'spec', version = '1', plan = function(req, view, ctx) " body " end" \
    " }"

static inline bt_policy_t *policy_of(const char *text)
{
    struct temp_file file;
    bt_policy_t *policy = NULL;
    char err[512] = "";

    temp_write(&file, "spec.lua", text);
    if (bt_policy_load(&policy, file.path, NULL, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    temp_remove(&file);
    return policy;
}

/* Set-up of specs that are of anything but budgets: on a machine that takes its core away an honest call looks like a
 * runaway, because a hypervisor's theft counts as the thread's own time. */
static inline int set_wide_budgets(void **state)
{
    (void) state;
    bt_hook_budget_factor = 1000;
    return 0;
}

/* Plans once with the policy text and expects a refusal that holds `word`. */
static inline void assert_plan_fails(struct fleet *f, const char *text, const char *word)
{
    bt_policy_t *policy = policy_of(text);
    bt_choice_t choice;

    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, &choice),
                     BT_E_POLICY);
    if (strstr(bt_policy_error(policy), word) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", bt_policy_error(policy), word);
    bt_policy_free(policy);
}

/* What a plan does wrong, and a word of what it is told. */
struct mistake {
    const char *body, *word;
};

static inline void assert_mistakes(const struct mistake *cases, size_t count)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    for (size_t i = 0; i < count; i++) {
        char text[256];
        snprintf(text, sizeof(text), POLICY("%s"), cases[i].body);
        assert_plan_fails(&f, text, cases[i].word);
    }
    fleet_fini(&f);
}

/* Plans so many times and expects success: what takes long is cut into calls that stay within a hook's time. */
static inline void plan_times(struct fleet *f, unsigned times, const char *text)
{
    bt_policy_t *policy = policy_of(text);
    bt_choice_t choice;

    for (unsigned i = 0; i < times; i++)
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
}

/* Plans once and expects success. `body` usually holds assert()s of its own. A core that was taken
 * away for a moment looks like a runaway, so who ran over his budget is asked anew, twice at most. */
static inline bt_choice_t plan_once(struct fleet *f, const char *text)
{
    bt_choice_t choice;

    for (int tries = 1;; tries++) {
        bt_policy_t *policy = policy_of(text);
        bool is_done = bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, &choice) == 0;

        if (!is_done && (tries == 3 || strstr(bt_policy_error(policy), "over its budget") == NULL))
            fail_msg("%s", bt_policy_error(policy));
        bt_policy_free(policy);
        if (is_done)
            return choice;
    }
}

/* ---- dialects ---- */

struct leg_run {
    bt_dialects_t *dialects;
    const bt_dialect_t *dialect;
    bt_arena_t arena;
    bt_edits_t edits;
    bt_leg_view_t leg;
    bt_str_t reason;
    enum bt_dialect_verdict verdict;
};

static inline void leg_init(struct leg_run *r, const char *dialect, const char *user_dir)
{
    char err[512] = "";

    memset(r, 0, sizeof(*r));
    bt_arena_init(&r->arena);
    if (bt_dialects_new(&r->dialects, user_dir, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    r->dialect = bt_dialects_find(r->dialects, dialect);
    assert_non_null(r->dialect);
    r->leg = (bt_leg_view_t){
        .path = BT_STR("/v1/completions"),
        .request_id = BT_STR("req-1"),
        .body = BT_STR("{\"model\":\"m\",\"prompt\":\"x\"}"),
        .prefill = {.name = BT_STR("p0"),
                    .host = BT_STR("10.0.0.1"),
                    .port = 8000,
                    .dp_size = 1,
                    .tp_size = 1,
                    .pp_size = 1,
                    .dp_rank = -1},
        .decode_peer = {.name = BT_STR("d0"),
                        .host = BT_STR("10.0.0.2"),
                        .port = 8000,
                        .dp_size = 1,
                        .tp_size = 1,
                        .pp_size = 1,
                        .dp_rank = -1},
    };
}

static inline void leg_fini(struct leg_run *r)
{
    bt_dialects_free(r->dialects);
    bt_arena_fini(&r->arena);
}

static inline enum bt_dialect_verdict leg_edit(struct leg_run *r, bool decode)
{
    r->leg.which = decode ? BT_DIALECT_DECODE : BT_DIALECT_PREFILL;
    bt_edits_init(&r->edits, &r->arena);
    r->verdict = bt_dialect_edit(r->dialect, &r->leg, &r->edits, &r->reason);
    return r->verdict;
}

static inline void edit_text(const bt_edit_t *e, char *out, size_t size)
{
    const char *dot = e->object.n > 0 ? "." : "";

    if (e->op == BT_EDIT_SET)
        snprintf(out, size, "%.*s%s%.*s=%.*s", BT_STR_ARG(e->object), dot, BT_STR_ARG(e->key),
                 BT_STR_ARG(e->value));
    else if (e->op == BT_EDIT_REMOVE)
        snprintf(out, size, "-%.*s%s%.*s", BT_STR_ARG(e->object), dot, BT_STR_ARG(e->key));
    else
        snprintf(out, size, "%.*s: %.*s", BT_STR_ARG(e->key), BT_STR_ARG(e->value));
}

/* Exactly these edits, in any order: "key=json", "-key", "Header: value"; NULL ends. */
static inline void assert_edits(const struct leg_run *r, ...)
{
    char all[8192] = "", line[2048];
    unsigned expected = 0;
    va_list args;

    for (unsigned i = 0; i < r->edits.count; i++) {
        edit_text(&r->edits.items[i], line, sizeof(line));
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s\n", line);
    }
    va_start(args, r);
    for (const char *hook_op; (hook_op = va_arg(args, const char *)) != NULL; expected++) {
        snprintf(line, sizeof(line), "%s\n", hook_op);
        const char *hit = strstr(all, line);
        while (hit != NULL && hit != all && hit[-1] != '\n')
            hit = strstr(hit + 1, line);
        if (hit == NULL)
            fail_msg("no edit %sthe edits are:\n%s", line, all);
    }
    va_end(args);
    if (expected != r->edits.count)
        fail_msg("%u edits, expected %u; the edits are:\n%s", r->edits.count, expected, all);
}

/* By what the dialect says; what Lua says of the dialect begins with its name. */
static inline void assert_refused(struct leg_run *r, bool decode, const char *word)
{
    const enum bt_dialect_verdict verdict = leg_edit(r, decode);
    const bool is_broken = bt_str_starts(r->reason, BT_STR("dialect "));

    assert_int_equal(verdict, is_broken ? BT_DIALECT_BROKEN : BT_DIALECT_REFUSED);
    if (bt_str_find(r->reason, bt_str(word)) < 0)
        fail_msg("\"%.*s\" does not hold \"%s\"", BT_STR_ARG(r->reason), word);
}

#endif

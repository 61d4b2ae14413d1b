/* run_rig.h - one policy with hooks that may wait, and somebody to serve them by hand; for the specs of policy_run.c and of what
 * waits. */
#ifndef BT_SPEC_RUN_RIG_H
#define BT_SPEC_RUN_RIG_H

#include "script/native/hook_op_api.h"
#include "script/policy/policy_impl.h"
#include "script/policy/policy_run.h"
#include "script_fixture.h"

#include <uv.h>

#define FILE_WITH(members)                                                                         \
    "local seen = {}\n"                                                                            \
    "return { api = 2, name = 'spec', version = '1', " members                                     \
    ", plan = function(req, view, ctx) return { prefill = 1, decode = 2 } end }"

static const bt_hook_answer_t done __attribute__((unused)) = {.rc = 0};

static const char *const hosts[] = {"tiers.internal:8080", "127.0.0.1:9", "[::1]:80", NULL};

struct rig {
    struct fleet f;
    bt_policy_t *policy;
    bt_policy_vars_t vars;
    bt_policy_run_t run;
};

static inline void rig_init(struct rig *r, const char *text)
{
    *r = (struct rig){.policy = NULL};
    fleet_init(&r->f, 1, 1, 0);
    r->policy = policy_of(text);
    r->f.req.vars = &r->vars;
}

static inline void rig_fini(struct rig *r)
{
    bt_policy_run_drop(&r->run);
    bt_policy_vars_drop(&r->vars);
    bt_policy_free(r->policy);
    fleet_fini(&r->f);
}

static inline void expect(const struct rig *r, int rc, int expected)
{
    if (rc != expected)
        fail_msg("%d instead of %d: %s", rc, expected, bt_policy_error(r->policy));
}

static inline void expect_error(const struct rig *r, int rc, const char *word)
{
    expect(r, rc, BT_E_POLICY);
    if (strstr(bt_policy_error(r->policy), word) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", bt_policy_error(r->policy), word);
}

static inline void plan_ok(struct rig *r)
{
    bt_choice_t choice;

    expect(r, bt_policy_plan(r->policy, BT_POLICY_BOTH, &r->f.req, &r->f.view, &choice), 0);
    assert_ptr_equal(choice.first.decode, r->f.decode.items[0]);
}

/* ---- start ---- */

struct server {
    unsigned waits, until; /* its time is over after so many */
    int rc;
};

static inline int serve(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p)
{
    struct server *s = user;

    if (++s->waits > s->until)
        return BT_E_TOTAL_TIMEOUT;
    *answer_p = (bt_hook_answer_t){.status = hook_op->kind == BT_HOOK_OP_HTTP ? 200 : 0,
                                   .body = BT_STR("[1,2]")};
    return s->rc;
}

static inline int make(const char *text, struct server *s, bt_policy_t **policy_p, char *err,
                       size_t err_size)
{
    const bt_policy_spec_t spec = {.path = "spec.lua",
                                   .code = bt_str(text),
                                   .serve = s != NULL ? serve : NULL,
                                   .serve_user = s};

    return bt_policy_make(policy_p, &spec, err, err_size);
}

static inline int set_hosts(void **state)
{
    bt_policy_allow_hosts(hosts);
    return 0;
}

#endif

/* Rankings of whole fleets beside a plain look at every worker: thousands of fleets, as ledgers of this gateway and reports of
 * others move. The plain look knows only what this file has put on the workers. */
#include "base/rand.h"
#include "cluster/ledger.h"
#include "script_fixture.h"

#define WORKERS 300
#define STATES 4000

struct load {
    bt_ledger_entry_t entries[BT_PHASE_COUNT];
    int64_t tokens[BT_PHASE_COUNT], others_tokens[BT_PHASE_COUNT], others_requests[BT_PHASE_COUNT];
};

struct rankings {
    bt_worker_t *workers[WORKERS], *decode[1];
    bt_worker_set_t prefill_set, decode_set;
    struct load loads[WORKERS];
    bt_policy_view_t view;
    bt_policy_request_t req;
};

static void open_rankings(struct rankings *r)
{
    memset(r, 0, sizeof(*r));
    for (unsigned i = 0; i < WORKERS; i++)
        r->workers[i] = make_worker(i + 1, BT_ROLE_PREFILL, "NixlConnector");
    r->decode[0] = make_worker(WORKERS + 1, BT_ROLE_DECODE, "NixlConnector");
    r->decode_set = (bt_worker_set_t){r->decode, 1};
    r->view = (bt_policy_view_t){.sets = {&r->prefill_set, &r->decode_set}, .key = 1};
    r->req = (bt_policy_request_t){.path = BT_STR("/v1/completions"), .n = 1};
}

static void close_rankings(struct rankings *r)
{
    atomic_store(&bt_worker_has_others, false);
    for (unsigned i = 0; i < WORKERS; i++) {
        for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++)
            bt_ledger_release(&r->loads[i].entries[phase]);
        bt_worker_unref(r->workers[i]);
    }
    bt_worker_unref(r->decode[0]);
}

/* ---- states ---- */

static void load_one(bt_worker_t *w, struct load *load, unsigned phase, uint64_t range)
{
    bt_ledger_release(&load->entries[phase]);
    load->tokens[phase] = (int64_t) bt_rand_below(range);
    if (bt_rand_below(4) != 0)
        bt_ledger_hold(&load->entries[phase], w, (enum bt_phase) phase, load->tokens[phase]);
    else
        load->tokens[phase] = 0;
    if (!bt_worker_is_shared())
        return;
    load->others_tokens[phase] = (int64_t) bt_rand_below(range);
    load->others_requests[phase] = (int64_t) bt_rand_below(3);
    bt_worker_set_others(w, (enum bt_phase) phase, load->others_tokens[phase],
                         load->others_requests[phase]);
}

/* Some of the workers in a row, most of them with another load than before: of few values, of many, or none at all. */
static void next_state(struct rankings *r)
{
    static const uint64_t ranges[] = {1, 2, 5, 100000};
    const uint64_t range = ranges[bt_rand_below(4)];
    const unsigned count = 1 + (unsigned) bt_rand_below(bt_rand_below(2) != 0 ? 20 : WORKERS);
    const unsigned first = (unsigned) bt_rand_below(WORKERS - count + 1);

    r->prefill_set = (bt_worker_set_t){r->workers + first, count};
    r->view.key++;
    for (unsigned i = first; i < first + count; i++)
        for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++)
            if (bt_rand_below(3) != 0)
                load_one(r->workers[i], &r->loads[i], phase, range);
}

/* ---- the plain look ---- */

static double tokens(const struct load *l, unsigned phase)
{
    return (double) (l->tokens[phase] + l->others_tokens[phase]);
}

static double requests(const struct load *l)
{
    double sum = 0;

    for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++)
        sum += (l->entries[phase].worker != NULL) + (double) l->others_requests[phase];
    return sum;
}

/* A way to rank, in Lua and here: the first score decides, then the second; others' part of the first. */
struct way {
    const char *lua;
    double (*first)(const struct load *), (*second)(const struct load *),
        (*others)(const struct load *);
};

static double prefill_first(const struct load *l)
{
    return tokens(l, BT_PHASE_PREFILL);
}

static double prefill_others(const struct load *l)
{
    return (double) l->others_tokens[BT_PHASE_PREFILL];
}

static double decode_most(const struct load *l)
{
    return -tokens(l, BT_PHASE_DECODE);
}

static double prefill_most(const struct load *l)
{
    return -tokens(l, BT_PHASE_PREFILL);
}

static double decode_others(const struct load *l)
{
    return (double) l->others_tokens[BT_PHASE_DECODE];
}

static double sum(const struct load *l)
{
    return tokens(l, 0) + tokens(l, 1) + 64 * requests(l);
}

static double sum_others(const struct load *l)
{
    return prefill_others(l) + decode_others(l) +
           64 * (double) (l->others_requests[0] + l->others_requests[1]);
}

static double requests_others(const struct load *l)
{
    return (double) (l->others_requests[0] + l->others_requests[1]);
}

static double both(const struct load *l)
{
    return tokens(l, 0) + tokens(l, 1);
}

static double none(const struct load *l)
{
    (void) l;
    return 0;
}

/* Who may be chosen: marks them, and says how many. */
static unsigned mark_best(const struct rankings *r, const struct way *way, bool *is_best)
{
    const unsigned count = r->prefill_set.count,
                   from = (unsigned) (r->prefill_set.items - r->workers);
    const struct load *loads = r->loads + from;
    double slack = 0, first = 1e300, second = 1e300;
    unsigned best = 0;

    for (unsigned i = 0; i < count; i++)
        first = way->first(&loads[i]) < first ? way->first(&loads[i]) : first;
    for (unsigned i = 0; bt_worker_is_shared() && i < count; i++)
        slack += way->others(&loads[i]);
    slack = slack / count / BT_WORKER_NEAR;
    for (unsigned i = 0; i < count; i++)
        if (way->first(&loads[i]) == first && way->second(&loads[i]) < second)
            second = way->second(&loads[i]);
    for (unsigned i = 0; i < count; i++) {
        is_best[i] = slack > 0 ? way->first(&loads[i]) <= first + slack
                               : way->first(&loads[i]) == first && way->second(&loads[i]) == second;
        best += is_best[i];
    }
    return best;
}

/* ---- both ---- */

static unsigned choose(struct rankings *r, bt_policy_t *policy)
{
    bt_choice_t choice;
    int rc = bt_policy_plan(policy, BT_POLICY_BOTH, &r->req, &r->view, &choice);

    for (int tries = 0; rc != 0 && tries < 3; tries++) /* a core that was taken away */
        rc = bt_policy_plan(policy, BT_POLICY_BOTH, &r->req, &r->view, &choice);
    if (rc != 0)
        fail_msg("%s", bt_policy_error(policy));
    return (unsigned) (choice.first.prefill->id - r->prefill_set.items[0]->id);
}

/* Every one of the best has his turn, and nobody twice as often as he should. */
static void check_lots(struct rankings *r, bt_policy_t *policy, const bool *is_best, unsigned best)
{
    unsigned seen[WORKERS] = {0};

    for (unsigned i = 0; i < 200 * best; i++)
        seen[choose(r, policy)]++;
    for (unsigned i = 0; i < r->prefill_set.count; i++)
        if (is_best[i] ? seen[i] < 100 || seen[i] > 300 : seen[i] != 0)
            fail_msg("%u of %u chosen %u times, where %u share %u", i, r->prefill_set.count,
                     seen[i], best, 200 * best);
}

static void check_way(const struct way *way, const char *list, bool is_shared)
{
    static struct rankings r;
    char text[512], ranking[160];
    bool is_best[WORKERS];
    bt_policy_t *policy;

    snprintf(ranking, sizeof(ranking), way->lua, "list");
    snprintf(text, sizeof(text),
             POLICY("local list = view.prefill %s "
                    "return { prefill = %s, decode = view.decode[1] }"),
             list, ranking);
    policy = policy_of(text);
    open_rankings(&r);
    atomic_store(&bt_worker_has_others, is_shared);
    for (unsigned i = 0; i < STATES; i++) {
        unsigned best, at;

        next_state(&r);
        best = mark_best(&r, way, is_best);
        at = choose(&r, policy);
        if (!is_best[at])
            fail_msg("state %u: %u of %u is not one of the %u best", i, at, r.prefill_set.count,
                     best);
        if (i % 100 == 0 && best <= 20)
            check_lots(&r, policy, is_best, best);
    }
    bt_policy_free(policy);
    close_rankings(&r);
}

static const struct way ways[] = {
    {"baton.argmin(%s, 'prefill_tokens', 'requests')", prefill_first, requests, prefill_others},
    {"baton.argmin(%s, 'requests', 'tokens')", requests, both, requests_others},
    {"baton.argmax(%s, 'decode_tokens', 'prefill_tokens')", decode_most, prefill_most,
     decode_others},
    {"baton.argmin_sum(%s, 'tokens', 1, 'requests', 64)", sum, none, sum_others},
};

static void alone(void **state)
{
    bt_rand_seed(14);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        check_way(&ways[i], "", false);
}

static void beside_other_gateways(void **state)
{
    bt_rand_seed(15);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        check_way(&ways[i], "", true);
}

/* A list that C does not know. */
static void in_a_list_of_the_policys_own(void **state)
{
    bt_rand_seed(16);
    check_way(&ways[0], "local own = {} for i = 1, #list do own[i] = list[i] end list = own",
              false);
    check_way(&ways[3], "local own = {} for i = 1, #list do own[i] = list[i] end list = own", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(beside_other_gateways),
        cmocka_unit_test(in_a_list_of_the_policys_own),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}

#include "base/err.h"
#include "base/rand.h"
#include "generation/rules.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/baton-rules-XXXXXX", path[64], err[512];

/* ---- files ---- */

static int load_text(bt_rules_t **rules_p, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
    return bt_rules_load(rules_p, path, err, sizeof err);
}

/* list: what stands between the braces of rules = { ... }. */
static bt_rules_t *rules_of(const char *list)
{
    bt_rules_t *rules = NULL;
    char text[4096];

    snprintf(text, sizeof text, "return { api = 1, rules = { %s } }", list);
    if (load_text(&rules, text) < 0)
        fail_msg("%s", err);
    return rules;
}

static int setup_group(void **state)
{
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/rules.lua", folder);
    return 0;
}

static int teardown_group(void **state)
{
    unlink(path);
    return rmdir(folder);
}

/* ---- requests ---- */

static bt_header_t header_list[2];
static bt_head_t head;

static bt_policy_request_t request(void)
{
    head = (bt_head_t){.headers = header_list};
    return (bt_policy_request_t){.path = BT_STR("/v1/chat/completions"),
                                 .model = BT_STR("llama-3-8b"),
                                 .head = &head,
                                 .n = 1,
                                 .prompt_tokens = 100};
}

static void add_header(const char *name, const char *value)
{
    header_list[head.header_count++] = (bt_header_t){bt_str(name), bt_str(value)};
}

/* Name of the pool that the rules choose, or NULL. */
static const char *pool_of(const bt_rules_t *rules, const bt_policy_request_t *req)
{
    bt_rule_match_t match;

    bt_rules_match(rules, req, &match);
    return match.target != NULL ? match.target->pool : NULL;
}

static void assert_fits(const char *match, const bt_policy_request_t *req, bool expected)
{
    char rule[512];
    bt_rules_t *rules;

    snprintf(rule, sizeof rule, "{ name = 'it', match = { %s }, pool = 'p' }", match);
    rules = rules_of(rule);
    if ((pool_of(rules, req) != NULL) != expected)
        fail_msg("{ %s } %s", match, expected ? "does not fit" : "fits");
    bt_rules_unref(rules);
}

/* ---- matching ---- */

static void test_texts(void **state)
{
    bt_policy_request_t req = request();

    assert_fits("", &req, true);
    assert_fits("path = '/v1/chat/completions'", &req, true);
    assert_fits("path = '/v1/chat/'", &req, false);
    assert_fits("path = '/v1/chat/*'", &req, true);
    assert_fits("path = '/v1/chat/completions*'", &req, true); /* the rest may be empty */
    assert_fits("path = '/v1/Chat/*'", &req, false);
    assert_fits("path = { '/tokenize', '/v1/*' }", &req, true);
    assert_fits("path = { '/tokenize', '/v2/*' }", &req, false);
    assert_fits("model = 'llama-*'", &req, true);
    assert_fits("model = 'llama-3'", &req, false);
    assert_fits("model = '*'", &req, true);
    assert_fits("tenant = '*'", &req, true); /* also who sent none */
    assert_fits("tenant = 'acme'", &req, false);
    req.tenant = BT_STR("acme");
    assert_fits("tenant = 'acme'", &req, true);
    assert_fits("tenant = { 'acme', 'globex' }, model = 'llama-*'", &req, true);
    assert_fits("tenant = { 'acme', 'globex' }, model = 'mistral'", &req, false);
}

static void test_flags_and_numbers(void **state)
{
    bt_policy_request_t req = request();

    assert_fits("stream = true", &req, false);
    assert_fits("stream = false", &req, true);
    req.stream = true;
    assert_fits("stream = true", &req, true);
    assert_fits("stream = false", &req, false);
    assert_fits("session = true", &req, false);
    assert_fits("session = false", &req, true);
    req.session = BT_STR("s1");
    assert_fits("session = true", &req, true);
    assert_fits("session = false", &req, false);
    assert_fits("prompt_tokens = { min = 100 }", &req, true);
    assert_fits("prompt_tokens = { min = 101 }", &req, false);
    assert_fits("prompt_tokens = { max = 100 }", &req, true);
    assert_fits("prompt_tokens = { max = 99 }", &req, false);
    assert_fits("prompt_tokens = { min = 50, max = 150 }", &req, true);
    assert_fits("n = { max = 1 }", &req, true);
    assert_fits("n = { min = 2 }", &req, false);
}

static void test_headers(void **state)
{
    bt_policy_request_t req = request();

    add_header("X-Tier", "gold");
    assert_fits("headers = {}", &req, true);
    assert_fits("headers = { ['x-tier'] = 'gold' }", &req, true);
    assert_fits("headers = { ['X-TIER'] = 'gold' }", &req, true);
    assert_fits("headers = { ['x-tier'] = 'Gold' }", &req, false);
    assert_fits("headers = { ['x-tier'] = { 'silver', 'go*' } }", &req, true);
    assert_fits("headers = { ['x-tier'] = true }", &req, true);
    assert_fits("headers = { ['x-tier'] = false }", &req, false);
    assert_fits("headers = { ['x-user'] = true }", &req, false);
    assert_fits("headers = { ['x-user'] = false }", &req, true);
    assert_fits("headers = { ['x-user'] = '*' }", &req, false);
    assert_fits("headers = { ['x-tier'] = 'gold', ['x-user'] = true }", &req, false);
    add_header("accept", "*/*;q=1");
    assert_fits("headers = { accept = '*/*' }", &req, true); /* a prefix: the last * is special */
    assert_fits("headers = { accept = '*/x' }", &req, false);
    req.head = NULL;
    assert_fits("headers = { ['x-tier'] = true }", &req, false);
}

static void test_the_first_that_fits_decides(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'one', match = { model = 'other' }, pool = 'a' },"
                                 "{ name = 'two', match = { model = 'llama-*' }, pool = 'b' },"
                                 "{ name = 'three', pool = 'c' }");
    bt_policy_request_t req = request();
    bt_rule_match_t match;

    bt_rules_match(rules, &req, &match);
    assert_string_equal(match.rule, "two");
    assert_string_equal(match.target->pool, "b");
    assert_null(match.target->policy);
    assert_int_equal(match.target->variant, -1);
    assert_null(match.shadow_rule);
    req.model = BT_STR("x");
    assert_string_equal(pool_of(rules, &req), "c");
    bt_rules_match(NULL, &req, &match);
    assert_null(match.rule);
    assert_null(match.target);
    bt_rules_unref(rules);
}

static void test_a_shadow_goes_on(void **state)
{
    bt_rules_t *rules =
        rules_of("{ name = 'try', shadow = { policy = 'cand', sample = 0.25 } },"
                 "{ name = 'late', match = { stream = true }, shadow = { policy = 'never' } },"
                 "{ name = 'go', policy = 'mine', params = { a = 1 }, shadow = { policy = 'x' } }");
    bt_policy_request_t req = request();
    bt_rule_match_t match;
    const char *name;
    bool is_shadow;

    req.stream = true;
    bt_rules_match(rules, &req, &match);
    assert_string_equal(match.shadow_rule, "try"); /* the first one */
    assert_string_equal(match.shadow_target->policy, "cand");
    assert_true(match.shadow_sample == 0.25);
    assert_string_equal(match.rule, "go");
    assert_string_equal(match.target->policy, "mine");
    const bt_rule_target_t *t =
        bt_rules_variant(rules, (unsigned) match.shadow_target->variant, &name, &is_shadow);
    assert_ptr_equal(t, match.shadow_target);
    assert_string_equal(name, "rules:try/shadow");
    assert_true(is_shadow);
    t = bt_rules_variant(rules, (unsigned) match.target->variant, &name, &is_shadow);
    assert_ptr_equal(t, match.target);
    assert_string_equal(name, "rules:go");
    assert_false(is_shadow);
    assert_null(bt_rules_variant(rules, 4, &name, &is_shadow));
    assert_null(bt_rules_variant(NULL, 0, &name, &is_shadow));
    bt_rules_unref(rules);
}

/* ---- splits ---- */

#define SPLIT(more)                                                                                \
    "split = { { weight = 90, pool = 'a' }, { weight = 0, pool = 'never' }, { weight = 10, "       \
    "pool = 'b', policy = 'cand' } }" more

/* How many of n requests with keys k0, k1, ... go to pool b. */
static unsigned count_b(const bt_rules_t *rules, unsigned n, bool with_session)
{
    bt_policy_request_t req = request();
    unsigned count = 0;

    for (unsigned i = 0; i < n; i++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", i);
        if (with_session)
            req.session = bt_str(key);
        const char *pool = pool_of(rules, &req);
        assert_string_not_equal(pool, "never");
        count += strcmp(pool, "b") == 0;
    }
    return count;
}

/* 10,000 throws at 0.1: the deviation is 30, and 6 of them leave one wrong run in 10^9. */
static void test_chance_keeps_the_weights(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'canary', " SPLIT("") " }");
    bt_rule_match_t match;
    bt_policy_request_t req = request();
    const char *name;
    bool is_shadow;
    unsigned b;

    bt_rand_seed(7);
    b = count_b(rules, 10000, true); /* not sticky: the session says nothing */
    assert_in_range(b, 820, 1180);
    do
        bt_rules_match(rules, &req, &match);
    while (strcmp(match.target->pool, "b") != 0);
    bt_rules_variant(rules, (unsigned) match.target->variant, &name, &is_shadow);
    assert_string_equal(name, "rules:canary/3");
    bt_rules_unref(rules);
}

/* 1,000 throws at 0.5: the deviation is 16. The border lies at a whole number here, where 90:10
 * would hide one that is off by one. */
static void test_small_weights(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'half', split = { { weight = 1, pool = 'a' }, "
                                 "{ weight = 1, pool = 'b' } } }");

    bt_rand_seed(7);
    assert_in_range(count_b(rules, 1000, false), 400, 600);
    bt_rules_unref(rules);
}

static void test_a_key_sticks(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'canary', sticky = 'session', " SPLIT("") " }");
    bt_rules_t *again = rules_of("{ name = 'canary', sticky = 'session', " SPLIT("") " }");
    bt_rules_t *other = rules_of("{ name = 'other', sticky = 'session', " SPLIT("") " }");
    bt_policy_request_t req = request();
    unsigned both = 0;

    assert_in_range(count_b(rules, 10000, true), 820, 1180);
    assert_in_range(count_b(rules, 10000, false), 820, 1180); /* no key: chance */
    for (unsigned i = 0; i < 10000; i++) {
        char key[32];
        snprintf(key, sizeof key, "k%u", i);
        req.session = bt_str(key);
        const bool is_b = strcmp(pool_of(rules, &req), "b") == 0;
        assert_int_equal(strcmp(pool_of(rules, &req), "b") == 0, is_b);
        assert_int_equal(strcmp(pool_of(again, &req), "b") == 0, is_b); /* loaded anew */
        both += is_b && strcmp(pool_of(other, &req), "b") == 0;
    }
    assert_in_range(both, 40, 160); /* independent: about 100 */
    bt_rules_unref(rules);
    bt_rules_unref(again);
    bt_rules_unref(other);
}

static void test_other_keys_stick(void **state)
{
    bt_rules_t *tenant = rules_of("{ name = 'r', sticky = 'tenant', " SPLIT("") " }");
    bt_rules_t *header = rules_of("{ name = 'r', sticky = 'header:x-user', " SPLIT("") " }");
    unsigned seen_b = 0;

    for (unsigned i = 0; i < 300; i++) {
        char key[32];
        bt_policy_request_t req = request();
        snprintf(key, sizeof key, "u%u", i);
        req.tenant = bt_str(key);
        const char *by_tenant = pool_of(tenant, &req);
        for (unsigned k = 0; k < 20; k++)
            assert_ptr_equal(pool_of(tenant, &req), by_tenant);
        req.tenant = BT_STR_NULL;
        add_header("X-User", key);
        const char *by_header = pool_of(header, &req);
        for (unsigned k = 0; k < 20; k++)
            assert_ptr_equal(pool_of(header, &req), by_header);
        assert_string_equal(by_header, by_tenant); /* same rule's name, same key */
        seen_b += strcmp(by_header, "b") == 0;
    }
    assert_in_range(seen_b, 5, 80);
    bt_rules_unref(tenant);
    bt_rules_unref(header);
}

/* ---- the file ---- */

static void test_a_thousand_rules(void **state)
{
    char *text = malloc(200000);
    bt_policy_request_t req = request();
    bt_rules_t *rules;
    size_t n = 0;

    assert_non_null(text);
    n += (size_t) sprintf(text, "return { api = 1, rules = {");
    for (unsigned i = 0; i < 1000; i++)
        n += (size_t) sprintf(
            text + n, "{ name = 'r%u', match = { tenant = 't%u', model = 'm*' }, pool = 'p%u' },",
            i, i, i);
    sprintf(text + n, "} }");
    assert_int_equal(load_text(&rules, text), 0);
    free(text);
    assert_int_equal(bt_rules_count(rules), 1000);
    req.model = BT_STR("m1");
    for (unsigned i = 0; i < 1000; i += 111) {
        char tenant[16], pool[16];
        snprintf(tenant, sizeof tenant, "t%u", i);
        snprintf(pool, sizeof pool, "p%u", i);
        req.tenant = bt_str(tenant);
        assert_string_equal(pool_of(rules, &req), pool);
    }
    req.tenant = BT_STR("t1000");
    assert_null(pool_of(rules, &req));
    bt_rules_unref(rules);
}

static const struct {
    const char *text, *expected; /* what follows the file's name */
} mistakes[] = {
    {"return 7", "return"},
    {"return {", "rules.lua:1:"},
    {"return { rules = {} }", "api: must be 1"},
    {"return { api = 2, rules = {} }", "api: must be 1"},
    {"return { api = 1 }", "rules: a list"},
    {"return { api = 1, rules = { a = 1 } }", "rules: a list"},
    {"return { api = 1, rule = {} }", "rule: unknown key, did you mean \"rules\"?"},
    {"return { api = 1, rules = { 7 } }", "rules[1]: a table is needed, not a number"},
    {"return { api = 1, rules = { {} } }", "rules[1].name: missing"},
    {"return { api = 1, rules = { { name = 7 } } }",
     "rules[1].name: a string is needed, not a number"},
    {"return { api = 1, rules = { { name = 'a b', pool = 'x' } } }", "rules[1].name: \"a b\""},
    {"return { api = 1, rules = { { name = 'a', pool = 'x' }, { name = 'a', pool = 'y' } } }",
     "rules[2].name: \"a\" is the name of rules[1] already"},
    {"return { api = 1, rules = { { name = 'a' } } }", "rules[1]: this rule does nothing"},
    {"return { api = 1, rules = { { name = 'a', pol = 'x' } } }",
     "rules[1].pol: unknown key, did you mean \"pool\"?"},
    {"return { api = 1, rules = { { name = 'a', pool = true } } }",
     "rules[1].pool: a string is needed, not a boolean"},
    {"return { api = 1, rules = { { name = 'a', pool = '' } } }", "rules[1].pool: an empty"},
    {"return { api = 1, rules = { { name = 'a', params = {} } } }", "rules[1].params: whose?"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', params = 7 } } }",
     "rules[1].params: a table is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = 'm' } } }",
     "rules[1].match: a table is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { modell = 'm' } } } }",
     "rules[1].match.modell: unknown key, did you mean \"model\"?"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { model = 7 } } } }",
     "rules[1].match.model: a string is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { model = { 'a', 7 } } } } "
     "}",
     "rules[1].match.model[2]: a string is needed, not a number"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { model = 'a*b' } } } }",
     "rules[1].match.model: \"a*b\": a * may only stand at the end"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { path = '' } } } }",
     "rules[1].match.path: an empty string"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { tenant = {} } } } }",
     "rules[1].match.tenant: a string is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { stream = 1 } } } }",
     "rules[1].match.stream: a boolean is needed, not a number"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', "
     "match = { prompt_tokens = 8 } } } }",
     "rules[1].match.prompt_tokens: a table like"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', "
     "match = { prompt_tokens = { min = 'many' } } } } }",
     "rules[1].match.prompt_tokens.min: a number is needed, not a string"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', "
     "match = { prompt_tokens = { min = 2, max = 1 } } } } }",
     "rules[1].match.prompt_tokens.min: 2 is above max, 1"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', "
     "match = { n = { minn = 2 } } } } }",
     "rules[1].match.n.minn: unknown key, did you mean \"min\"?"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { n = { min = -1 } } } } }",
     "rules[1].match.n.min: a number of 0 or more"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', match = { headers = 'x' } } } }",
     "rules[1].match.headers: a table is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', "
     "match = { headers = { ['x-a'] = 7 } } } } }",
     "rules[1].match.headers.x-a: a string is needed"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', split = { { weight = 1 } } } } }",
     "rules[1].pool: belongs into the parts of the split"},
    {"return { api = 1, rules = { { name = 'a', split = {} } } }", "rules[1].split: a list"},
    {"return { api = 1, rules = { { name = 'a', split = { { pool = 'x' } } } } }",
     "rules[1].split[1].weight: missing"},
    {"return { api = 1, rules = { { name = 'a', split = { { weight = 1.5 } } } } }",
     "rules[1].split[1].weight: a whole number"},
    {"return { api = 1, rules = { { name = 'a', split = { { weight = -1 } } } } }",
     "rules[1].split[1].weight: a whole number"},
    {"return { api = 1, rules = { { name = 'a', split = { { weight = 0 } } } } }",
     "rules[1].split: all weights are 0"},
    {"return { api = 1, rules = { { name = 'a', split = { { weight = 1, sample = 1 } } } } }",
     "rules[1].split[1].sample: unknown key"},
    {"return { api = 1, rules = { { name = 'a', pool = 'x', sticky = 'session' } } }",
     "rules[1].sticky: there is no split"},
    {"return { api = 1, rules = { { name = 'a', sticky = 'user', split = { { weight = 1 } } } "
     "} }",
     "rules[1].sticky: \"session\", \"tenant\" or \"header:<name>\" is needed"},
    {"return { api = 1, rules = { { name = 'a', sticky = 'header:', split = { { weight = 1 } } "
     "} } }",
     "rules[1].sticky: \"session\""},
    {"return { api = 1, rules = { { name = 'a', shadow = {} } } }",
     "rules[1].shadow.policy: missing"},
    {"return { api = 1, rules = { { name = 'a', shadow = { policy = 'p', sample = 2 } } } }",
     "rules[1].shadow.sample: a number from 0 to 1"},
    {"return { api = 1, rules = { { name = 'a', shadow = { params = {} } } } }",
     "rules[1].shadow.params: whose?"},
    {"return { api = 1, rules = { { name = 'a', match = string.format, pool = 'x' } } }",
     "function"},
};

static void test_mistakes_are_named(void **state)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        bt_rules_t *rules = NULL;
        const int rc = load_text(&rules, mistakes[i].text);
        if (rc != BT_E_CONFIG || strstr(err, mistakes[i].expected) == NULL ||
            strncmp(err, path, strlen(path)) != 0)
            fail_msg("%d \"%s\", expected \"%s\"", rc, err, mistakes[i].expected);
        assert_null(rules);
    }
    unlink(path);
    bt_rules_t *rules = NULL;
    assert_int_equal(bt_rules_load(&rules, path, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, path));
}

static void test_too_many(void **state)
{
    char *text = malloc(200000);
    bt_rules_t *rules = NULL;
    size_t n;

    assert_non_null(text);
    n = (size_t) sprintf(text,
                         "local t = {} for i = 1, %d do t[i] = { name = 'r' .. i, pool = 'p' "
                         "} end return { api = 1, rules = t }",
                         BT_RULES_MAX + 1);
    assert_true(n > 0);
    assert_int_equal(load_text(&rules, text), BT_E_CONFIG);
    assert_non_null(strstr(err, "1025 rules are more than 1024"));
    sprintf(text, "local t = {} for i = 1, 33 do t[i] = { weight = 1 } end "
                  "return { api = 1, rules = { { name = 'a', split = t } } }");
    assert_int_equal(load_text(&rules, text), BT_E_CONFIG);
    assert_non_null(strstr(err, "rules[1].split: 33 parts are more than 32"));
    sprintf(text, "local t = {} for i = 1, 300 do t[i] = { name = 'r' .. i, policy = 'p' } end "
                  "return { api = 1, rules = t }");
    assert_int_equal(load_text(&rules, text), BT_E_CONFIG);
    assert_non_null(strstr(err, "rules[257]: more than 256 targets"));
    free(text);
}

static void test_same_content_is_the_same(void **state)
{
    bt_rules_t *a = rules_of("{ name = 'a', match = { model = 'm' }, pool = 'x', "
                             "policy = 'p', params = { w = 1 } }");
    bt_rules_t *b = rules_of("{ policy = 'p', params = { w = 1 }, name = 'a', pool = 'x', -- !\n"
                             "match = { model = 'm' } }");
    bt_rules_t *c = rules_of("{ name = 'a', match = { model = 'm' }, pool = 'x', "
                             "policy = 'p', params = { w = 2 } }");

    assert_true(bt_rules_same(a, b));
    assert_false(bt_rules_same(a, c));
    assert_false(bt_rules_same(a, NULL));
    assert_true(bt_rules_same(NULL, NULL));
    bt_rules_unref(a);
    bt_rules_unref(b);
    bt_rules_unref(c);
}

static void test_pools_must_exist(void **state)
{
    static const char *const pools[] = {"default", "long", NULL};
    bt_rules_t *good =
        rules_of("{ name = 'a', pool = 'long' }, { name = 'b', split = { { weight = 1, pool = "
                 "'default' }, { weight = 1 } } }, { name = 'c', shadow = { policy = 'p' } }");
    bt_rules_t *split = rules_of("{ name = 'a', pool = 'long' }, { name = 'b', split = { { weight "
                                 "= 1 }, { weight = 1, pool = 'lonk' } } }");
    bt_rules_t *plain = rules_of("{ name = 'a', pool = 'zzzzzzzz' }");

    assert_int_equal(bt_rules_check_pools(good, pools, err, sizeof err), 0);
    assert_int_equal(bt_rules_check_pools(NULL, pools, err, sizeof err), 0);
    assert_int_equal(bt_rules_check_pools(split, pools, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "rules[2].split[2].pool: there is no pool \"lonk\" (did you mean "
                                "\"long\"?)"));
    assert_int_equal(bt_rules_check_pools(plain, pools, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "rules[1].pool: there is no pool \"zzzzzzzz\""));
    bt_rules_unref(good);
    bt_rules_unref(split);
    bt_rules_unref(plain);
}

/* Names are looked up, files lie where the rules lie. */
static void test_files_of_policies(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'a', match = { n = { min = 9 } }, policy = 'mine' }, "
                                 "{ name = 'b', policy = 'sub/mine.lua' }, "
                                 "{ name = 'c', policy = '/abs/mine.lua' }");
    char expected[128], place[64];
    const char *name;
    bool is_shadow;

    snprintf(expected, sizeof expected, "%s/sub/mine.lua", folder);
    assert_string_equal(bt_rules_variant(rules, 0, &name, &is_shadow)->policy, "mine");
    assert_string_equal(bt_rules_variant(rules, 1, &name, &is_shadow)->policy, expected);
    assert_string_equal(bt_rules_variant(rules, 2, &name, &is_shadow)->policy, "/abs/mine.lua");
    bt_rules_variant_place(rules, 1, place, sizeof place);
    assert_string_equal(place, "rules[2]");
    bt_rules_unref(rules);
}

/* What somebody pushes: no look at this machine, and no wait for it. */
static void test_what_is_pushed_is_read_apart(void **state)
{
    static const struct {
        const char *text, *err;
    } refused[] = {
        {"return { api = 1, rules = { { name = 'a', policy = 'sub/mine.lua' } } }",
         "fleet/rules.lua: rules[1].policy: \"sub/mine.lua\" is a file, and pushed rules name "
         "policies: push it too "
         "and write \"mine\""},
        {"return { api = 1, rules = { { name = 'a', shadow = { policy = '/dev/stdin' } } } }",
         "fleet/rules.lua: rules[1].shadow.policy: \"/dev/stdin\" is a file, and pushed rules name "
         "policies: push it too "
         "and write \"stdin\""},
        {"return { api = 1, rules = { { name = env('HOME'), pool = 'x' } } }",
         "fleet/rules.lua:1: env is not available to pushed code, only to files on the "
         "gateway's machine"},
        {"local p = ('a?'):rep(40) return { api = 1, rules = { { name = ('a'):match(p), pool = 'x' "
         "} } }",
         "fleet/rules.lua:1: string.match is not available to pushed code, only to files "
         "on the gateway's machine"},
        {"while true do end", "fleet/rules.lua:1: the code ran too long"},
    };
    bt_rules_t *rules = NULL;

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(
            bt_rules_parse(&rules, "fleet/rules.lua", bt_str(refused[i].text), err, sizeof err),
            BT_E_CONFIG);
        assert_string_equal(err, refused[i].err);
        assert_null(rules);
    }
    if (bt_rules_parse(
            &rules, "fleet/rules.lua",
            BT_STR("return { api = 1, rules = { { name = 'a', policy = 'mine', pool = 'x' } } }"),
            err, sizeof err) < 0)
        fail_msg("%s", err);
    assert_int_equal(bt_rules_count(rules), 1);
    bt_rules_unref(rules);
}

static void test_description_counts_hits(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'a', match = { model = 'llama-*' }, pool = 'x', "
                                 "shadow = { policy = 'p', params = { w = 0.5 }, sample = 0.5 } },"
                                 "{ name = 'b', sticky = 'tenant', split = { { weight = 3 } } }");
    bt_policy_request_t req = request();
    bt_rule_match_t match;
    bt_text_t out;

    for (unsigned i = 0; i < 3; i++)
        bt_rules_match(rules, &req, &match);
    req.model = BT_STR("other");
    bt_rules_match(rules, &req, &match);
    bt_text_init(&out);
    bt_rules_describe(rules, &out);
    assert_string_equal(
        out.data,
        "[{\"name\":\"a\",\"match\":{\"model\":\"llama-*\"},\"hits\":3,\"targets\":[{\"pool\":"
        "\"x\",\"policy\":null,\"params\":null,\"hits\":3,\"weight\":1}],\"shadow\":{\"pool\":null,"
        "\"policy\":\"p\",\"params\":{\"w\":0.5},\"hits\":3,\"sample\":0.5}},"
        "{\"name\":\"b\",\"match\":{},\"hits\":1,\"sticky\":\"tenant\",\"targets\":[{\"pool\":null,"
        "\"policy\":null,\"params\":null,\"hits\":1,\"weight\":3}]}]");
    bt_text_fini(&out);
    bt_rules_unref(rules);
}

static void test_references(void **state)
{
    bt_rules_t *rules = rules_of("{ name = 'a', pool = 'x' }");

    assert_ptr_equal(bt_rules_ref(rules), rules);
    bt_rules_unref(rules);
    assert_int_equal(bt_rules_count(rules), 1);
    bt_rules_unref(rules);
    assert_null(bt_rules_ref(NULL));
    bt_rules_unref(NULL);
    assert_int_equal(bt_rules_count(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_flags_and_numbers),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_the_first_that_fits_decides),
        cmocka_unit_test(test_a_shadow_goes_on),
        cmocka_unit_test(test_chance_keeps_the_weights),
        cmocka_unit_test(test_small_weights),
        cmocka_unit_test(test_a_key_sticks),
        cmocka_unit_test(test_other_keys_stick),
        cmocka_unit_test(test_a_thousand_rules),
        cmocka_unit_test(test_mistakes_are_named),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_same_content_is_the_same),
        cmocka_unit_test(test_pools_must_exist),
        cmocka_unit_test(test_files_of_policies),
        cmocka_unit_test(test_what_is_pushed_is_read_apart),
        cmocka_unit_test(test_description_counts_hits),
        cmocka_unit_test(test_references),
    };

    return cmocka_run_group_tests(tests, setup_group, teardown_group);
}

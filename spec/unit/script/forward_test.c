/* edit.forward: nixl, which says by it what is wanted of a reply, beside a dialect that does the same by hand, over many replies; and
 * what can be said, and what is said wrongly. */
#include "script_fixture.h"

#define REPLIES 10000
#define REPLY_BYTES 8192

/* ---- many replies ---- */

static uint64_t seed = 0x9e3779b97f4a7c15;

static unsigned below(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned) (seed >> 33) % n;
}

struct text {
    size_t n;
    char bytes[REPLY_BYTES];
};

static void put(struct text *t, const char *words)
{
    const size_t n = strlen(words);

    assert_true(t->n + n < sizeof(t->bytes));
    memcpy(t->bytes + t->n, words, n + 1);
    t->n += n;
}

static void put_blank(struct text *t)
{
    static const char *const blanks[] = {"", "", "", "", " ", "\n\t", "  \r\n "};

    put(t, blanks[below(7)]);
}

/* Some of its bytes written as \u00xx. */
static void put_key(struct text *t, const char *key)
{
    const bool is_odd = below(16) == 0;
    char byte[8];

    put(t, "\"");
    for (; *key != '\0'; key++) {
        snprintf(byte, sizeof(byte), is_odd && below(4) == 0 ? "\\u%04x" : "%c", (unsigned) *key);
        put(t, byte);
    }
    put(t, "\"");
    put_blank(t);
    put(t, ":");
    put_blank(t);
}

struct member {
    const char *key;
    const char *right[5]; /* taken most of the time */
};

static const char *const odd_values[] = {"null",
                                         "true",
                                         "false",
                                         "0",
                                         "-1",
                                         "1e400",
                                         "72",
                                         "71",
                                         "\"\"",
                                         "\"x\"",
                                         "\"\\u0000\"",
                                         "\"\\ud800\"",
                                         "[]",
                                         "[[]]",
                                         "[[],[]]",
                                         "[null]",
                                         "[\"1\"]",
                                         "[{}]",
                                         "[{\"a\":1}]",
                                         "[[],[0]]",
                                         "{}",
                                         "{\"a\":[1]}",
                                         "\"req-1\"",
                                         "\"cmpl-req-12\"",
                                         "[[[1,2],[3]],[\"]\",\"\\\"\"]]",
                                         "\"local\\u0068ost\"",
                                         "7.25e1",
                                         "72.0"};

static const struct member members[] = {
    {"do_remote_prefill", {"true"}},
    {"do_remote_decode", {"false"}},
    {"remote_block_ids",
     {"[1,2,3]", "[[1,2,3]]", "[[],[ 5 ]]", "[ 1 ]", "[null,\"a\",{\"b\":[]},4]"}},
    {"remote_engine_id", {"\"p0\"", "\"\\u00e9\"", "\"a\\\"b\""}},
    {"remote_request_id",
     {"\"cmpl-req-1-0-bd83\"", "\"chatcmpl-req-1\"", "\"resp_req-1_0\"", "\"x-req-1-y\"",
      "\"c\\u006dpl-req-1_2\""}},
    {"remote_host", {"\"127.0.0.1\"", "\"localhost\"", "\"0.0.0.0\"", "\"::\"", "\"[::]\""}},
    {"remote_port", {"5600", "5.6e3"}},
    {"remote_num_tokens", {"72", "72", "72.0", "7.2e1", "71"}},
    {"tp_size", {"1"}},
    {"x", {"[\"}\",{\"remote_host\":\"localhost\"}]", "\"\\\\\"", "{\"a\":{\"b\":[[],{}]}}"}},
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

static const char *right_value(const struct member *m)
{
    const char *value = m->right[below(5)];

    return value != NULL ? value : m->right[0];
}

static void put_params(struct text *t)
{
    const unsigned odds = 8 + below(120), from = below(3) == 0 ? below(MEMBERS) : 0;
    bool is_first = true;

    put(t, "{");
    for (unsigned i = 0; i < MEMBERS; i++) {
        const struct member *m = &members[(from + i) % MEMBERS];
        const unsigned times = below(odds) == 0 ? 0 : below(odds) == 0 ? 2 : 1;
        for (unsigned k = 0; k < times; k++) {
            put_blank(t);
            put(t, is_first ? "" : ",");
            put_blank(t);
            is_first = false;
            put_key(t, m->key);
            put(t, below(odds) == 0 ? odd_values[below(sizeof(odd_values) / sizeof(char *))]
                                    : right_value(m));
        }
    }
    if (below(64) == 0) /* a prompt that is long */
        for (unsigned i = 0; i < 200; i++)
            put(t, i == 0 ? ",\"long\":[0" : i == 199 ? "]" : ",123456");
    put_blank(t);
    put(t, "}");
}

static void put_named_params(struct text *t)
{
    put_key(t, "kv_transfer_params");
    if (below(24) == 0)
        put(t, odd_values[below(sizeof(odd_values) / sizeof(char *))]);
    else
        put_params(t);
}

static void make_reply(struct text *t)
{
    const unsigned times = below(24) == 0 ? 0 : below(24) == 0 ? 2 : 1;

    t->n = 0;
    put_blank(t);
    put(t, "{");
    put_key(t, "id");
    put(t, "\"cmpl-req-1\"");
    for (unsigned i = below(20) == 0 ? 30 : below(3); i > 0; i--)
        put(t, ",\"more\":[]");
    for (unsigned i = 0; i < times; i++) {
        put(t, ",");
        put_named_params(t);
    }
    put(t, ",\"usage\":{\"prompt_tokens\":72}");
    put(t, "}");
    put_blank(t);
    if (below(6) == 0) /* damaged */
        for (unsigned i = below(3); i < 3; i++)
            t->bytes[below((unsigned) t->n)] = "{}[],:\"\\ \x80"
                                               "0e-tn"[below(15)];
    if (below(40) == 0)
        t->n = below((unsigned) t->n);
}

/* As dispatch has looked at a reply before, where it is an object. */
static void look_at(bt_leg_view_t *leg, bt_json_members_t *members_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, leg->reply);

    members_p->text = bt_str_trim(leg->reply);
    members_p->count = 0;
    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        if (members_p->count++ < members_p->cap)
            members_p->items[members_p->count - 1] = item;
        rc = 0;
    }
    leg->is_reply_object = rc == 0 && leg->reply.p == members_p->text.p;
    leg->reply_members =
        leg->is_reply_object && members_p->count <= members_p->cap ? members_p : NULL;
}

static bool is_same_edit(const bt_edit_t *a, const bt_edit_t *b)
{
    return a->op == b->op && bt_str_eq(a->object, b->object) && bt_str_eq(a->key, b->key) &&
           bt_str_eq(a->value, b->value);
}

static void assert_same(const struct leg_run *a, const struct leg_run *b)
{
    if (a->verdict != b->verdict || !bt_str_eq(a->reason, b->reason))
        fail_msg("verdict %d \"%.*s\", by hand %d \"%.*s\", of %.*s", (int) a->verdict,
                 BT_STR_ARG(a->reason), (int) b->verdict, BT_STR_ARG(b->reason),
                 BT_STR_ARG(a->leg.reply));
    if (a->verdict == BT_DIALECT_REFUSED)
        return;
    assert_int_equal(a->edits.count, b->edits.count);
    for (unsigned i = 0; i < a->edits.count; i++)
        if (!is_same_edit(&a->edits.items[i], &b->edits.items[i]))
            fail_msg("edit %.*s=%.*s, by hand %.*s=%.*s, of %.*s",
                     BT_STR_ARG(a->edits.items[i].key), BT_STR_ARG(a->edits.items[i].value),
                     BT_STR_ARG(b->edits.items[i].key), BT_STR_ARG(b->edits.items[i].value),
                     BT_STR_ARG(a->leg.reply));
}

static const char *const reasons[] = {
    "do_remote_prefill is not true",  "remote_block_ids is missing or empty",
    "remote_engine_id is missing",    "remote_request_id is missing",
    "remote_host is missing",         "remote_port is missing",
    "belongs to another request",     "is not the length of this prompt",
    "kv_transfer_params is no object"};
#define REASONS (sizeof(reasons) / sizeof(reasons[0]))

static void count_reason(bt_str_t reason, unsigned *counts)
{
    for (unsigned i = 0; i < REASONS; i++)
        counts[i] += bt_str_find(reason, bt_str(reasons[i])) >= 0;
}

static void one_reply(struct leg_run *a, struct leg_run *b, const struct text *t)
{
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                                        "/inference/v1/generate"};
    static const char *const ids[] = {"req-1", "req-1", "req-1", "req", "a\"b"};
    static const char *const hosts[] = {"10.0.0.1", "10.0.0.1", "localhost"};
    bt_json_item_t items[8];
    bt_json_members_t known = {.items = items, .cap = 8};

    a->leg.path = bt_str(paths[below(16) == 0 ? below(4) : 0]);
    a->leg.request_id = bt_str(ids[below(16) == 0 ? below(5) : 0]);
    a->leg.prefill.host = bt_str(hosts[below(3)]);
    a->leg.reply = (bt_str_t){t->bytes, t->n};
    a->leg.reply_prompt_tokens = below(4) == 0 ? 0 : 72;
    a->leg.is_reply_object = false;
    a->leg.reply_members = NULL;
    if (below(2) == 0)
        look_at(&a->leg, &known);
    b->leg = a->leg;
    leg_edit(a, true);
    leg_edit(b, true);
}

static void says_what_is_done_by_hand(void **state)
{
    struct leg_run a, b;
    struct text *t = malloc(sizeof(*t));
    unsigned verdicts[BT_DIALECT_BROKEN + 1] = {0}, counts[REASONS] = {0};
    (void) state;

    assert_non_null(t);
    leg_init(&a, "nixl", NULL);
    leg_init(&b, "by_hand", "spec/unit/script/dialects");
    for (unsigned i = 0; i < REPLIES; i++) {
        make_reply(t);
        if (t->n == 0)
            continue;
        one_reply(&a, &b, t);
        assert_same(&a, &b);
        verdicts[a.verdict]++;
        count_reason(a.reason, counts);
        bt_arena_fini(&a.arena);
        bt_arena_fini(&b.arena);
        bt_arena_init(&a.arena);
        bt_arena_init(&b.arena);
    }
    assert_int_equal(verdicts[BT_DIALECT_BROKEN], 0);
    assert_true(verdicts[BT_DIALECT_OK] > REPLIES / 8);
    assert_true(verdicts[BT_DIALECT_RECOMPUTE] > REPLIES / 100);
    for (unsigned i = 0; i < REASONS; i++)
        if (counts[i] < REPLIES / 1000)
            fail_msg("\"%s\" only %u times", reasons[i], counts[i]);
    leg_fini(&a);
    leg_fini(&b);
    free(t);
}

/* ---- what is said ---- */

/* "runs" tells in which of its runs an edit was made. */
static void start(struct leg_run *r, const char *decode)
{
    struct temp_file file;
    char text[2048];

    snprintf(text, sizeof(text),
             "local runs = 0\nreturn { name = 'own', kind = 'handoff', templates = true,\n"
             "prefill = function() end,\n"
             "decode = function(leg, edit) runs = runs + 1 edit.set('runs', runs)\n"
             "%s\nend }",
             decode);
    temp_write(&file, "own.lua", text);
    leg_init(r, "own", file.folder);
    temp_remove(&file);
}

static void assert_said(struct leg_run *r, const char *reply, const char *runs, const char *edit)
{
    r->leg.reply = bt_str(reply);
    if (leg_edit(r, true) != BT_DIALECT_OK)
        fail_msg("%.*s", BT_STR_ARG(r->reason));
    assert_edits(r, runs, edit, NULL);
}

static void it_is_said_once_for_many_replies(void **state)
{
    struct leg_run r;
    (void) state;

    start(&r,
          "edit.forward('d', 'p', { missing = 'recompute', set = { via = edit.str('b') },\n"
          "  { 'a', 'number' }, { 'h', 'text', instead = { me = edit.str(leg.prefill.host) } },\n"
          "  { 'l', 'array' } })");
    assert_said(&r, "{\"p\":{\"a\":1,\"h\":\"me\",\"l\":[]}}", "runs=1",
                "d={\"a\":1,\"h\":\"10.0.0.1\",\"l\":[],\"via\":\"b\"}");
    assert_said(&r, " {\"p\": { \"l\":[1],\"via\" : 3,\"h\":\"you\",\"a\":2e1} } ", "runs=1",
                "d={ \"l\":[1],\"via\" : \"b\",\"h\":\"you\",\"a\":2e1}");
    r.leg.prefill.host = BT_STR("h2");
    assert_said(&r, "{\"p\":{\"a\":1,\"h\":\"me\",\"l\":[]}}", "runs=2",
                "d={\"a\":1,\"h\":\"h2\",\"l\":[],\"via\":\"b\"}");
    r.leg.reply =
        BT_STR("{\"p\":{\"h\":\"you\",\"l\":{}}}"); /* the first rule that does not hold */
    assert_refused(&r, true, "p: a is missing");
    r.leg.reply = BT_STR("{\"p\":{\"a\":1,\"h\":\"you\",\"l\":{}}}");
    assert_refused(&r, true, "p: l is missing");
    r.leg.reply = BT_STR("{\"p\":null}");
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_RECOMPUTE);
    assert_edits(&r, "runs=2", NULL);
    r.leg.reply = BT_STR("{\"p\":3}");
    assert_refused(&r, true, "p is no object");
    r.leg.reply = BT_STR(""); /* it had none */
    assert_refused(&r, true, "p is missing");
    leg_fini(&r);
}

static void all_of_a_reply_is_said_without_a_name(void **state)
{
    struct leg_run r;
    (void) state;

    start(&r, "edit.forward('d', nil, { what = 'this call', { 'id', 'request_id' } })");
    assert_said(&r, " {\"id\":\"a-req-1\"} ", "runs=1", "d={\"id\":\"a-req-1\"}");
    r.leg.request_id = BT_STR("a");
    assert_said(&r, "{\"id\":\"a-req-1\"}", "runs=1", "d={\"id\":\"a-req-1\"}");
    r.leg.request_id = BT_STR("req");
    assert_said(&r, "{\"id\":\"req_1\"}", "runs=1", "d={\"id\":\"req_1\"}");
    r.leg.request_id = BT_STR("eq");
    r.leg.reply = BT_STR("{\"id\":\"a-eq1\"}");
    assert_refused(&r, true, "this call: id belongs to another request");
    r.leg.reply = BT_STR("{\"id\":\"a-eq\"");
    assert_refused(&r, true, "this call: id belongs to another request");
    leg_fini(&r);
    start(&r, "edit.forward('d', nil, { what = 'this call' })");
    r.leg.reply = BT_STR("[{}]");
    assert_refused(&r, true, "this call is no object");
    leg_fini(&r);
}

/* A function that looks for itself, or puts what only this leg has into a rule, runs each time. */
static void what_has_no_template_runs(void **state)
{
    static const char *const bodies[] = {
        "edit.forward('d', 'p', { { 'a', edit.reply('p', 'a') and 'number' or 'text' } })",
        "edit.scalars('p', 'a') edit.forward('d', 'p', {})",
        "edit.raw('p') edit.forward('d', 'p', {})",
        "local _ = leg.reply_prompt_tokens edit.forward('d', 'p', {})",
        "edit.copy('d', 'p')",
        "edit.splice('d', 'p')",
        "edit.forward('d', 'p', { { 'a', 'number', instead = { [leg.request_id] = 1 } } })",
        "edit.forward('d', 'p', { { 'a', 'number', instead = { x = edit.str(leg.request_id) } } })",
        "edit.forward('d', 'p', { what = 'of ' .. leg.request_id })"};
    struct leg_run r;
    (void) state;

    for (unsigned i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        start(&r, bodies[i]);
        assert_said(&r, "{\"p\":{\"a\":1}}", "runs=2", "d={\"a\":1}");
        assert_said(&r, "{\"p\":{\"a\":2}}", i < 6 ? "runs=3" : "runs=4", "d={\"a\":2}");
        leg_fini(&r);
    }
}

static void what_is_said_wrongly_is_told(void **state)
{
    static const struct {
        const char *body, *why;
    } cases[] = {
        {"edit.forward('d', 'p', {}) edit.forward('d', 'p', {})", "said once in a leg"},
        {"edit.forward('d', 'p')", "table expected"},
        {"edit.forward('d', 'p', { mising = 'recompute' })", "did you mean 'missing'?"},
        {"edit.forward('d', 'p', { missing = 'refuse' })", "'missing' is \"recompute\" or nothing"},
        {"edit.forward('d', 'p', { { 'a', 'numbr' } })", "did you mean 'number'?"},
        {"edit.forward('d', 'p', { { 'a' } })", "string expected"},
        {"edit.forward('d', 'p', { 'a' })", "table expected"},
        {"edit.forward('d', 'p', { { 'a', 'text', insted = { b = '1' } } })",
         "unknown field of a rule of edit.forward 'insted' (did you mean 'instead'?)"},
        {"edit.forward('d', 'p', { set = { a = 'x' } })", "not JSON: x"},
        {"edit.forward('d', 'p', { set = 3 })", "'set' is a table"},
        {"edit.forward('d', 'p', { { 'a', 'text', instead = 'b' } })", "'instead' is a table"},
        {"local m = {} for i = 1, 17 do m[i] = { 'k' .. i, 'text' } end edit.forward('d', 'p', m)",
         "too many members in edit.forward (at most 16)"},
        {"local m = {} for i = 1, 25 do m[i] = { 'a', 'text' } end edit.forward('d', 'p', m)",
         "too many rules in edit.forward (at most 24)"},
        {"for i = 1, 47 do edit.set('k', i) end edit.forward('d', 'p', {})",
         "too many edits in one leg"}};
    struct leg_run r;
    (void) state;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start(&r, cases[i].body);
        r.leg.reply = BT_STR("{\"p\":{\"a\":1}}");
        assert_refused(&r, true, cases[i].why);
        assert_int_equal(r.verdict, BT_DIALECT_BROKEN);
        leg_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_is_done_by_hand),
        cmocka_unit_test(it_is_said_once_for_many_replies),
        cmocka_unit_test(all_of_a_reply_is_said_without_a_name),
        cmocka_unit_test(what_has_no_template_runs),
        cmocka_unit_test(what_is_said_wrongly_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "script_fixture.h"

/* A dialect whose prefill function is `body`; both legs may be asked. */
static void start(struct leg_run *r, const char *body)
{
    struct temp_file file;
    char text[2048];

    snprintf(text, sizeof(text),
             "local kept\nreturn { name = 'own', kind = 'handoff', decode = function() end, "
             "prefill = function(leg, edit)\n"
             "%s\nend }",
             body);
    temp_write(&file, "own.lua", text);
    leg_init(r, "own", file.folder);
    temp_remove(&file);
}

static void assert_body_ok(struct leg_run *r)
{
    if (leg_edit(r, false) != BT_DIALECT_OK)
        fail_msg("%.*s", BT_STR_ARG(r->reason));
}

static void all_fields_of_a_leg(void **state)
{
    static const uint64_t rooms[] = {9223372036854775807u, 1};
    struct leg_run r;

    start(
        &r,
        "assert(leg.path == '/v1/completions' and leg.request_id == 'req-1' and leg.rid == 'rid')\n"
        "assert(leg.room == '9223372036854775807' and #leg.rooms == 2 and leg.rooms[2] == '1')\n"
        "assert(leg.prompt_count == 2 and leg.stream == true)\n"
        "assert(leg.has_reply == true and leg.reply_prompt_tokens == 7)\n"
        "local p, d = leg.prefill, leg.decode\n"
        "assert(p.name == 'p0' and p.host == '10.0.0.1' and p.port == 8000 and p.dp_size == 2 and "
        "p.dp_rank == 0)\n"
        "assert(p.engine_id == 'e' and p.kv_host == 'k' and p.kv_address == 'k:1' and p.version == "
        "'1' and p.bootstrap_port "
        "== 8998)\n"
        "assert(p.tp_size == 4 and p.pp_size == 3 and p.learned == true)\n"
        "assert(d.name == 'd0' and d.engine_id == nil and d.kv_host == nil and d.kv_address == nil "
        "and d.bootstrap_port == "
        "nil)\n"
        "assert(d.dp_rank == nil and d.learned == false)\n"
        "assert(leg.has('model') == 'string' and leg.has('n') == nil and leg.has('stream') == "
        "'boolean')");
    r.leg.rid = BT_STR("rid");
    r.leg.rooms = rooms;
    r.leg.room_count = r.leg.prompt_count = 2;
    r.leg.stream = true;
    r.leg.reply = BT_STR("{}");
    r.leg.reply_prompt_tokens = 7;
    r.leg.body = BT_STR("{\"model\":\"m\",\"stream\":true}");
    r.leg.prefill = (bt_dialect_peer_t){.name = BT_STR("p0"),
                                        .host = BT_STR("10.0.0.1"),
                                        .engine_id = BT_STR("e"),
                                        .kv_host = BT_STR("k"),
                                        .kv_address = BT_STR("k:1"),
                                        .version = BT_STR("1"),
                                        .port = 8000,
                                        .bootstrap_port = 8998,
                                        .dp_size = 2,
                                        .tp_size = 4,
                                        .pp_size = 3,
                                        .dp_rank = 0,
                                        .learned = true};
    assert_body_ok(&r);
    leg_fini(&r);
}

static enum bt_json_type only_n(const void *user, bt_str_t key)
{
    ++*(int *) (uintptr_t) user;
    return bt_str_eq(key, BT_STR("n")) ? BT_JSON_NUMBER : BT_JSON_NONE;
}

static void an_index_that_is_there_is_asked(void **state)
{
    struct leg_run r;
    int asked = 0;

    start(&r, "assert(leg.has('n') == 'number' and leg.has('model') == nil)");
    r.leg.member = only_n;
    r.leg.member_user = &asked;
    assert_body_ok(&r);
    assert_int_equal(asked, 2);
    leg_fini(&r);
}

static void every_edit(void **state)
{
    struct leg_run r;

    start(&r, "edit.set('a', '{\"x\":[1,null]}') edit.set('b', 1) edit.set('c', false) "
              "edit.set('d', 2.5)\n"
              "edit.set_in('o', 'k', '\"v\"') edit.remove('e') edit.remove_in('o', 'f')\n"
              "edit.header('H', 'v') edit.header('Gone', nil)\n"
              "edit.set('s', edit.str('q\"\\n\\1'))");
    assert_body_ok(&r);
    assert_edits(&r, "a={\"x\":[1,null]}", "b=1", "c=false", "d=2.5", "o.k=\"v\"", "-e", "-o.f",
                 "H: v", "Gone: ", "s=\"q\\\"\\n\\u0001\"", NULL);
    assert_null(r.edits.items[8].value.p); /* Gone */
    leg_fini(&r);
}

static void bad_edits_are_refused(void **state)
{
    static const struct {
        const char *body, *word;
    } cases[] = {
        {"edit.set('a', '{')", "own.lua:3: not JSON: {"},
        {"edit.set('a', 'text')", "not JSON"},
        {"edit.set('a', 1/0)", "not JSON"},
        {"edit.set('a', nil)", "a value must be JSON text"},
        {"edit.set('a', {})", "a value must be JSON text"},
        {"edit.set(nil, '1')", "string expected"},
        {"edit.header('A', 'x\\r\\nB: y')", "control character"},
        {"edit.header('A\\n', 'x')", "control character"},
        {"edit.header('', 'x')", "control character"},
        {"for i = 1, 49 do edit.set('k' .. i, 1) end", "too many edits"},
        {"edit.sett('a', 1)", "attempt to call field 'sett'"},
        {"leg.path = 'x'", "leg cannot be written"},
        {"leg.prefill.host = 'x'", "leg cannot be written"},
        {"local x = leg.prefil", "did you mean 'prefill'"},
        {"local x = leg.prefill.hosts", "did you mean 'host'"},
        {"getmetatable(leg).__index = 1", "index a boolean"},
    };
    struct leg_run r;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        start(&r, cases[i].body);
        assert_refused(&r, false, cases[i].word);
        leg_fini(&r);
    }
}

static void nothing_works_after_the_call(void **state)
{
    struct leg_run r;

    start(&r, "if not kept then kept = { leg, edit } else kept[1], leg = leg, kept[1] end\n"
              "local ok, why = pcall(function() return leg.path end) assert(ok)");
    assert_body_ok(&r);
    assert_body_ok(&r); /* the same userdata serves the next call */
    leg_fini(&r);
}

static void looking_into_a_reply(void **state)
{
    struct leg_run r;

    start(&r, "local t, v = edit.reply() assert(t == 'object' and v == 7)\n"
              "t, v = edit.reply('s') assert(t == 'string' and v == 'a\\n\\195\\169')\n"
              "t, v = edit.reply('n') assert(t == 'number' and v == 1.5)\n"
              "t, v = edit.reply('b') assert(t == 'boolean' and v == true)\n"
              "t, v = edit.reply('z') assert(t == 'null' and v == nil)\n"
              "t, v = edit.reply('l') assert(t == 'array' and v == 2)\n"
              "t, v = edit.reply('l', 2) assert(t == 'array' and v == 1)\n"
              "t, v = edit.reply('l', 2, 1) assert(t == 'number' and v == 3)\n"
              "assert(edit.reply('l', 3) == nil and edit.reply('l', 0) == nil and edit.reply('l', "
              "'x') == nil)\n"
              "t, v = edit.reply('o', 'i', 'k') assert(t == 'string' and v == '')\n"
              "assert(edit.reply('nope') == nil and edit.reply('s', 'x') == nil and "
              "edit.reply('o', 1) == nil)");
    r.leg.reply = BT_STR("{\"s\":\"a\\n\\u00e9\",\"n\":1.5,\"b\":true,\"z\":null,\"l\":[1,[3]],"
                         "\"o\":{\"i\":{\"k\":\"\"}},\"f\":false}");
    assert_body_ok(&r);
    leg_fini(&r);
    start(
        &r,
        "assert(edit.reply() == nil and edit.reply('x') == nil and edit.splice('a', 'b') == nil)");
    assert_body_ok(&r);
    r.leg.reply = BT_STR("{\"x\":1,");
    assert_refused(&r, false,
                   "assertion failed"); /* malformed: something is there, but no member */
    leg_fini(&r);
}

static void several_members_at_once(void **state)
{
    struct leg_run r;

    start(&r,
          "local s, n, b, z, l, o, m = edit.scalars('k', 's', 'n', 'b', 'z', 'l', 'o', 'missing')\n"
          "assert(s == 'a\\n' and n == 2.5 and b == false)\n"
          "assert(z == nil and l == nil and o == nil and m == nil)\n"
          "assert(edit.scalars({ 'k', 'o' }, 'x') == 1 and edit.scalars(nil, 't') == 'top')\n"
          "assert(edit.scalars('t', 'x') == nil and edit.scalars('missing', 'x') == nil)\n"
          "assert(select('#', edit.scalars('k')) == 0 and select('#', edit.scalars()) == 0)\n"
          "assert(select('#', edit.scalars('t', 'x', 'y')) == 2)");
    r.leg.reply = BT_STR(
        " {\"k\":{\"s\":\"a\\n\",\"n\":2.5,\"b\":false,\"z\":null,\"l\":[1],\"o\":{\"x\":1}},"
        "\"t\":\"top\"} ");
    assert_body_ok(&r);
    leg_fini(&r);
    start(&r, "assert(select('#', edit.scalars('k', 's')) == 1 and edit.scalars('k', 's') == nil)");
    assert_body_ok(&r); /* without a reply */
    leg_fini(&r);
    start(&r, "edit.scalars('k', {})");
    r.leg.reply = BT_STR("{\"k\":{}}");
    assert_refused(&r, false, "string expected");
    leg_fini(&r);
}

/* The caller has read the reply: it is not read again, and taken for what it is. */
static void members_that_are_known(void **state)
{
    bt_json_item_t items[] = {{.key = BT_STR("a"), .value_off = 5, .type = BT_JSON_OBJECT}};
    bt_json_members_t members = {.items = items, .cap = 1, .count = 1};
    struct leg_run r;

    start(&r, "local kind, count = edit.reply('a')\n"
              "assert(kind == 'object' and count == 1 and edit.reply('b') == nil)\n"
              "assert(edit.splice('s', 'a', { x = 2 }) and edit.splice('t', nil, { a = 3 }))");
    r.leg.reply = BT_STR(" {\"a\":{\"x\":1},\"b\":2}\n");
    r.leg.is_reply_object = true;
    r.leg.reply_members = &members;
    members.text = bt_str_trim(r.leg.reply);
    items[0].value = (bt_str_t){members.text.p + 5, 7}; /* "b" is left out */
    assert_body_ok(&r);
    assert_edits(&r, "s={\"x\":2}", "t={\"a\":3,\"b\":2}", NULL);
    leg_fini(&r);
}

static void taking_from_inside_the_reply(void **state)
{
    struct leg_run r;

    start(&r,
          "assert(edit.raw('c', 1, 'id') == '6731121147493536035')\n"
          "assert(edit.raw('c', 1, 'o') == '{ \"a\" : 1 }' and edit.raw('z') == 'null')\n"
          "assert(edit.raw('c', 2) == nil and edit.raw('nope') == nil)\n"
          "assert(edit.copy('v', 'l') == true and edit.copy('w', { 'c', 1, 'id' }) == true)\n"
          "assert(edit.copy('x', { 'c', 1, 'nope' }) == nil and edit.copy('x', 'z') == nil)\n"
          "assert(edit.copy('x', {}) == nil)\n"
          "assert(edit.splice('s', { 'c', 1, 'o' }, { a = 2 }) == true)\n"
          "assert(edit.splice('t', { 'c', 1, 'o' }) == true)\n"
          "assert(edit.splice('x', { 'c', 1, 'id' }) == nil and edit.splice('x', { 'c' }) == nil)");
    r.leg.reply = BT_STR("{\"l\":[ 1 ,2],\"z\":null,\"c\":[{\"id\":6731121147493536035,"
                         "\"o\":{ \"a\" : 1 }}]}");
    assert_body_ok(&r);
    assert_edits(&r, "v=[ 1 ,2]", "w=6731121147493536035", "s={ \"a\" : 2 }", "t={ \"a\" : 1 }",
                 NULL);
    leg_fini(&r);
    start(&r, "assert(edit.raw() == nil and edit.raw('x') == nil and edit.copy('a', 'b') == nil)");
    assert_body_ok(&r);
    leg_fini(&r);
    start(&r, "edit.copy('v', { true })");
    r.leg.reply = BT_STR("{}");
    assert_refused(&r, false, "string expected");
    leg_fini(&r);
}

static void splicing_the_reply(void **state)
{
    struct leg_run r;

    start(&r, "assert(edit.splice('v', 'p') == true)\n"
              "assert(edit.splice('w', 'p', { b = '\"B\"' }) == true)\n"
              "assert(edit.splice('x', 'p', { new = 1 }) == true)\n"
              "assert(edit.splice('y', 'e', { new = '[]' }) == true)\n"
              "assert(edit.splice('u', 'p', {}) == true)\n"
              "assert(edit.splice('z', 'n') == nil and edit.splice('z', 'nope') == nil)");
    r.leg.reply = BT_STR("{\"n\":1,\"p\": { \"a\" : 1, \"b\" : [ 2 ], \"\\u0062\":3 } ,\"e\":{}}");
    assert_body_ok(&r);
    assert_edits(&r, "v={ \"a\" : 1, \"b\" : [ 2 ], \"\\u0062\":3 }",
                 "u={ \"a\" : 1, \"b\" : [ 2 ], \"\\u0062\":3 }",
                 "w={ \"a\" : 1, \"b\" : \"B\", \"\\u0062\":\"B\" }",
                 "x={ \"a\" : 1, \"b\" : [ 2 ], \"\\u0062\":3 ,\"new\":1}", "y={\"new\":[]}", NULL);
    /* unchanged bytes are the reply's own */
    assert_true(r.edits.items[0].value.p > r.leg.reply.p &&
                r.edits.items[0].value.p < r.leg.reply.p + r.leg.reply.n);
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields_of_a_leg),
        cmocka_unit_test(an_index_that_is_there_is_asked),
        cmocka_unit_test(every_edit),
        cmocka_unit_test(bad_edits_are_refused),
        cmocka_unit_test(nothing_works_after_the_call),
        cmocka_unit_test(looking_into_a_reply),
        cmocka_unit_test(several_members_at_once),
        cmocka_unit_test(members_that_are_known),
        cmocka_unit_test(taking_from_inside_the_reply),
        cmocka_unit_test(splicing_the_reply),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

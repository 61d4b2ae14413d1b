/* A leg function runs once for each kind of leg: "runs" tells in which of its runs an edit was made. */
#include "script_fixture.h"

static void start(struct leg_run *r, const char *body)
{
    struct temp_file file;
    char text[2048];

    snprintf(text, sizeof(text),
             "local runs = 0\nreturn { name = 'own', kind = 'handoff', templates = true,\n"
             "decode = function(leg, edit) edit.set('d', edit.str(leg.request_id)) end,\n"
             "prefill = function(leg, edit) runs = runs + 1 edit.set('runs', runs)\n"
             "%s\nend }",
             body);
    temp_write(&file, "own.lua", text);
    leg_init(r, "own", file.folder);
    temp_remove(&file);
}

static void assert_run(struct leg_run *r, const char *runs)
{
    if (leg_edit(r, false) != BT_DIALECT_OK)
        fail_msg("%.*s", BT_STR_ARG(r->reason));
    assert_edits(r, runs, NULL);
}

static void each_leg_has_its_own_ids(void **state)
{
    static const uint64_t rooms[] = {9223372036854775807u, 7};
    static const char *const ids[] = {"req-1", "a-longer.id_of:2", "x"};
    struct leg_run r;

    start(
        &r,
        "edit.header('X-Request-Id', leg.request_id)\n"
        "edit.header('X-Client', nil)\n"
        "edit.set('a', edit.str(leg.rid .. '_1' .. leg.request_id .. leg.rid))\n"
        "edit.set('room', leg.room) edit.set('list', '[' .. table.concat(leg.rooms, ',') .. ']')\n"
        "edit.set_in('o', 'id', edit.str(leg.rid)) edit.remove('stream') edit.set('e', '\"\"')");
    for (unsigned i = 0; i < 3; i++) {
        const char *wanted[] = {"a=\"r_1req-1r\"", "a=\"rid1_1a-longer.id_of:2rid1\"",
                                "a=\"rid22_1xrid22\""};
        const char *own[] = {"o.id=\"r\"", "o.id=\"rid1\"", "o.id=\"rid22\""};
        char header[64];
        snprintf(header, sizeof(header), "X-Request-Id: %s", ids[i]);
        r.leg.request_id = bt_str(ids[i]);
        r.leg.rid = i == 0 ? BT_STR("r") : i == 1 ? BT_STR("rid1") : BT_STR("rid22");
        r.leg.rooms = &rooms[i % 2];
        r.leg.room_count = 1;
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
        assert_edits(&r, "runs=1", header, "X-Client: ", wanted[i], own[i], "-stream", "e=\"\"",
                     i % 2 == 0 ? "room=9223372036854775807" : "room=7",
                     i % 2 == 0 ? "list=[9223372036854775807]" : "list=[7]", NULL);
    }
    assert_int_equal(r.edits.items[2].op, BT_EDIT_HEADER);
    assert_null(r.edits.items[2].value.p); /* it drops the header, and sets no empty one */
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "d=\"x\"", NULL);
    leg_fini(&r);
}

/* What the function has asked once is part of the kind; what it has not is none of its business. */
static void a_kind_is_what_was_asked(void **state)
{
    struct leg_run r;

    start(&r, "local _ = leg.prefill.host, leg.prefill.dp_rank, leg.has('n')\n"
              "if leg.stream then _ = leg.decode.version end");
    assert_run(&r, "runs=1");
    r.leg.prefill.port = 9;
    r.leg.decode_peer = (bt_dialect_peer_t){.name = BT_STR("d1"), .version = BT_STR("1")};
    assert_run(&r, "runs=1");
    r.leg.prefill.host = BT_STR("10.0.0.3");
    assert_run(&r, "runs=2");
    r.leg.prefill.dp_rank = 1;
    assert_run(&r, "runs=3");
    r.leg.body = BT_STR("{\"n\":1}");
    assert_run(&r, "runs=4");
    r.leg.body = BT_STR("{\"n\":2}"); /* of the same type */
    assert_run(&r, "runs=4");
    r.leg.path = BT_STR("/v1/chat/completions");
    assert_run(&r, "runs=5");
    r.leg.stream = true;
    assert_run(&r, "runs=6");
    r.leg.decode_peer.version = BT_STR("2"); /* asked since: it counts for all */
    assert_run(&r, "runs=7");
    r.leg.stream = false;
    assert_run(&r, "runs=8");
    assert_run(&r, "runs=8");
    r.leg.decode_peer = (bt_dialect_peer_t){.dp_rank = -1}; /* the plan leaves it open */
    assert_run(&r, "runs=9");
    leg_fini(&r);
}

/* A function that does not look at a reply may say something else where there is one. */
static void whether_there_is_a_reply_is_part_of_it(void **state)
{
    struct leg_run r;
    (void) state;

    start(&r, "edit.set('replied', leg.has_reply)");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "runs=1", "replied=false", NULL);
    for (unsigned i = 0; i < 2; i++) {
        r.leg.reply = i == 0 ? BT_STR("{}") : BT_STR("no JSON");
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
        assert_edits(&r, "runs=2", "replied=true", NULL);
    }
    leg_fini(&r);
}

static void assert_always_runs(struct leg_run *r, const char *first, const char *second)
{
    assert_run(r, first);
    assert_run(r, second);
}

static void what_has_no_template_runs(void **state)
{
    static const uint64_t rooms[] = {1, 2};
    struct leg_run r;

    start(&r, "");
    r.leg.prompt_count = 1;
    assert_always_runs(&r, "runs=1", "runs=2");
    r.leg.prompt_count = 0;
    r.leg.rooms = rooms;
    r.leg.room_count = 2;
    assert_always_runs(&r, "runs=3", "runs=4");
    r.leg.room_count = 0;
    r.leg.metaserver = BT_STR("http://x/?attempt=1");
    assert_always_runs(&r, "runs=5", "runs=6");
    r.leg.metaserver = BT_STR("");
    r.leg.request_id = BT_STR("a\"b"); /* would have to be quoted anew */
    assert_always_runs(&r, "runs=7", "runs=8");
    leg_fini(&r);
}

static void odd_functions_have_no_template(void **state)
{
    char body[512] = "";
    struct leg_run r;

    start(&r, "edit.set(leg.request_id, 1)");
    for (unsigned i = 0; i < 2; i++) { /* a run with stand-ins, and then one without, each time */
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
        assert_edits(&r, i == 0 ? "runs=2" : "runs=4", "req-1=1", NULL);
    }
    leg_fini(&r);
    for (unsigned i = 0; i < 9; i++)
        snprintf(body + strlen(body), sizeof(body) - strlen(body), "leg.has('k%u') ", i);
    start(&r, body);
    assert_run(&r, "runs=2");
    assert_run(&r, "runs=3"); /* known not to be fit */
    leg_fini(&r);
    start(&r, "for i = 1, 17 do edit.set('k' .. i, edit.str(leg.request_id)) end");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_int_equal(r.edits.count, 18);
    assert_true(bt_str_eq(r.edits.items[17].value, BT_STR("\"req-1\"")));
    leg_fini(&r);
}

static void refusals_are_told_of_this_leg(void **state)
{
    struct leg_run r;

    start(&r,
          "if not leg.prefill.engine_id then return nil, 'no engine for ' .. leg.request_id end\n"
          "if leg.has('bad') then error('bad ' .. leg.request_id) end");
    assert_refused(&r, false, "no engine for req-1");
    r.leg.prefill.engine_id = BT_STR("e"); /* since: nothing was kept */
    assert_run(&r, "runs=3");
    assert_run(&r, "runs=3");
    r.leg.body = BT_STR("{\"bad\":1}");
    assert_refused(&r, false, "bad req-1");
    r.leg.prefill.name = BT_STR("");
    r.leg.body = BT_STR("{}");
    assert_refused(&r, false, "has no prefill");
    leg_fini(&r);
}

/* A plan may leave decode open: a function that can do without it asks in protected mode, and what it gets then is an answer, too. */
static void whether_there_is_a_worker_is_asked(void **state)
{
    static const char *const runs[] = {"runs=1", "runs=2", "runs=3", "runs=2", "runs=3"};
    const bt_dialect_peer_t none = {.dp_rank = -1}, one = {.name = BT_STR("d0"), .dp_rank = 1};
    struct leg_run r;

    start(&r, "edit.set('known', (pcall(function() return leg.decode.version end)))");
    for (unsigned i = 0; i < 5; i++) { /* the second asks for more: the first is made anew */
        r.leg.decode_peer = i % 2 == 0 ? none : one;
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
        assert_edits(&r, runs[i], i % 2 == 0 ? "known=false" : "known=true", NULL);
    }
    leg_fini(&r);
}

static void edits_beside_them_are_counted(void **state)
{
    struct leg_run r;

    start(&r, "");
    assert_run(&r, "runs=1");
    bt_edits_init(&r.edits, &r.arena);
    for (unsigned i = 0; i < BT_EDITS_MAX; i++)
        assert_int_equal(bt_edits_remove(&r.edits, BT_STR(""), BT_STR("x")), 0);
    assert_int_equal(bt_dialect_edit(r.dialect, &r.leg, &r.edits, &r.reason), BT_DIALECT_BROKEN);
    assert_true(bt_str_find(r.reason, BT_STR("too many edits in one leg")) >= 0);
    leg_fini(&r);
}

/* More kinds than are kept: all are right, and what is kept has an end (LeakSanitizer sees to the rest). */
static void kinds_without_end(void **state)
{
    struct leg_run r;
    bt_str_t first = BT_STR_NULL;

    start(&r, "edit.set('host', edit.str(leg.prefill.host))");
    for (unsigned i = 0; i < 2500; i++) {
        char host[32], wanted[32];
        snprintf(host, sizeof(host), "h%u", i);
        snprintf(wanted, sizeof(wanted), "\"h%u\"", i);
        r.leg.prefill.host = bt_str(host);
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
        assert_true(bt_str_eq(r.edits.items[1].value, bt_str(wanted)));
        first = i == 0 ? r.edits.items[1].value : first;
    }
    assert_true(bt_str_eq(first, BT_STR("\"h0\""))); /* a leg's edits outlive its template */
    leg_fini(&r);
}

static void assert_run_of(struct leg_run *r, unsigned host, unsigned runs)
{
    char name[32], wanted[32];

    snprintf(name, sizeof(name), "h%u", host);
    snprintf(wanted, sizeof(wanted), "runs=%u", runs);
    r->leg.prefill.host = bt_str(name);
    bt_arena_fini(&r->arena); /* there are many legs */
    bt_arena_init(&r->arena);
    assert_run(r, wanted);
}

/* Kinds that do not come back take no place of those that do, but for a while only. */
static void those_that_are_kept_serve_on(void **state)
{
    const unsigned first_missed = 1024, last_missed = first_missed + 16 * 1024;
    struct leg_run r;

    start(&r, "local _ = leg.prefill.host");
    for (unsigned i = 0; i < last_missed; i++)
        assert_run_of(&r, i, i + 1);
    assert_run_of(&r, 0, 1);
    assert_run_of(&r, 1023, 1024);
    assert_run_of(&r, first_missed, last_missed + 1); /* all are made anew */
    assert_run_of(&r, first_missed, last_missed + 1);
    assert_run_of(&r, 0, last_missed + 2);
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_leg_has_its_own_ids),
        cmocka_unit_test(a_kind_is_what_was_asked),
        cmocka_unit_test(whether_there_is_a_reply_is_part_of_it),
        cmocka_unit_test(what_has_no_template_runs),
        cmocka_unit_test(odd_functions_have_no_template),
        cmocka_unit_test(refusals_are_told_of_this_leg),
        cmocka_unit_test(whether_there_is_a_worker_is_asked),
        cmocka_unit_test(edits_beside_them_are_counted),
        cmocka_unit_test(kinds_without_end),
        cmocka_unit_test(those_that_are_kept_serve_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

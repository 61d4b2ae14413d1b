/* The help is made from the tables; what a spec can see is that nothing is left out and that lines stay readable. */
#include "config/help.h"

#include "config/flag.h"

#include "load.h"

static bt_text_t made(void (*make)(bt_text_t *out))
{
    bt_text_t t;
    bt_text_init(&t);
    make(&t);
    assert_false(t.failed);
    return t;
}

static void run_names_every_flag(void **state)
{
    bt_text_t t = made(bt_help_run);
    char want[96];
    for (unsigned i = 0; i < bt_flag_count; i++) {
        bool has_no = bt_flags[i].kind != BT_FLAG_ACTION && bt_flag_is_switch(&bt_flags[i]);
        snprintf(want, sizeof want, "\n  --%s%s", has_no ? "[no-]" : "", bt_flags[i].name);
        if (strstr(t.data, want) == NULL)
            fail_msg("%s is not in the help", want);
        assert_non_null(bt_flags[i].help);
    }
    for (unsigned i = 0; i < BT_GROUP_COUNT; i++)
        assert_non_null(strstr(t.data, bt_flag_group_title((enum bt_flag_group) i)));
    assert_non_null(strstr(t.data, "\nExamples\n"));
    bt_text_fini(&t);
}

static void file_names_every_key(void **state)
{
    bt_text_t t = made(bt_help_file);
    char want[96];
    for (unsigned i = 0; i < bt_flag_count; i++) {
        snprintf(want, sizeof want, "\n  %s ", bt_flags[i].name);
        for (char *p = want; *p != '\0'; p++)
            *p = *p == '-' ? '_' : *p;
        if (bt_flags[i].kind != BT_FLAG_ACTION && strstr(t.data, want) == NULL && strlen(want) < 34)
            fail_msg("%s is not in the help", want);
    }
    for (unsigned i = 0; i < bt_worker_key_count; i++) {
        snprintf(want, sizeof want, "\n  %s ", bt_worker_keys[i].name);
        assert_non_null(strstr(t.data, want));
    }
    bt_text_fini(&t);
}

static void peers_names_every_flag_and_policy(void **state)
{
    bt_text_t t = made(bt_help_peers);
    char want[96];
    for (unsigned i = 0; i < bt_peer_flag_count; i++) {
        snprintf(want, sizeof want, "\n  --%s", bt_peer_flags[i].name);
        assert_non_null(strstr(t.data, want));
    }
    for (const bt_peer_policy_t *p = bt_peer_policies; p->theirs != NULL; p++)
        assert_non_null(strstr(t.data, p->theirs));
    bt_text_fini(&t);
    t = made(bt_help_overview);
    assert_non_null(strstr(t.data, "baton help peers"));
    bt_text_fini(&t);
}

static void table_has_a_row_for_each(void **state)
{
    bt_text_t t = made(bt_help_table);
    unsigned rows = 0, cells = 0;
    for (const char *p = t.data; *p != '\0'; p++) {
        cells += *p == '\t';
        if (*p != '\n')
            continue;
        rows++;
        assert_int_equal(cells, 4 + (cells > 4)); /* a key's row has 5 cells, a flag's 6 */
        cells = 0;
    }
    unsigned want = bt_flag_count + bt_worker_key_count + 16;
    for (unsigned i = 0; i < bt_flag_count; i++)
        want += bt_flags[i].kind != BT_FLAG_ACTION;
    assert_int_equal(rows, want);
    assert_non_null(strstr(t.data, "\t[no-]access-log\t\t\t"));
    assert_non_null(strstr(t.data, "\tlog-level\tLEVEL\terror|warn|info|debug\t"));
    assert_non_null(strstr(t.data, "key\ttop\tlog_level\tone of error, warn, info, debug\t"));
    bt_text_fini(&t);
}

static void lines_fit(void **state)
{
    void (*const all[])(bt_text_t *) = {bt_help_overview, bt_help_run, bt_help_file, bt_help_peers};
    for (size_t i = 0; i < 4; i++) {
        bt_text_t t = made(all[i]);
        for (const char *line = t.data; *line != '\0'; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 120)
                fail_msg("too long: %.*s", (int) strcspn(line, "\n"), line);
        bt_text_fini(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_names_every_flag),
        cmocka_unit_test(file_names_every_key),
        cmocka_unit_test(peers_names_every_flag_and_policy),
        cmocka_unit_test(table_has_a_row_for_each),
        cmocka_unit_test(lines_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What an SGLang engine says of its role. */
#include "cluster/roles/role_report.h"
#include "help.h"

static int read_text(const char *json)
{
    enum bt_role role = BT_ROLE_HYBRID;
    const int rc = bt_role_report_read(bt_str(json), &role);

    return rc < 0 ? rc : (int) role;
}

static void the_live_role_counts(void **state)
{
    assert_int_equal(read_text("{\"disaggregation_mode\":\"prefill\",\"internal_states\":"
                               "[{\"x\":[1],\"disaggregation_mode\":\"decode\"},{}]}"),
                     BT_ROLE_DECODE);
    assert_int_equal(read_text("{\"internal_states\":[{\"disaggregation_mode\":\"prefill\"}]}"),
                     BT_ROLE_PREFILL);
}

static void nothing_said_is_no_role(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{\"disaggregation_mode\":\"decode\"}", /* as it was started */
        "{\"internal_states\":[]}",
        "{\"internal_states\":{}}",
        "{\"internal_states\":[7]}",
        "{\"internal_states\":[{}]}",
        "{\"internal_states\":[{\"disaggregation_mode\":null}]}",
        "{\"internal_states\":[{\"disaggregation_mode\":\"null\"}]}",
        "{\"internal_states\":[{\"disaggregation_mode\":\"a role with a very long name\"}]}",
        "{\"internal_states\":[{\"disaggregation_mode\":\"decode\"}",
    };

    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (read_text(texts[i]) != BT_E_INVAL)
            fail_msg("%s", texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_live_role_counts),
        cmocka_unit_test(nothing_said_is_no_role),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

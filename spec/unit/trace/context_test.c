#include "trace/context.h"
#include "unit.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static bool parses(const char *text)
{
    bt_trace_context_t context;

    return bt_trace_parse(bt_str(text), &context);
}

static void what_is_printed_is_read_again(void **state)
{
    bt_trace_context_t context;
    char text[BT_TRACE_PARENT_CHARS];

    bt_trace_print(text, TRACE, UINT64_C(0x00f067aa0ba902b7), true);
    assert_memory_equal(text, "00-" TRACE "-" SPAN "-01", sizeof(text));
    assert_true(bt_trace_parse((bt_str_t){text, sizeof(text)}, &context));
    assert_memory_equal(context.trace, TRACE, BT_TRACE_ID_CHARS);
    assert_int_equal(context.parent, UINT64_C(0x00f067aa0ba902b7));
    assert_true(context.is_sampled);
}

static void traceparent_is_strict(void **state)
{
    assert_true(parses("00-" TRACE "-" SPAN "-00"));
    assert_true(parses("00-" TRACE "-" SPAN "-ff")); /* other flags mean nothing here */
    assert_true(parses("cc-" TRACE "-" SPAN "-01"));
    assert_true(parses("cc-" TRACE "-" SPAN "-01-what the future brings"));
    assert_false(parses("cc-" TRACE "-" SPAN "-01."));
    assert_false(parses("00-" TRACE "-" SPAN "-01-"));
    assert_false(parses("00-" TRACE "-" SPAN "-0"));
    assert_false(parses("ff-" TRACE "-" SPAN "-01"));
    assert_false(parses("0G-" TRACE "-" SPAN "-01"));
    assert_false(parses("00-4BF92f3577b34da6a3ce929d0e0e4736-" SPAN "-01"));
    assert_false(parses("00-00000000000000000000000000000000-" SPAN "-01"));
    assert_false(parses("00-" TRACE "-0000000000000000-01"));
    assert_false(parses("00_" TRACE "-" SPAN "-01"));
    assert_false(parses(""));
}

static bool is_state(const char *text)
{
    unsigned members = 0;

    return bt_trace_state_ok(bt_str(text), &members);
}

static void tracestate_is_strict(void **state)
{
    char many[33 * 4 + 1] = "";
    unsigned members = 0;

    assert_true(is_state(""));
    assert_true(is_state("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"));
    assert_true(is_state(" a=1 ,\tb=2,,c=3 x y"));
    assert_true(is_state("0tenant@sys=1"));
    assert_false(is_state("0a=1"));
    assert_false(is_state("A=1"));
    assert_false(is_state("a"));
    assert_false(is_state("a="));
    assert_false(is_state("=1"));
    assert_false(is_state("a=1=2"));
    assert_false(is_state("a b=1"));
    assert_false(is_state("t@0sys=1"));
    assert_false(is_state("@sys=1"));
    assert_false(is_state("a=\x7f"));
    for (unsigned i = 0; i < 32; i++)
        strcat(many, "a=1,");
    assert_true(bt_trace_state_ok(bt_str(many), &members));
    assert_int_equal(members, 32);
    assert_false(bt_trace_state_ok(BT_STR("b=1"), &members)); /* those of all headers count */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_is_read_again),
        cmocka_unit_test(traceparent_is_strict),
        cmocka_unit_test(tracestate_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

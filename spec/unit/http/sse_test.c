/* Event streams cut everywhere: events, payloads, counts, limits. */
#include "http/sse.h"

#include "base/err.h"
#include "base/rand.h"
#include "fuzz/sse_oracle.h"
#include "unit.h"

#include <stdio.h>

static void assert_str(bt_str_t got, const char *want)
{
    assert_non_null(got.p);
    assert_int_equal(got.n, strlen(want));
    assert_memory_equal(got.p, want, got.n);
}

/* Events of `stream` cut at `cut`, printed as [event]. */
static void split_at(const char *stream, size_t cut, char *out, size_t size)
{
    bt_str_t pieces[2] = {{stream, cut}, {stream + cut, strlen(stream) - cut}}, event;
    bt_sse_t sse;
    size_t len = 0;

    bt_sse_init(&sse, 1000);
    out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        size_t at = 0;
        while (bt_sse_next(&sse, pieces[i], &at, &event) == 1)
            len += (size_t) snprintf(out + len, size - len, "[%.*s]", BT_STR_ARG(event));
        assert_int_equal(at, pieces[i].n);
    }
    bt_sse_fini(&sse);
}

static void test_lf_events_are_byte_exact_at_every_cut(void **state)
{
    const char *stream =
        ": hello\n\nevent: x\ndata: 1\n\n\n\ndata: {\"a\":2}\nid: 7\n\ndata: [DONE]\n\ndata: open";
    char out[256];

    for (size_t cut = 0; cut <= strlen(stream); cut++) {
        split_at(stream, cut, out, sizeof(out));
        assert_string_equal(
            out, "[event: x\ndata: 1\n\n][data: {\"a\":2}\nid: 7\n\n][data: [DONE]\n\n]");
    }
}

static void test_crlf_events_at_every_cut(void **state)
{
    const char *stream = "data: 1\r\n\r\ndata: 2\r\n\r\n";
    char out[256];

    for (size_t cut = 0; cut <= strlen(stream); cut++) {
        split_at(stream, cut, out, sizeof(out));
        /* A CR that ends a piece ends its line: the event does not wait for the LF. */
        const char *first = cut == 10 ? "[data: 1\r\n\r]" : "[data: 1\r\n\r\n]";
        const char *second = cut == 21 ? "[data: 2\r\n\r]" : "[data: 2\r\n\r\n]";
        char want[64];
        snprintf(want, sizeof(want), "%s%s", first, second);
        assert_string_equal(out, want);
    }
}

static void test_cr_events_and_mixed_ends(void **state)
{
    char out[256];

    split_at("data: 1\r\rdata: 2\r\r", 0, out, sizeof(out));
    assert_string_equal(out, "[data: 1\r\r][data: 2\r\r]");
    split_at("data: 1\r\n\ndata: 2\n\r\ndata: 3\r\r\n", 0, out, sizeof(out));
    assert_string_equal(out, "[data: 1\r\n\n][data: 2\n\r\n][data: 3\r\r\n]");
}

static void test_event_is_told_at_its_cr(void **state)
{
    bt_sse_t sse;

    bt_sse_init(&sse, 0);
    assert_int_equal(bt_sse_count(&sse, "data: 1\r\n\r", 10), 1);
    assert_int_equal(bt_sse_count(&sse, "\n", 1), 0);
    assert_int_equal(bt_sse_count(&sse, "\n", 1), 0);
    assert_int_equal(bt_sse_count(&sse, "data: 2\n\n", 9), 1);
    assert_int_equal(sse.events, 2);
    bt_sse_fini(&sse);
}

static void test_blocks_without_data_do_not_count(void **state)
{
    const char *silent = ": ping\n\nevent: ping\n\nid: 1\nretry: 5\n\ndatum: 1\n\n data: "
                         "1\n\ndat\n\nDATA: 1\n\n\n\n";
    bt_sse_t sse;

    bt_sse_init(&sse, 0);
    assert_int_equal(bt_sse_count(&sse, silent, strlen(silent)), 0);
    assert_int_equal(bt_sse_count(&sse, "data\n\ndata:\n\ndata:x\n\n", 21), 3);
    bt_sse_fini(&sse);
}

static void test_whole_event_is_a_slice(void **state)
{
    bt_str_t stream = BT_STR("data: 1\n\ndata: 2\n\n"), event;
    bt_sse_t sse;
    size_t at = 0;

    bt_sse_init(&sse, 0); /* a limit of 0: collecting anything would fail */
    assert_int_equal(bt_sse_next(&sse, stream, &at, &event), 1);
    assert_ptr_equal(event.p, stream.p);
    assert_int_equal(bt_sse_next(&sse, stream, &at, &event), 1);
    assert_ptr_equal(event.p, stream.p + 9);
    assert_int_equal(bt_sse_next(&sse, stream, &at, &event), 0);
    assert_null(sse.carry);
    bt_sse_fini(&sse);
}

static void test_limit(void **state)
{
    bt_str_t event;
    bt_sse_t sse;
    size_t at = 0;

    bt_sse_init(&sse, 10);
    assert_int_equal(bt_sse_next(&sse, BT_STR("data: 6789"), &at, &event), 0);
    at = 0; /* 10 bytes are held; the two that end the event are too many */
    assert_int_equal(bt_sse_next(&sse, BT_STR("\n\ndata: 1\n\n"), &at, &event), BT_E_LIMIT);
    assert_int_equal(at, 2);
    assert_int_equal(sse.events, 1);
    assert_int_equal(bt_sse_count(&sse, "data: 1\n\n", 9), 1);
    at = 0;
    assert_int_equal(bt_sse_next(&sse, BT_STR("data: 67890"), &at, &event), BT_E_LIMIT);
    bt_sse_fini(&sse);
}

static void test_data(void **state)
{
    char out[16];

    assert_str(bt_sse_data(BT_STR("data: {\"a\": 1}\n\n"), out, sizeof(out)), "{\"a\": 1}");
    assert_str(bt_sse_data(BT_STR("event: x\r\ndata:y \r\nid: 1\r\n\r\n"), out, sizeof(out)), "y ");
    assert_str(bt_sse_data(BT_STR("data:  z\r\r"), out, sizeof(out)), " z");
    assert_str(bt_sse_data(BT_STR("data\n\n"), out, sizeof(out)), "");
    assert_str(bt_sse_data(BT_STR("data: a\n: no\ndata\ndata:b\n\n"), out, sizeof(out)), "a\n\nb");
    assert_str(bt_sse_data(BT_STR("data: 0123456789\ndata: 0123456789\n\n"), out, sizeof(out)),
               "0123456789\n01234");
    assert_null(bt_sse_data(BT_STR(": x\nevent: data\n\n"), out, sizeof(out)).p);
    assert_null(bt_sse_data(BT_STR_NULL, out, sizeof(out)).p);
}

static size_t cut_random(size_t at, void *arg)
{
    (void) at;
    (void) arg;
    return bt_rand_below(4) == 0 ? 1 + bt_rand_below(400) : 1 + bt_rand_below(6);
}

static size_t cut_first(size_t at, void *arg)
{
    return at == 0 && *(size_t *) arg > 0 ? *(size_t *) arg : SIZE_MAX;
}

static size_t random_stream(char *out, size_t size)
{
    static const char *const words[] = {"data: ",
                                        "data:",
                                        "data",
                                        "dat",
                                        "d",
                                        ":",
                                        " ",
                                        "\n",
                                        "\n\n",
                                        "\r\n",
                                        "\r\n\r\n",
                                        "\r",
                                        "\r\r",
                                        "x",
                                        "event: y",
                                        "data: {\"k\":\"v\"}\n\n",
                                        "\xc3\xa4",
                                        "",
                                        "data: [DONE]\r\n\r\n",
                                        ": ping\n\n"};
    size_t len = 0;

    for (uint64_t left = 1 + bt_rand_below(60); left > 0; left--) {
        const char *word = words[bt_rand_below(sizeof(words) / sizeof(*words))];
        if (len + strlen(word) + 300 > size)
            break;
        memcpy(out + len, word, strlen(word));
        len += strlen(word);
        if (bt_rand_below(40) == 0) { /* longer than the walker's window */
            memset(out + len, 'L', 300);
            len += 300;
        }
    }
    return len;
}

static void test_any_stream_any_cuts_against_the_oracle(void **state)
{
    static char stream[8192];
    size_t events = 0;

    bt_rand_seed(20);
    for (int i = 0; i < 20000; i++) {
        size_t n = random_stream(stream, sizeof(stream));
        sse_oracle_t oracle;
        sse_oracle_init(&oracle, stream, n);
        events += oracle.count;
        sse_oracle_check(&oracle, stream, n, cut_random, NULL);
        sse_oracle_fini(&oracle);
    }
    assert_true(events > 20000); /* the streams have events, or this says nothing */
}

static void test_every_cut_against_the_oracle(void **state)
{
    static const char stream[] = ": c\r\n\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\ndata: "
                                 "\xc3\xa4\r\rdata\n\ndata: [DONE]\n\n";
    sse_oracle_t oracle;

    sse_oracle_init(&oracle, stream, sizeof(stream) - 1);
    assert_int_equal(oracle.count, 4);
    for (size_t cut = 0; cut < sizeof(stream); cut++)
        sse_oracle_check(&oracle, stream, sizeof(stream) - 1, cut_first, &cut);
    sse_oracle_fini(&oracle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lf_events_are_byte_exact_at_every_cut),
        cmocka_unit_test(test_crlf_events_at_every_cut),
        cmocka_unit_test(test_cr_events_and_mixed_ends),
        cmocka_unit_test(test_event_is_told_at_its_cr),
        cmocka_unit_test(test_blocks_without_data_do_not_count),
        cmocka_unit_test(test_whole_event_is_a_slice),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_every_cut_against_the_oracle),
        cmocka_unit_test(test_any_stream_any_cuts_against_the_oracle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which headers reach workers, and which the client. */
#include "dispatch/attempt_rig.h"

#define FROM_CLIENT                                                                                \
    "Authorization: Bearer client-key\r\nX-Api-Key: client-key\r\nX-Custom: kept\r\n"              \
    "X-Baton-Pool: mine\r\nX-Override-Model: mine\r\nX-Data-Parallel-Rank: 7\r\n"                  \
    "X-SMG-Target-Worker: mine\r\nAccept-Encoding: gzip\r\nConnection: x-hop\r\nX-Hop: mine\r\n"

static void asked_of_s0(const bt_dispatch_config_t *config)
{
    rig_start(&(struct rig_options){.is_single_only = true, .config = *config});
    ask_with("/v1/completions", FROM_CLIENT, BODY);
    take(S0);
}

static bool heard_key(void)
{
    return heard(S0, "client-key");
}

static void what_a_client_may_say(void **state)
{
    asked_of_s0(&(bt_dispatch_config_t){0});
    assert_true(heard(S0, "X-Custom: kept\r\n"));
    assert_true(heard(S0, "X-Request-Id: req-1\r\n"));
    assert_true(heard(S0, "Accept-Encoding: identity\r\n"));
    assert_false(heard(S0, "mine"));
    assert_false(heard(S0, "gzip"));
    assert_false(heard(S0, "Rank: 7"));
    assert_false(heard(S0, "Host: h\r\n"));
    answer(S0, 200, REPLY);
    answered("hello");
}

/* Neither side has keys of ours: the engine asks for its own. */
static void a_clients_key_goes_through(void **state)
{
    asked_of_s0(&(bt_dispatch_config_t){0});
    assert_true(heard(S0, "Authorization: Bearer client-key\r\n"));
    assert_true(heard(S0, "X-Api-Key: client-key\r\n"));
    answer(S0, 200, REPLY);
    answered("hello");
}

static void workers_have_a_key_of_ours(void **state)
{
    asked_of_s0(&(bt_dispatch_config_t){.worker_api_key = "ours"});
    assert_true(heard(S0, "Authorization: Bearer ours\r\n"));
    assert_false(heard(S0, "Authorization: Bearer client-key"));
    answer(S0, 200, REPLY);
    answered("hello");
}

/* What opens the gateway is no worker's business, whether workers have a key or not. */
static void a_key_for_the_gateway_stays_here(void **state)
{
    asked_of_s0(&(bt_dispatch_config_t){.asks_identity = true});
    assert_false(heard_key());
    answer(S0, 200, REPLY);
    answered("hello");
}

/* Browsers send the cookies of the admin port to this one too. */
static void the_dashboards_cookie_stays_here(void **state)
{
    static const char *const cases[][2] = {
        {"Cookie: a=b; baton_ui_0123abcd=secret; c= \"d\" ;e\r\n", "Cookie: a=b; c= \"d\" ;e\r\n"},
        {"cookie: baton_ui_0123abcd=secret; c=d\r\n", "cookie: c=d\r\n"},
        {"Cookie: c=d;baton_ui_0123abcd=secret\r\n", "Cookie: c=d\r\n"},
        {"Cookie: baton_ui_1=secret;baton_ui_2=secret\r\nX-Last: 1\r\n", "X-Last: 1\r\n"},
        {"Cookie: not_baton_ui_1=x; y=baton_ui_2;\r\n",
         "Cookie: not_baton_ui_1=x; y=baton_ui_2;\r\n"},
        {"Cookie: a=b ;; c=d;\r\n", "Cookie: a=b ;; c=d;\r\n"},
    };

    rig_start(&(struct rig_options){.is_single_only = true});
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ask_with("/v1/completions", cases[i][0], BODY);
        take(S0);
        assert_true(heard(S0, cases[i][1]));
        assert_false(heard(S0, "secret"));
        assert_int_equal(heard(S0, "ookie: "), strstr(cases[i][1], "ookie: ") != NULL);
        answer(S0, 200, REPLY);
        answered("hello");
    }
}

static void what_a_worker_may_say(void **state)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    ask();
    take(S0);
    answer_with(S0, 200,
                "X-Engine: kept\r\nX-Baton-Worker: mine\r\nX-Request-Id: mine\r\n"
                "Location: http://10.0.0.1/mine\r\nConnection: x-hop\r\nX-Hop: mine\r\n",
                REPLY);
    answered("X-Engine: kept\r\n");
    assert_false(client_got("mine"));
    assert_true(client_got("x-request-id: req-1\r\n"));
    assert_true(client_got("x-baton-worker: s0\r\n"));
}

static void a_path_is_no_address(void **state)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    ask();
    take(S0);
    answer_with(S0, 200, "Location: /v1/things/1\r\nContent-Location: //10.0.0.1/mine\r\n", REPLY);
    answered("Location: /v1/things/1\r\n");
    assert_false(client_got("mine"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(what_a_client_may_say),
        CASE_OF(a_clients_key_goes_through),
        CASE_OF(workers_have_a_key_of_ours),
        CASE_OF(a_key_for_the_gateway_stays_here),
        CASE_OF(the_dashboards_cookie_stays_here),
        CASE_OF(what_a_worker_may_say),
        CASE_OF(a_path_is_no_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

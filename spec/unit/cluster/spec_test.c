#include "help.h"

/* A spec with every member said. */
static void fill(bt_worker_spec_t *s)
{
    make_spec(s, BT_ROLE_PREFILL, "http://h:1", "MultiConnector");
    s->name = text("n");
    s->models[s->model_count++] = text("m0");
    s->models[s->model_count++] = text("m1");
    s->engine = BT_ENGINE_VLLM;
    s->children[s->child_count++] = text("NixlConnector");
    s->children[s->child_count++] = text("Other");
    s->dispatch_profile = text("handoff");
    s->bootstrap_port = 8998;
    s->dp_size = s->tp_size = s->pp_size = 2;
    s->dp_rank = 1;
    s->engine_id = text("e");
    s->kv_host = text("k");
    s->kv_address = text("k:1");
    s->version = text("v");
    s->transfer_group = text("g");
    s->lease_ms = 7;
    s->zone = text("z");
    s->labels = text("a=b");
    s->api_key = text("key");
}

static void set_text(char **member)
{
    free(*member);
    *member = text("changed");
}

static void a_copy_is_the_same_and_apart(void **state)
{
    bt_worker_spec_t a, b;
    fill(&a);
    assert_int_equal(bt_worker_spec_copy(&b, &a), 0);
    assert_true(bt_worker_spec_same(&a, &b));
    assert_string_equal(b.name, "n");
    assert_ptr_not_equal(a.models[1], b.models[1]);
    bt_worker_spec_fini(&a);
    assert_string_equal(b.models[1], "m1");
    assert_string_equal(b.api_key, "key");
    bt_worker_spec_fini(&b);
    assert_null(b.url);
}

#define CHANGE(code)                                                                               \
    do {                                                                                           \
        bt_worker_spec_t b_;                                                                       \
        assert_int_equal(bt_worker_spec_copy(&b_, &a), 0);                                         \
        bt_worker_spec_t *b = &b_;                                                                 \
        code;                                                                                      \
        if (bt_worker_spec_same(&a, b))                                                            \
            fail_msg("not seen: %s", #code);                                                       \
        bt_worker_spec_fini(b);                                                                    \
    } while (0)

static void every_member_counts(void **state)
{
    bt_worker_spec_t a;
    fill(&a);
    CHANGE(set_text(&b->url));
    CHANGE(b->role = BT_ROLE_DECODE);
    CHANGE(set_text(&b->models[1]));
    CHANGE(b->engine = BT_ENGINE_MINDIE);
    CHANGE(set_text(&b->connector));
    CHANGE(set_text(&b->children[0]));
    CHANGE(set_text(&b->dispatch_profile));
    CHANGE(b->bootstrap_port = 1);
    CHANGE(b->dp_size = 1);
    CHANGE(b->tp_size = 1);
    CHANGE(b->pp_size = 1);
    CHANGE(b->dp_rank = 0);
    CHANGE(set_text(&b->engine_id));
    CHANGE(set_text(&b->kv_host));
    CHANGE(set_text(&b->kv_address));
    CHANGE(set_text(&b->version));
    CHANGE(set_text(&b->transfer_group));
    CHANGE(b->lease_ms = 8);
    CHANGE(set_text(&b->zone));
    CHANGE(set_text(&b->labels));
    CHANGE(set_text(&b->api_key));
    CHANGE(b->models[b->model_count++] = text("m2"));
    CHANGE((free(b->version), b->version = NULL));
    bt_worker_spec_fini(&a);
}

/* What a worker says of itself is no reason to make another one when the file is read again. */
static void what_was_registered_is_copied_but_not_compared(void **state)
{
    bt_worker_spec_t a, b;
    fill(&a);
    strcpy(a.registered.kv_address, "10.0.0.1:1");
    a.registered.dp_size = 4;
    assert_int_equal(bt_worker_spec_copy(&b, &a), 0);
    assert_string_equal(b.registered.kv_address, "10.0.0.1:1");
    assert_int_equal(b.registered.dp_size, 4);
    b.registered = (bt_registered_t){.dp_size = 1};
    assert_true(bt_worker_spec_same(&a, &b));
    bt_worker_spec_fini(&a);
    bt_worker_spec_fini(&b);
}

static void names_do_not_and_ranks_are_the_same_in_both_places(void **state)
{
    bt_worker_spec_t a, b;
    make_spec(&a, BT_ROLE_DECODE, "http://h:1@3", "nixl");
    make_spec(&b, BT_ROLE_DECODE, "http://h:1@3", "nixl");
    b.name = text("other");
    b.dp_rank = 3;
    assert_true(bt_worker_spec_same(&a, &b));
    b.dp_rank = 2;
    assert_false(bt_worker_spec_same(&a, &b));
    bt_worker_spec_fini(&a);
    bt_worker_spec_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_the_same_and_apart),
        cmocka_unit_test(every_member_counts),
        cmocka_unit_test(what_was_registered_is_copied_but_not_compared),
        cmocka_unit_test(names_do_not_and_ranks_are_the_same_in_both_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

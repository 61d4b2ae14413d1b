/* The intrusive list: order, idempotent removal, removal while walking. */
#include "base/list.h"
#include "unit.h"

struct node {
    int value;
    bt_list_t link;
};

static int value_of(bt_list_t *l)
{
    return bt_container_of(l, struct node, link)->value;
}

static void test_order(void **state)
{
    bt_list_t head, *it, *tmp;
    struct node n[3] = {{.value = 1}, {.value = 2}, {.value = 0}};
    int expected = 0;

    bt_list_init(&head);
    assert_true(bt_list_empty(&head));
    bt_list_push(&head, &n[0].link);
    bt_list_push(&head, &n[1].link);
    bt_list_push_front(&head, &n[2].link);
    bt_list_each (&head, it, tmp)
        assert_int_equal(value_of(it), expected++);
    assert_int_equal(expected, 3);
}

static void test_remove_is_idempotent_and_safe_while_walking(void **state)
{
    bt_list_t head, *it, *tmp;
    struct node n[4];
    int left = 0;

    bt_list_init(&head);
    for (int i = 0; i < 4; i++) {
        n[i].value = i;
        bt_list_push(&head, &n[i].link);
    }
    bt_list_each (&head, it, tmp)
        if (value_of(it) % 2 == 0)
            bt_list_remove(it);
    bt_list_remove(&n[0].link);
    assert_true(bt_list_empty(&n[0].link));
    bt_list_each (&head, it, tmp) {
        assert_int_equal(value_of(it) % 2, 1);
        left++;
    }
    assert_int_equal(left, 2);
    bt_list_remove(&n[1].link);
    bt_list_remove(&n[3].link);
    assert_true(bt_list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_remove_is_idempotent_and_safe_while_walking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

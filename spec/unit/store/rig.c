/* What the specs of core/store share. */
#include "rig.h"

#include "base/rand.h"

#include <stdio.h>

static char space[32];

static void on_up(void *user)
{
    ((rig_t *) user)->ups++;
}

static void on_freed(void *user)
{
    ((rig_t *) user)->is_freed = true;
}

bt_str_t rig_space(void)
{
    return bt_str(space);
}

void rig_join(rig_t *rig, bt_store_t *store)
{
    memset(rig, 0, sizeof(*rig));
    assert_int_equal(bt_loop_init(&rig->loop, 0), 0);
    rig->store = store;
    assert_int_equal(bt_store_client_new(&rig->client, store, &rig->loop, on_up, rig), 0);
}

void rig_open(rig_t *rig, const bt_store_config_t *config)
{
    bt_store_t *store;
    char err[256];
    int rc = bt_store_open(&store, config, err, sizeof(err));

    if (rc != 0)
        fail_msg("%s", err);
    snprintf(space, sizeof(space), "s%llx", (unsigned long long) bt_rand_u64());
    rig_join(rig, store);
}

void rig_leave(rig_t *rig)
{
    bt_store_client_free(rig->client, on_freed, rig);
    TURN_UNTIL(&rig->loop, rig->is_freed);
    bt_loop_fini(&rig->loop);
}

void rig_close(rig_t *rig)
{
    rig_leave(rig);
    bt_store_close(rig->store);
}

enum bt_store_health rig_health(rig_t *rig)
{
    char why[256];

    return bt_store_health(rig->store, why, sizeof(why));
}

const char *rig_why(rig_t *rig)
{
    static char why[256];

    bt_store_health(rig->store, why, sizeof(why));
    return why;
}

void rig_wait_health(rig_t *rig, enum bt_store_health health)
{
    TURN_UNTIL(&rig->loop, rig_health(rig) == health);
}

/* A table's rows come in any order, a log's in its own. */
static void add_row(told_t *told, const bt_store_row_t *row, bool sorts)
{
    char name[64], value[64];
    unsigned at = told->row_count++;

    snprintf(name, sizeof(name), "%.*s", BT_STR_ARG(row->name));
    snprintf(value, sizeof(value), "%.*s", BT_STR_ARG(row->value));
    for (; sorts && at > 0 && strcmp(told->names[at - 1], name) > 0; at--) {
        memcpy(told->names[at], told->names[at - 1], 64);
        memcpy(told->values[at], told->values[at - 1], 64);
    }
    memcpy(told->names[at], name, 64);
    memcpy(told->values[at], value, 64);
}

void rig_note(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    told_t *told = op->user;

    told->times++;
    told->rc = reply->rc;
    assert_true((reply->rc != 0) == (reply->error != NULL));
    snprintf(told->error, sizeof(told->error), "%s", reply->error != NULL ? reply->error : "");
    told->number = reply->number;
    told->text_n = reply->text.n;
    snprintf(told->text, sizeof(told->text), "%.*s", BT_STR_ARG(reply->text));
    told->is_none = reply->is_none;
    told->is_gap = reply->is_gap;
    told->window = reply->window;
    told->left_ms = reply->left_ms;
    told->row_count = 0;
    for (unsigned i = 0; i < reply->row_count && i < RIG_ROWS; i++)
        add_row(told, &reply->rows[i], op->what != BT_STORE_LOG_READ);
    told->row_count = reply->row_count;
    assert_null(op->client); /* may be used again */
}

told_t rig_ask(rig_t *rig, bt_store_op_t op)
{
    told_t told = {0};

    op.cb = rig_note;
    op.user = &told;
    bt_store_do(rig->client, &op);
    assert_int_equal(told.times, 0); /* never inside */
    TURN_UNTIL(&rig->loop, told.times == 1);
    return told;
}

told_t rig_do(rig_t *rig, bt_store_op_t op)
{
    told_t told = rig_ask(rig, op);

    if (told.rc != 0)
        fail_msg("%s: %s", bt_err_name(told.rc), told.error);
    return told;
}

/* rig.h - a loop with a store and a client of it, and a way to ask and wait. */
#ifndef SPEC_UNIT_STATE_RIG_H
#define SPEC_UNIT_STATE_RIG_H

#include "../loop/util.h"

#include "base/err.h"
#include "store/store.h"

#define RIG_ROWS 64

typedef struct rig {
    bt_loop_t loop;
    bt_store_t *store;
    bt_store_client_t *client;
    unsigned ups;
    bool is_freed;
} rig_t;

/* A reply that outlives its callback. */
typedef struct told {
    unsigned times;
    int rc;
    char error[256];
    int64_t number;
    char text[1024];
    size_t text_n;
    bool is_none, is_gap;
    uint64_t window, left_ms;
    char names[RIG_ROWS][64], values[RIG_ROWS][64]; /* sorted by name */
    unsigned row_count;
} told_t;

void rig_open(rig_t *rig, const bt_store_config_t *config);
void rig_close(rig_t *rig);
/* Another client on another loop of the same store. */
void rig_join(rig_t *rig, bt_store_t *store);
void rig_leave(rig_t *rig);
void rig_wait_health(rig_t *rig, enum bt_store_health health);
enum bt_store_health rig_health(rig_t *rig);
const char *rig_why(rig_t *rig);
/* A space that no other test has. */
bt_str_t rig_space(void);

/* For ops with user = told_t. */
void rig_note(bt_store_op_t *op, const bt_store_reply_t *reply);
told_t rig_ask(rig_t *rig, bt_store_op_t op);
/* The same, and rc must be 0. */
told_t rig_do(rig_t *rig, bt_store_op_t op);

#define OP(kind, name, ...)                                                                        \
    ((bt_store_op_t){                                                                              \
        .what = BT_STORE_##kind, .space = rig_space(), .key = BT_STR(name), ##__VA_ARGS__})

#endif

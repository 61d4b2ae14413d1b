/* gate.c - what all loops share: keys, ids, cancelling across loops. */
#include "base/text.h"
#include "dispatch/request.h"

#include <stdlib.h>

#define RESPONSES_REMEMBERED (1U << 14)

int bt_gate_init(bt_gate_t *gate, const bt_dispatch_config_t *config)
{
    memset(gate, 0, sizeof(*gate));
    gate->config = *config;
    bt_policy_errors_init(&gate->policy_errors);
    gate->ids = bt_ids_new();
    gate->responses = bt_affinity_new(RESPONSES_REMEMBERED);
    if (gate->ids != NULL && gate->responses != NULL)
        return 0;
    bt_gate_fini(gate);
    return BT_E_NOMEM;
}

void bt_gate_fini(bt_gate_t *gate)
{
    bt_ids_free(gate->ids);
    bt_affinity_free(gate->responses);
    gate->ids = NULL;
    gate->responses = NULL;
    bt_policy_errors_fini(&gate->policy_errors);
}

bool bt_gate_authorized(const bt_gate_t *gate, const bt_head_t *head, const bt_client_key_t **key_p)
{
    const bt_client_keys_t *keys = gate->config.client_keys;
    const bt_client_key_t *key = keys != NULL ? bt_client_key_find(keys, head) : NULL;

    if (key_p != NULL)
        *key_p = key;
    return keys == NULL || key != NULL;
}

bool bt_gate_is_admin(const bt_gate_t *gate, const bt_head_t *head)
{
    return gate->config.admin_key != NULL &&
           bt_str_is_secret(bt_str(gate->config.admin_key), bt_client_key_given(head));
}

/* One for all loops: the last that looks frees it, and says elsewhere what nobody here has found. */
struct cancel {
    bt_gate_t *gate;
    bool may_be_elsewhere;
    uint64_t owner;
    _Atomic unsigned waiting;
    _Atomic bool is_found;
    size_t n;
    char *id;
    struct cancel_letter {
        bt_msg_t msg;
        struct cancel *cancel;
        bt_dispatcher_t *d;
    } letters[];
};

static void on_cancel(bt_loop_t *loop, bt_msg_t *msg)
{
    struct cancel_letter *letter = bt_container_of(msg, struct cancel_letter, msg);
    struct cancel *c = letter->cancel;
    bt_gate_t *gate = c->gate;
    const bt_str_t id = {c->id, c->n};

    (void) loop;
    if (bt_dispatcher_cancel(letter->d, id, c->owner))
        atomic_store(&c->is_found, true);
    if (atomic_fetch_sub(&c->waiting, 1) > 1)
        return;
    if (c->may_be_elsewhere && !atomic_load(&c->is_found) && gate->cancel_elsewhere != NULL)
        gate->cancel_elsewhere(gate->cancel_elsewhere_user, id, c->owner);
    free(c);
}

static void cancel(bt_gate_t *gate, bt_str_t id, uint64_t owner, bool may_be_elsewhere)
{
    const unsigned count = gate->dispatcher_count;
    struct cancel *c = calloc(1, sizeof(*c) + count * sizeof(c->letters[0]) + id.n);

    if (c == NULL)
        return;
    *c = (struct cancel){
        .gate = gate, .may_be_elsewhere = may_be_elsewhere, .owner = owner, .n = id.n};
    atomic_init(&c->waiting, count);
    c->id = (char *) &c->letters[count];
    memcpy(c->id, id.p, id.n);
    for (unsigned i = 0; i < count; i++)
        c->letters[i] = (struct cancel_letter){.cancel = c, .d = gate->dispatchers[i]};
    if (count == 0)
        free(c);
    for (unsigned i = 0; i < count; i++) /* the last one may free it */
        bt_loop_post(gate->dispatchers[i]->loop, &c->letters[i].msg, on_cancel);
}

void bt_gate_cancel(bt_gate_t *gate, bt_str_t id, uint64_t owner)
{
    cancel(gate, id, owner, true);
}

void bt_gate_cancel_here(bt_gate_t *gate, bt_str_t id, uint64_t owner)
{
    cancel(gate, id, owner, false);
}

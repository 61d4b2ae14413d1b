/* dispatch_shared.c - what all loops share: keys, ids, cancelling across loops. */
#include "base/text.h"
#include "dispatch/ids.h"
#include "dispatch/response_affinity.h"

#include <stdlib.h>

#define RESPONSES_REMEMBERED (1U << 14)

int bt_dispatch_shared_init(bt_dispatch_shared_t *shared, const bt_dispatch_config_t *config)
{
    memset(shared, 0, sizeof(*shared));
    shared->config = *config;
    bt_policy_errors_init(&shared->policy_errors);
    shared->ids = bt_ids_new();
    shared->responses = bt_response_owners_new(RESPONSES_REMEMBERED);
    if (shared->ids != NULL && shared->responses != NULL)
        return 0;
    bt_dispatch_shared_fini(shared);
    return BT_E_NOMEM;
}

void bt_dispatch_shared_fini(bt_dispatch_shared_t *shared)
{
    bt_ids_free(shared->ids);
    bt_response_owners_free(shared->responses);
    shared->ids = NULL;
    shared->responses = NULL;
    bt_policy_errors_fini(&shared->policy_errors);
}

bool bt_dispatch_shared_authorized(const bt_dispatch_shared_t *shared, const bt_head_t *head,
                                   const bt_client_key_t **key_p)
{
    const bt_client_keys_t *keys = shared->config.client_keys;
    const bt_client_key_t *key = keys != NULL ? bt_client_key_find(keys, head) : NULL;

    if (key_p != NULL)
        *key_p = key;
    return keys == NULL || key != NULL;
}

bool bt_dispatch_shared_is_admin(const bt_dispatch_shared_t *shared, const bt_head_t *head)
{
    return shared->config.admin_key != NULL &&
           bt_str_is_secret(bt_str(shared->config.admin_key), bt_client_key_given(head));
}

/* One for all loops: the last that looks frees it, and says elsewhere what nobody here has found. */
struct cancel {
    bt_dispatch_shared_t *shared;
    bool may_be_elsewhere;
    uint64_t owner;
    _Atomic unsigned waiting;
    _Atomic bool is_found;
    size_t n;
    char *id;
    struct cancel_mail {
        bt_mail_t envelope;
        struct cancel *cancel;
        bt_dispatcher_t *d;
    } mails[];
};

static void on_cancel(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct cancel_mail *mail = bt_container_of(envelope, struct cancel_mail, envelope);
    struct cancel *c = mail->cancel;
    bt_dispatch_shared_t *shared = c->shared;
    const bt_str_t id = {c->id, c->n};

    (void) loop;
    if (bt_dispatcher_cancel(mail->d, id, c->owner))
        atomic_store(&c->is_found, true);
    if (atomic_fetch_sub(&c->waiting, 1) > 1)
        return;
    if (c->may_be_elsewhere && !atomic_load(&c->is_found) && shared->cancel_elsewhere != NULL)
        shared->cancel_elsewhere(shared->cancel_elsewhere_user, id, c->owner);
    free(c);
}

static void cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner, bool may_be_elsewhere)
{
    const unsigned count = shared->dispatcher_count;
    struct cancel *c = calloc(1, sizeof(*c) + count * sizeof(c->mails[0]) + id.n);

    if (c == NULL)
        return;
    *c = (struct cancel){
        .shared = shared, .may_be_elsewhere = may_be_elsewhere, .owner = owner, .n = id.n};
    atomic_init(&c->waiting, count);
    c->id = (char *) &c->mails[count];
    memcpy(c->id, id.p, id.n);
    for (unsigned i = 0; i < count; i++)
        c->mails[i] = (struct cancel_mail){.cancel = c, .d = shared->dispatchers[i]};
    if (count == 0)
        free(c);
    for (unsigned i = 0; i < count; i++) /* the last one may free it */
        bt_loop_post(shared->dispatchers[i]->loop, &c->mails[i].envelope, on_cancel);
}

void bt_dispatch_shared_cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner)
{
    cancel(shared, id, owner, true);
}

void bt_dispatch_shared_cancel_here(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner)
{
    cancel(shared, id, owner, false);
}

/* wait_store.c - how it works:
 *
 *      WINDOW_TAKE  -> share/quota.c (a chunk that was leased ahead, or a lease) -> answer
 *      WINDOW_GIVE  -> share/quota.c, at once; no answer
 *      all others   -> one operation of the loop's store client, with its own deadline (the store's op_ms)
 *
 * The client copies an operation's strings before it returns, so nothing of the VM is kept here. */
#include "generation/wait_store.h"

#include "base/buf.h"
#include "base/err.h"
#include "generation/wait.h"

#include <pthread.h>
#include <stdlib.h>

#define UP_WAIT_MS 1000 /* how long a client of the moment may take to reach the store */

struct bt_wait_store {
    bt_wait_store_cb cb;
    void *user;
    bool is_quota;
    bt_store_op_t op;
    bt_quota_take_t take;
    bt_later_t later; /* tells what was answered at once */
};

/* ---- answers ---- */

static void answer_take(const bt_quota_take_t *take, bt_hook_answer_t *answer_p,
                        bt_store_reply_t *reply_p)
{
    *reply_p = (bt_store_reply_t){.rc = take->rc,
                                  .number = take->is_granted,
                                  .window = take->window,
                                  .left_ms = take->retry_ms};
    *answer_p = (bt_hook_answer_t){.rc = take->rc, .store = reply_p};
    if (take->rc == BT_E_LIMIT)
        answer_p->why = "too many quotas at a time";
}

static void on_taken(bt_quota_take_t *take)
{
    bt_wait_store_t *w = bt_container_of(take, bt_wait_store_t, take);
    bt_store_reply_t reply;
    bt_hook_answer_t answer;

    answer_take(take, &answer, &reply);
    w->cb(w->user, &answer);
}

static void on_later(bt_later_t *later)
{
    on_taken(&bt_container_of(later, bt_wait_store_t, later)->take);
}

static void on_reply(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_wait_store_t *w = bt_container_of(op, bt_wait_store_t, op);
    /* Its deadline is not the hook's: there is time left to do without it. */
    const int rc = reply->rc == BT_E_TOTAL_TIMEOUT ? BT_E_STORE_UNAVAILABLE : reply->rc;
    const bt_hook_answer_t answer = {.rc = rc, .store = reply, .why = reply->error};

    w->cb(w->user, &answer);
}

/* ---- asking ---- */

static bt_quota_take_t take_of(const bt_hook_op_t *hook_op)
{
    return (bt_quota_take_t){.key = hook_op->store.key,
                             .limit = hook_op->store.limit,
                             .amount = hook_op->store.amount,
                             .window_ms = hook_op->store.window_ms};
}

static bool is_lease(const bt_hook_op_t *hook_op)
{
    return hook_op->store.what == BT_STORE_LEASE_TAKE || hook_op->store.what == BT_STORE_LEASE_DROP;
}

static void fill_op(bt_store_op_t *op, const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op)
{
    *op = (bt_store_op_t){.what = hook_op->store.what,
                          .space = bt_str(room->space),
                          .key = hook_op->store.key,
                          .field = hook_op->store.field,
                          .value = is_lease(hook_op) ? bt_str(room->replica) : hook_op->store.value,
                          .amount = hook_op->store.amount,
                          .ttl_ms = hook_op->store.ttl_ms,
                          .if_absent = hook_op->store.if_absent};
}

bool bt_wait_store_now(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op,
                       bt_hook_answer_t *answer_p, bt_store_reply_t *reply_p)
{
    bt_quota_take_t take;

    if (hook_op->kind != BT_HOOK_OP_STORE)
        return false;
    if (room->store == NULL) {
        *answer_p = (bt_hook_answer_t){.rc = BT_E_STORE_UNAVAILABLE};
        return true;
    }
    if (hook_op->store.what != BT_STORE_WINDOW_TAKE)
        return false;
    take = take_of(hook_op);
    if (!bt_quota_try(room->quotas, &take))
        return false;
    answer_take(&take, answer_p, reply_p);
    return true;
}

int bt_wait_store_start(bt_wait_store_t **wait_p, const bt_wait_ctx_t *room,
                        const bt_hook_op_t *hook_op, bt_wait_store_cb cb, void *user)
{
    bt_wait_store_t *w;

    if (room->store == NULL)
        return BT_E_STORE_UNAVAILABLE;
    w = calloc(1, sizeof(*w));
    if (w == NULL)
        return BT_E_NOMEM;
    w->cb = cb;
    w->user = user;
    bt_later_init(&w->later, on_later);
    w->is_quota = hook_op->store.what == BT_STORE_WINDOW_TAKE;
    if (w->is_quota) {
        w->take = take_of(hook_op);
        w->take.cb = on_taken;
        if (bt_quota_take(room->quotas, &w->take) == 0)
            bt_loop_later(room->loop, &w->later);
    } else {
        fill_op(&w->op, room, hook_op);
        w->op.cb = on_reply;
        bt_store_do(room->store, &w->op);
    }
    *wait_p = w;
    return 0;
}

void bt_wait_store_free(bt_wait_store_t **wait_p)
{
    bt_wait_store_t *w = *wait_p;

    *wait_p = NULL;
    if (w == NULL)
        return;
    bt_list_remove(&w->later.link);
    if (w->is_quota)
        bt_quota_cancel(&w->take);
    else
        bt_store_cancel(&w->op);
    free(w);
}

/* ---- sending ---- */

void bt_wait_store_send(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op)
{
    bt_store_op_t op;

    if (room->store == NULL)
        return;
    if (hook_op->store.what == BT_STORE_WINDOW_GIVE) {
        bt_quota_give(room->quotas, hook_op->store.key, hook_op->store.window_ms,
                      hook_op->store.amount, hook_op->store.window);
        return;
    }
    fill_op(&op, room, hook_op);
    (void) bt_store_send(room->store, &op);
}

/* ---- on a thread without a loop ---- */

static struct {
    pthread_mutex_t lock;
    bt_wait_process_t at;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

void bt_wait_store_of_process(const bt_wait_process_t *at)
{
    pthread_mutex_lock(&process.lock);
    process.at = at != NULL ? *at : (bt_wait_process_t){.store = NULL};
    pthread_mutex_unlock(&process.lock);
}

struct moment {
    bt_loop_t loop;
    const bt_hook_op_t *hook_op;
    uint64_t until_ms;
    bt_store_t *own; /* NULL: the process's is asked */
    bt_quotas_t *own_quotas;
    bt_wait_ctx_t room;
    bt_timer_t timer; /* for the store to be reached */
    bt_wait_t *wait;
    bool is_asked, is_free;
    int rc;
    bt_hook_answer_t answer;
    char *body;
};

static bt_str_t copy_into(char **at, bt_str_t s)
{
    const bt_str_t copy = {*at, s.n};

    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return copy;
}

/* One block: the reply, its rows, their bytes. */
static char *copy_reply(const bt_store_reply_t *from)
{
    size_t bytes = sizeof(*from) + from->row_count * sizeof(from->rows[0]) + from->text.n;

    for (unsigned i = 0; i < from->row_count; i++)
        bytes += from->rows[i].name.n + from->rows[i].value.n;
    char *block = malloc(bytes);
    if (block == NULL)
        return NULL;
    bt_store_reply_t *to = (bt_store_reply_t *) (void *) block;
    bt_store_row_t *rows = (bt_store_row_t *) (void *) (block + sizeof(*to));
    char *at = (char *) (rows + from->row_count);
    *to = *from;
    to->error = NULL;
    to->text = copy_into(&at, from->text);
    to->rows = rows;
    for (unsigned i = 0; i < from->row_count; i++) {
        rows[i].name = copy_into(&at, from->rows[i].name);
        rows[i].value = copy_into(&at, from->rows[i].value);
    }
    return block;
}

static void on_done(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    struct moment *m = bt_wait_user(wait);

    m->answer = (bt_hook_answer_t){.rc = answer->rc};
    if (answer->rc == 0) {
        m->body = copy_reply(answer->store);
        m->answer.store = (const bt_store_reply_t *) (const void *) m->body;
        if (m->body == NULL)
            m->answer.rc = BT_E_NOMEM;
    }
    bt_loop_stop(&m->loop);
}

static void ask(struct moment *m)
{
    if (m->is_asked)
        return;
    m->is_asked = true;
    bt_timer_stop(&m->timer);
    m->rc = bt_wait_start(&m->wait, &m->room, m->hook_op, m->until_ms, on_done, m);
    if (m->rc < 0)
        bt_loop_stop(&m->loop);
}

static void on_up(void *user)
{
    ask(user);
}

/* It is not there: the operation will say so, or what the quota does without it. */
static void on_late(bt_timer_t *timer)
{
    ask(bt_container_of(timer, struct moment, timer));
}

static void on_free(void *user)
{
    struct moment *m = user;

    m->is_free = true;
    bt_loop_stop(&m->loop);
}

static bt_wait_process_t get_process(void)
{
    bt_wait_process_t at;

    pthread_mutex_lock(&process.lock);
    at = process.at;
    pthread_mutex_unlock(&process.lock);
    return at;
}

static int open_own(struct moment *m, bt_wait_process_t *at)
{
    static const bt_store_config_t local = {.url = NULL};
    char err[128];
    int rc = bt_store_open(&m->own, &local, err, sizeof(err));

    at->space = at->replica = "moment";
    if (rc == 0)
        rc = bt_quotas_new(&m->own_quotas, at->space);
    at->store = m->own;
    at->quotas = m->own_quotas;
    return rc;
}

static int open_moment(struct moment *m)
{
    bt_wait_process_t at = get_process();
    int rc = at.store == NULL ? open_own(m, &at) : 0;

    m->room.space = at.space;
    m->room.replica = at.replica;
    if (rc == 0)
        rc = bt_store_client_new(&m->room.store, at.store, &m->loop, on_up, m);
    if (rc == 0)
        rc = bt_quota_client_new(&m->room.quotas, at.quotas, m->room.store, &m->loop);
    return rc;
}

static void close_moment(struct moment *m)
{
    bt_wait_free(&m->wait);
    bt_timer_stop(&m->timer);
    bt_quota_client_free(m->room.quotas);
    if (m->room.store != NULL) {
        bt_store_client_free(m->room.store, on_free, m);
        while (!m->is_free)
            bt_loop_run(&m->loop);
    }
    bt_quotas_free(m->own_quotas);
    if (m->own != NULL)
        bt_store_close(m->own);
}

int bt_wait_store_blocking(const bt_hook_op_t *hook_op, uint64_t until_ms,
                           bt_hook_answer_t *answer_p, char **body_p)
{
    struct moment m = {.hook_op = hook_op, .until_ms = until_ms};
    int rc = bt_loop_init(&m.loop, BT_LOOP_CONTROL);

    if (rc < 0)
        return rc;
    m.room.loop = &m.loop;
    bt_timer_init(&m.loop, &m.timer, on_late);
    rc = open_moment(&m);
    if (rc == 0) {
        bt_timer_start(&m.timer, UP_WAIT_MS);
        bt_loop_run(&m.loop);
        rc = m.rc;
    }
    close_moment(&m);
    bt_loop_fini(&m.loop);
    bt_buf_thread_fini();
    if (rc < 0) {
        free(m.body);
        return rc;
    }
    *answer_p = m.answer;
    *body_p = m.body;
    return 0;
}

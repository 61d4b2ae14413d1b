/* wait_blocking.c - a wait on a thread that has no loop: one of the moment, and for the fleet's state a client of the store too. */
#include "generation/wait.h"

#include "base/err.h"
#include "base/pages.h"

#include <pthread.h>
#include <stdlib.h>

#define UP_WAIT_MS 1000 /* how long a client of the moment may take to reach the store */

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
    to->text = bt_str_put(&at, from->text);
    to->rows = rows;
    for (unsigned i = 0; i < from->row_count; i++) {
        rows[i].name = bt_str_put(&at, from->rows[i].name);
        rows[i].value = bt_str_put(&at, from->rows[i].value);
    }
    return block;
}

static void on_done(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    struct moment *m = bt_wait_user(wait);
    const bool has_store = answer->rc == 0 && answer->store != NULL,
               has_head = answer->rc == 0 && answer->head != NULL;

    m->answer = (bt_hook_answer_t){.rc = answer->rc, .status = answer->status};
    if (has_store) {
        m->body = copy_reply(answer->store);
        m->answer.store = (const bt_store_reply_t *) (const void *) m->body;
    } else if (has_head) {
        m->body = bt_str_dup(answer->body);
        m->answer.body = (bt_str_t){m->body, answer->body.n};
    }
    if ((has_store || has_head) && m->body == NULL)
        m->answer = (bt_hook_answer_t){.rc = BT_E_NOMEM};
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

static int open_store(struct moment *m)
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

static int run(struct moment *m)
{
    int rc = m->hook_op->kind == BT_HOOK_OP_STORE ? open_store(m) : 0;

    if (rc < 0)
        return rc;
    if (m->room.store != NULL)
        bt_timer_start(&m->timer, UP_WAIT_MS);
    else
        ask(m);
    if (m->rc == 0)
        bt_loop_run(&m->loop);
    return m->rc;
}

/* A name whose server does not answer may hold the thread longer than the deadline: as long as the system's resolver tries. */
int bt_wait_blocking(const bt_hook_op_t *hook_op, uint64_t until_ms, bt_hook_answer_t *answer_p,
                     char **body_p)
{
    struct moment m = {.hook_op = hook_op, .until_ms = until_ms};
    int rc = bt_loop_init(&m.loop, BT_LOOP_CONTROL);

    if (rc < 0)
        return rc;
    m.room.loop = &m.loop;
    bt_timer_init(&m.loop, &m.timer, on_late);
    rc = run(&m);
    close_moment(&m);
    bt_loop_fini(&m.loop);
    bt_pages_thread_fini();
    if (rc < 0) {
        free(m.body);
        return rc;
    }
    *answer_p = m.answer;
    *body_p = m.body;
    return 0;
}

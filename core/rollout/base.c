/* What a proposal is made of: the set that serves, and what is asked to change in it. First the table must say what serves: a
 * proposal that somebody left open is decided here ("abort", unless a decision was there and only could not be told). */
#include "rollout/rollout_impl.h"

#include "base/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

typedef struct bt_rollout_push push_t;

/* ---- what another has left open ---- */

/* How the proposal of another ended, who could not write it into the table any more. */
static void tell_settled(push_t *p, enum bt_rollout_state state, const char *why)
{
    bt_rollout_t *r = p->r;
    const bt_rollout_row_t *row = r->rows;
    bt_rollout_set_t set = {.number = row->number,
                            .previous = row->previous,
                            .copy_of = row->copy_of,
                            .at_ms = row->at_ms};
    char field[24];
    bt_text_t text;

    bt_str_copy(set.by, sizeof set.by, row->by);
    bt_str_copy(set.replica, sizeof set.replica, row->replica);
    bt_str_copy(set.hash, sizeof set.hash, row->hash);
    bt_text_init(&text);
    bt_rollout_write_row(&set, state, why, &text);
    snprintf(field, sizeof field, "%" PRIu64, set.number);
    bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                       .key = BT_STR("policy"),
                                       .field = bt_str(field),
                                       .value = bt_text_str(&text)});
    bt_text_fini(&text);
    p->step = BT_PUSH_BASE;
    bt_rollout_push_need_rows(p);
}

static void on_settled(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    if (reply->number == 1)
        tell_settled(p, BT_ROLLOUT_ABORTED, "another was proposed before it was decided");
    else
        p->step = BT_PUSH_SETTLED;
    bt_rollout_push_go_on(r);
}

static void on_was_settled(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    char why[BT_ROLLOUT_WHY_MAX];

    if (reply->rc < 0)
        return;
    snprintf(why, sizeof why, "%.*s", BT_STR_ARG(reply->text));
    if (strcmp(why, "commit") == 0)
        tell_settled(r->push, BT_ROLLOUT_COMMITTED, "");
    else
        tell_settled(r->push, BT_ROLLOUT_ABORTED, strncmp(why, "abort ", 6) == 0 ? why + 6 : why);
}

static void on_texts(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;
    bt_rollout_set_t *set;

    if (reply->rc < 0)
        return;
    if (reply->is_none || bt_rollout_set_read(&set, reply->text) < 0) {
        bt_rollout_push_fail(
            p, 409, "the store does not have the texts of set %" PRIu64 " any more", p->wanted);
        return;
    }
    if (p->wanted == p->base_number && p->base == NULL)
        p->base = bt_rollout_set_ref(set);
    else
        p->back = bt_rollout_set_ref(set);
    bt_rollout_set_unref(set);
    p->step = BT_PUSH_BASE;
    bt_rollout_push_go_on(r);
}

/* A reference, where the texts are here. */
static bt_rollout_set_t *at_hand(const bt_rollout_t *r, uint64_t number)
{
    bt_rollout_set_t *const all[] = {r->held, r->before, r->serving};
    bt_rollout_set_t *empty;

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != NULL && all[i]->number == number)
            return bt_rollout_set_ref(all[i]);
    return number == 0 && bt_rollout_set_new(&empty) == 0 ? empty : NULL;
}

/* True when it is there now; else it is being read. */
static bool has_texts(push_t *p, uint64_t number, bt_rollout_set_t **at)
{
    if (*at == NULL)
        *at = at_hand(p->r, number);
    if (*at != NULL)
        return true;
    p->wanted = number;
    p->step = BT_PUSH_TEXTS;
    bt_rollout_push_go_on(p->r);
    return false;
}

static const bt_rollout_item_t *back_item(const push_t *p)
{
    return p->count == 1 && p->items[0].edit == BT_ROLLOUT_BACK ? &p->items[0] : NULL;
}

static bool check_back(push_t *p, uint64_t *number_p)
{
    const bt_rollout_item_t *item = back_item(p);
    const bt_rollout_row_t *row;

    if (p->base_number == 0) {
        bt_rollout_push_fail(p, 409, "there is nothing to roll back: no set has been committed");
        return false;
    }
    *number_p = item->number > 0 ? item->number : p->base->previous;
    row = bt_rollout_row(p->r, *number_p);
    if (*number_p > p->r->held->number || (row != NULL && row->state != BT_ROLLOUT_COMMITTED)) {
        bt_rollout_push_fail(
            p, 400,
            "set %" PRIu64 " was never committed: GET /admin/fleet/policies lists those that were",
            *number_p);
        return false;
    }
    return true;
}

/* ---- the proposal ---- */

static int edit(push_t *p, bt_rollout_set_t *set, char *err, size_t err_size)
{
    for (unsigned i = 0; i < p->count; i++) {
        const bt_rollout_item_t *item = &p->items[i];
        const char *name = item->name[0] != '\0' ? item->name : "the rules";
        int rc = 0;
        if (item->edit == BT_ROLLOUT_CLEAR) {
            while (set->count > 0)
                (void) bt_rollout_set_drop(set, set->files[set->count - 1].name);
        } else if (item->edit == BT_ROLLOUT_DROP && !bt_rollout_set_drop(set, item->name)) {
            snprintf(err, err_size, "%s: not in the fleet's set", name);
            return BT_E_INVAL;
        } else if (item->edit == BT_ROLLOUT_PUT) {
            rc = bt_rollout_set_put(set, item->name, item->text);
        }
        if (rc == BT_E_LIMIT)
            snprintf(err, err_size, "%s: a set holds at most %d texts, %zu bytes together", name,
                     BT_ROLLOUT_FILES_MAX, BT_ROLLOUT_TEXT_MAX);
        else if (rc < 0)
            snprintf(err, err_size, "%s: %s", name,
                     rc == BT_E_JSON_UTF8 ? "the text is not UTF-8" : bt_err_text(rc));
        if (rc < 0)
            return rc;
    }
    return 0;
}

static uint64_t wall_ms(void)
{
    struct timespec now = {0};

    (void) clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t) now.tv_sec * 1000 + (uint64_t) now.tv_nsec / 1000000;
}

/* p->set; false: it has ended. */
static bool make_set(push_t *p)
{
    const bt_rollout_t *r = p->r;
    char err[BT_ROLLOUT_WHY_MAX] = "out of memory";
    int rc = bt_rollout_set_copy(&p->set, p->back != NULL ? p->back : p->base);

    if (rc == 0 && p->back == NULL)
        rc = edit(p, p->set, err, sizeof err);
    if (rc < 0) {
        bt_rollout_push_fail(p, rc == BT_E_NOMEM ? 503 : rc == BT_E_INVAL ? 404 : 400, "%s", err);
        return false;
    }
    bt_rollout_set_seal(p->set);
    if (strcmp(p->set->hash, p->base->hash) == 0) {
        bt_rollout_set_unref(p->set);
        p->set = bt_rollout_set_ref(p->base);
        bt_rollout_push_answer(p, false);
        return false;
    }
    p->set->previous = p->base_number;
    p->set->copy_of = p->back != NULL ? p->back->number : 0;
    p->set->at_ms = wall_ms();
    bt_str_copy(p->set->by, sizeof p->set->by, p->by);
    bt_str_copy(p->set->replica, sizeof p->set->replica, r->replica);
    p->number = bt_rollout_top(r) + 1;
    return true;
}

static void find_base(push_t *p)
{
    bt_rollout_t *r = p->r;
    const bt_rollout_row_t *head = r->row_count > 0 ? r->rows : NULL;
    uint64_t back;

    if (r->rows_read <= p->rows_read)
        return;
    if (head != NULL && head->state == BT_ROLLOUT_PROPOSED && head->number > r->held->number) {
        p->step = BT_PUSH_SETTLE; /* whoever proposed it does not hold the lease any more */
        bt_rollout_push_go_on(r);
        return;
    }
    if (p->base == NULL)
        p->base_number = bt_rollout_committed(r);
    if (!has_texts(p, p->base_number, &p->base))
        return;
    if (back_item(p) != NULL &&
        (!check_back(p, &back) || (p->back == NULL && !has_texts(p, back, &p->back))))
        return;
    if (!make_set(p))
        return;
    p->step = BT_PUSH_CLAIM;
    bt_rollout_push_go_on(r);
}

void bt_rollout_base_run(push_t *p)
{
    const bt_rollout_t *r = p->r;
    const uint64_t head = r->row_count > 0 ? r->rows[0].number : 0;

    switch (p->step) {
    case BT_PUSH_SETTLE:
        bt_rollout_push_done(p, head, "abort another replica proposes now", on_settled);
        break;
    case BT_PUSH_SETTLED:
        bt_rollout_push_done(p, head, NULL, on_was_settled);
        break;
    case BT_PUSH_TEXTS:
        bt_rollout_push_ask(
            p,
            (bt_store_op_t){.what = BT_STORE_CELL_GET,
                            .key = bt_rollout_key(&p->ask, "policy_set", p->wanted)},
            on_texts);
        break;
    default:
        find_base(p);
    }
}

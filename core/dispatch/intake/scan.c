#include "dispatch/intake/scan.h"

#include "loop/offload.h"

struct bt_scan {
    bt_offload_t work;
    bt_request_t *request; /* its loop's: the thread reads what is copied below */
    bt_scan_cb done;
    enum bt_route route;
    bt_str_t body;
    bt_arena_t arena;
    bt_intent_t intent;
    int rc;
    const char *why;
};

static void run(bt_offload_t *work)
{
    struct bt_scan *scan = bt_container_of(work, struct bt_scan, work);

    scan->rc = bt_intent_read(&scan->intent, &scan->arena, scan->route, scan->body, &scan->why);
}

static void on_done(bt_offload_t *work)
{
    struct bt_scan *scan = bt_container_of(work, struct bt_scan, work);
    bt_request_t *r = scan->request;

    if (!r->finished) {
        r->intent = scan->intent;
        r->send_arena = scan->arena; /* which nobody has used so far */
        bt_arena_init(&scan->arena);
        r->intent.strip.arena = &r->send_arena;
        scan->done(r, scan->rc, scan->why);
    }
    bt_request_release(r);
}

void bt_scan_start(bt_request_t *r, bt_scan_cb done)
{
    struct bt_scan *scan = bt_arena_zalloc(&r->arena, sizeof(*scan));

    scan->request = r;
    scan->done = done;
    scan->route = r->route;
    scan->body = r->x->body;
    bt_arena_init(&scan->arena);
    r->scan = scan;
    r->holds++;
    bt_offload_start(&scan->work, r->d->loop, run, on_done);
}

void bt_scan_cancel(bt_request_t *r)
{
    if (r->scan != NULL)
        bt_offload_cancel(&r->scan->work);
}

void bt_scan_drop(bt_request_t *r)
{
    if (r->scan != NULL)
        bt_arena_fini(&r->scan->arena);
}

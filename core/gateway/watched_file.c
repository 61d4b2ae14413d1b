#include "gateway/watched_file.h"

#define POLL_MS 250

static void free_when_done(bt_watched_file_t *f)
{
    if (f->is_closed && !f->is_reading)
        f->freed(f);
}

static void run(bt_offload_t *work)
{
    bt_watched_file_t *f = bt_container_of(work, bt_watched_file_t, work);

    f->read(f);
}

static void on_read(bt_offload_t *work)
{
    bt_watched_file_t *f = bt_container_of(work, bt_watched_file_t, work);

    if (!f->is_stopped)
        f->take(f);
    if (f->drop != NULL)
        f->drop(f);
    f->is_reading = false;
    if (f->look_again && !f->is_stopped)
        bt_watched_file_look(f);
    free_when_done(f);
}

void bt_watched_file_look(bt_watched_file_t *f)
{
    f->look_again = f->is_reading;
    if (f->is_reading)
        return;
    f->is_reading = true;
    bt_offload_start(&f->work, f->loop, run, on_read);
}

static void on_poll(uv_fs_poll_t *poll, int status, const uv_stat_t *before, const uv_stat_t *now)
{
    bt_watched_file_t *f = bt_container_of(poll, bt_watched_file_t, poll);

    (void) before;
    (void) now;
    if (status < 0)
        f->failed(f, uv_strerror(status));
    else
        bt_watched_file_look(f);
}

static void on_closed(uv_handle_t *handle)
{
    bt_watched_file_t *f = bt_container_of((uv_fs_poll_t *) handle, bt_watched_file_t, poll);

    f->is_closed = true;
    free_when_done(f);
}

int bt_watched_file_open(bt_watched_file_t *f, bt_loop_t *loop)
{
    int rc = uv_fs_poll_init(&loop->uv, &f->poll);

    if (rc < 0)
        return rc;
    f->loop = loop;
    f->is_reading = f->look_again = f->is_stopped = f->is_closed = false;
    if (uv_fs_poll_start(&f->poll, on_poll, f->path, POLL_MS) < 0)
        f->failed(f, "it is not followed as it changes");
    bt_watched_file_look(f); /* it may be another one since it was loaded */
    return 0;
}

void bt_watched_file_close(bt_watched_file_t *f)
{
    f->is_stopped = true;
    uv_close((uv_handle_t *) &f->poll, on_closed);
}

/* How it works: sources and ranks belong to the feeds' thread; the control loop only posts what is to be added and removed, in order. Figures are
 * copied under a lock by the thread, once a second.
 *
 * A snapshot is written a rank at a time, with pauses, so that events do not wait for the whole index; each rank says for itself how far it had come. What
 * was read is kept until all workers that the last process knew may have come. */
#include "kvindex/subscriber.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "zmq/feeds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define STATS_MS 1000
#define SAVE_STEP_MS 5        /* from one source to the next */
#define RESTORE_FOR_MS 300000 /* workers that come later begin with nothing */
#define RANKS_MAX 1024u
#define ENDPOINT_MAX BT_KV_ENDPOINT_BYTES

typedef struct rank {
    struct source *source;
    unsigned number;
    bt_kv_follow_t follow;
    bt_zmq_feed_t *feed; /* NULL: could not be opened */
} rank_t;

typedef struct source {
    bt_list_t link;
    bt_kv_subscriber_t *subscriber;
    void *user;
    char *name, *events, *replay;
    uint32_t first;
    unsigned first_rank, count;
    unsigned saved_in; /* the round of snapshots that has it */
    rank_t ranks[];
} source_t;

struct bt_kv_subscriber {
    bt_kv_subscriber_config_t config;
    char *snapshot; /* NULL: none is kept */
    bt_zmq_feeds_t *feeds;
    bool is_closing; /* the last snapshot is asked for */
    /* ---- the thread's ---- */
    bt_list_t sources;
    bt_kv_decoder_t decoder;
    bt_kv_follow_stats_t past; /* of sources that are gone */
    uint64_t stats_at_ms;
    bt_kv_snapshot_t *restored; /* what was read at the start */
    uint64_t restored_until_ms;
    bt_kv_snapshot_writer_t *writer; /* of the snapshot under way */
    unsigned save_round;
    uint64_t save_at_ms; /* the next one, or the next step of it; 0 = never */
    bool has_told;       /* that it cannot be written; once until it can */
    /* ---- both's ---- */
    pthread_mutex_t lock;
    bt_kv_subscriber_stats_t stats;
    bt_kv_rank_stats_t *ranks;
    unsigned rank_count, rank_cap;
};

/* ---- endpoints ---- */

/* Host and port of "tcp://host:port"; host may have brackets. */
static bool split(const char *endpoint, bt_str_t *host_p, uint64_t *port_p)
{
    const bt_str_t all = bt_str(endpoint);
    const char *colon = all.p != NULL ? strrchr(all.p, ':') : NULL;

    if (!bt_str_starts(all, BT_STR("tcp://")) || colon == NULL || colon <= all.p + 6)
        return false;
    *host_p = (bt_str_t){all.p + 6, (size_t) (colon - all.p - 6)};
    return bt_str_u64(bt_str(colon + 1), port_p) == 0 && *port_p > 0 && *port_p <= 65535 &&
           all.n < ENDPOINT_MAX - 8;
}

static void put_endpoint(const char *endpoint, unsigned rank, char out[ENDPOINT_MAX])
{
    bt_str_t host;
    uint64_t port;

    out[0] = '\0';
    if (endpoint != NULL && split(endpoint, &host, &port) && port + rank <= 65535)
        snprintf(out, ENDPOINT_MAX, "tcp://%.*s:%u", BT_STR_ARG(host), (unsigned) port + rank);
}

/* ---- a rank ---- */

static int ask(void *user, uint64_t from)
{
    const rank_t *r = user;
    char number[8];

    for (int i = 0; i < 8; i++)
        number[i] = (char) (from >> (56 - 8 * i));
    return bt_zmq_feed_ask(r->feed, (bt_str_t){number, sizeof(number)});
}

static void begin_anew(const rank_t *r)
{
    const bt_kv_subscriber_config_t *config = &r->source->subscriber->config;

    if (config->on_anew != NULL)
        config->on_anew(r->source->user);
}

static void on_loss(void *user, enum bt_kv_loss loss)
{
    static const char *const why[] = {"",
                                      "events were missed, and the engine does not say them again",
                                      "its engine has restarted",
                                      "the connection has ended",
                                      "a payload that is no batch of events",
                                      "its engine does not say the snapshot's last batch again"};
    const rank_t *r = user;

    bt_log_warn("kvindex", "%s rank %u: %s; what was known of its KV cache is dropped",
                r->source->name, r->number, why[loss]);
    begin_anew(r);
}

static void on_message(void *user, const bt_str_t *frames, unsigned count, bool is_answer)
{
    rank_t *r = user;

    bt_kv_follow_message(&r->follow, frames, count, is_answer, bt_clock_ms());
}

static void on_up(void *user)
{
    rank_t *r = user;

    bt_log_info("kvindex", "%s rank %u: its KV events are followed", r->source->name, r->number);
    begin_anew(r);
    bt_kv_follow_up(&r->follow, bt_clock_ms());
}

static void on_down(void *user)
{
    rank_t *r = user;

    bt_kv_follow_down(&r->follow);
}

static bool wants_more(void *user)
{
    const rank_t *r = user;

    return bt_kv_follow_wants_more(&r->follow);
}

/* Before it is followed. */
static void restore_rank(rank_t *r)
{
    bt_kv_subscriber_t *sub = r->source->subscriber;
    char endpoint[ENDPOINT_MAX];
    bt_kv_place_t place;

    put_endpoint(r->source->events, r->number, endpoint);
    if (sub->restored == NULL || !r->follow.has_replay ||
        !bt_kv_snapshot_restore(sub->restored, sub->config.index, r->follow.part, endpoint, &place))
        return;
    bt_kv_follow_resume(&r->follow, place);
    bt_log_info("kvindex", "%s rank %u: %llu blocks of the snapshot wait for its engine's word",
                r->source->name, r->number,
                (unsigned long long) bt_kv_part_held(sub->config.index, r->follow.part));
}

static int open_rank(source_t *s, unsigned number)
{
    bt_kv_subscriber_t *sub = s->subscriber;
    char events[ENDPOINT_MAX], replay[ENDPOINT_MAX];
    rank_t *r = &s->ranks[number];

    put_endpoint(s->events, s->first_rank + number, events);
    put_endpoint(s->replay, s->first_rank + number, replay);
    *r = (rank_t){.source = s,
                  .number = s->first_rank + number,
                  .follow = {.index = sub->config.index,
                             .decoder = &sub->decoder,
                             .part = s->first + number,
                             .has_replay = replay[0] != '\0',
                             .ask = ask,
                             .on_loss = on_loss,
                             .user = r}};
    restore_rank(r);
    return bt_zmq_feed_open(sub->feeds, events, replay, r, &r->feed);
}

/* ---- figures ---- */

static void add_follow(bt_kv_follow_stats_t *to, const bt_kv_follow_stats_t *from)
{
    to->batches += from->batches;
    to->replayed += from->replayed;
    to->gaps += from->gaps;
    for (unsigned i = 0; i < BT_KV_LOSSES; i++)
        to->losses[i] += from->losses[i];
}

static bt_kv_rank_stats_t rank_stats(const source_t *s, const rank_t *r)
{
    bt_kv_rank_stats_t out = {.rank = r->number,
                              .is_live = bt_kv_part_is_live(r->follow.index, r->follow.part),
                              .has_last = r->follow.has_next,
                              .last = r->follow.next - 1,
                              .blocks = bt_kv_part_held(r->follow.index, r->follow.part),
                              .follow = r->follow.stats};

    snprintf(out.name, sizeof(out.name), "%s", s->name);
    put_endpoint(s->events, r->number, out.endpoint);
    return out;
}

/* Under the lock. What there is no memory for is not told. */
static void publish_rank(bt_kv_subscriber_t *sub, const bt_kv_rank_stats_t *one)
{
    if (sub->rank_count == sub->rank_cap) {
        const unsigned cap = sub->rank_cap > 0 ? 2 * sub->rank_cap : 16;
        bt_kv_rank_stats_t *ranks = realloc(sub->ranks, cap * sizeof(ranks[0]));
        if (ranks == NULL)
            return;
        sub->ranks = ranks;
        sub->rank_cap = cap;
    }
    sub->ranks[sub->rank_count++] = *one;
}

static void publish_stats(bt_kv_subscriber_t *sub)
{
    bt_kv_subscriber_stats_t now = {.follow = sub->past, .events = sub->decoder.stats};

    bt_kv_index_stats(sub->config.index, &now.index);
    pthread_mutex_lock(&sub->lock);
    sub->rank_count = 0;
    for (bt_list_t *at = sub->sources.next; at != &sub->sources; at = at->next) {
        const source_t *s = bt_container_of(at, source_t, link);
        now.sources++;
        for (unsigned i = 0; i < s->count && s->first != 0; i++) {
            const bt_kv_rank_stats_t one = rank_stats(s, &s->ranks[i]);
            add_follow(&now.follow, &one.follow);
            now.live += one.is_live;
            publish_rank(sub, &one);
        }
    }
    sub->stats = now;
    pthread_mutex_unlock(&sub->lock);
}

/* ---- the snapshot ---- */

static void forget_restored(bt_kv_subscriber_t *sub)
{
    bt_kv_snapshot_free(sub->restored);
    sub->restored = NULL;
}

static void tell_save_failed(bt_kv_subscriber_t *sub, int rc)
{
    if (!sub->has_told)
        bt_log_error("kvindex",
                     "--kv-snapshot %s cannot be written: %s; its directory must be there, with "
                     "room, and this process may make files in it",
                     sub->snapshot, bt_err_text(rc));
    sub->has_told = true;
}

static bool begin_save(bt_kv_subscriber_t *sub)
{
    const int rc = bt_kv_snapshot_begin(&sub->writer, sub->snapshot);

    if (rc < 0) {
        sub->writer = NULL;
        tell_save_failed(sub, rc);
    }
    sub->save_round++;
    return rc == 0;
}

static void drop_save(bt_kv_subscriber_t *sub)
{
    bt_kv_snapshot_abort(sub->writer);
    sub->writer = NULL;
}

static void run_load(void *arg)
{
    bt_kv_subscriber_t *sub = arg;
    const char *path = sub->snapshot, *why;
    const int rc = bt_kv_snapshot_read(&sub->restored, path, &why);

    if (rc < 0 && rc != -ENOENT)
        bt_log_warn("kvindex", "--kv-snapshot %s: %s; the index begins with nothing", path,
                    rc == BT_E_INVAL ? why : bt_err_text(rc));
    sub->restored_until_ms = bt_clock_ms() + RESTORE_FOR_MS;
    (void) begin_save(sub); /* or that it cannot be written would first be told at the end */
    drop_save(sub);
}

static void save_source(bt_kv_subscriber_t *sub, source_t *s)
{
    char endpoint[ENDPOINT_MAX];
    bt_kv_place_t place;

    s->saved_in = sub->save_round;
    for (unsigned i = 0; i < s->count && s->first != 0; i++) {
        const rank_t *r = &s->ranks[i];
        if (!bt_kv_follow_place(&r->follow, &place))
            continue;
        put_endpoint(s->events, r->number, endpoint);
        bt_kv_snapshot_put(sub->writer, sub->config.index, r->follow.part, endpoint, place);
    }
}

/* One source more; false: that was all. */
static bool save_next(bt_kv_subscriber_t *sub)
{
    for (bt_list_t *at = sub->sources.next; at != &sub->sources; at = at->next) {
        source_t *s = bt_container_of(at, source_t, link);
        if (s->saved_in == sub->save_round)
            continue;
        save_source(sub, s);
        return true;
    }
    return false;
}

static void end_save(bt_kv_subscriber_t *sub)
{
    const int rc = bt_kv_snapshot_commit(sub->writer, sub->config.index);

    sub->writer = NULL;
    if (rc < 0)
        tell_save_failed(sub, rc);
    else
        sub->has_told = false;
}

static void run_save(void *arg)
{
    bt_kv_subscriber_t *sub = arg;

    drop_save(sub);
    if (!begin_save(sub))
        return;
    while (save_next(sub))
        ;
    end_save(sub);
}

static void save_turn(bt_kv_subscriber_t *sub, uint64_t now_ms)
{
    if (sub->restored != NULL && now_ms >= sub->restored_until_ms)
        forget_restored(sub);
    if (sub->save_at_ms == 0 || now_ms < sub->save_at_ms)
        return;
    sub->save_at_ms = now_ms + SAVE_STEP_MS;
    if (sub->writer != NULL ? save_next(sub) : begin_save(sub))
        return;
    if (sub->writer != NULL)
        end_save(sub);
    sub->save_at_ms = now_ms + sub->config.snapshot_ms;
}

static void on_turn(void *user)
{
    rank_t *r = user;
    bt_kv_subscriber_t *sub = r->source->subscriber;
    const uint64_t now_ms = bt_clock_ms();

    bt_kv_follow_turn(&r->follow, now_ms);
    save_turn(sub, now_ms);
    if (now_ms < sub->stats_at_ms)
        return;
    sub->stats_at_ms = now_ms + STATS_MS;
    publish_stats(sub);
}

/* ---- sources, on the thread ---- */

static void free_source(source_t *s)
{
    free(s->name);
    free(s->events);
    free(s->replay);
    free(s);
}

static void close_source(source_t *s)
{
    bt_kv_subscriber_t *sub = s->subscriber;

    sub->config.on_parts(s->user, 0, 0);
    for (unsigned i = 0; i < s->count && s->first != 0; i++) {
        if (s->ranks[i].feed != NULL)
            bt_zmq_feed_close(s->ranks[i].feed);
        bt_kv_follow_fini(&s->ranks[i].follow);
        add_follow(&sub->past, &s->ranks[i].follow.stats);
    }
    if (s->first != 0)
        bt_kv_part_close(sub->config.index, s->first, s->count);
    bt_list_remove(&s->link);
    sub->config.on_gone(s->user);
    free_source(s);
}

static void run_add(void *arg)
{
    source_t *s = arg;
    bt_kv_subscriber_t *sub = s->subscriber;

    bt_list_push(&sub->sources, &s->link);
    if (bt_kv_part_open(sub->config.index, s->count, &s->first) < 0) {
        s->first = 0;
        bt_log_error("kvindex", "%s: the index has no room for its %u ranks", s->name, s->count);
        return;
    }
    for (unsigned i = 0; i < s->count; i++)
        if (open_rank(s, i) < 0)
            bt_log_error("kvindex", "%s: cannot follow KV events at %s (rank %u)", s->name,
                         s->events, i);
    sub->config.on_parts(s->user, s->first, s->count);
    publish_stats(sub);
}

typedef struct removal {
    bt_kv_subscriber_t *subscriber;
    void *user;
} removal_t;

static void run_remove(void *arg)
{
    removal_t *removal = arg;
    bt_list_t *const all = &removal->subscriber->sources;

    for (bt_list_t *at = all->next; at != all; at = at->next) {
        source_t *s = bt_container_of(at, source_t, link);
        if (s->user == removal->user) {
            close_source(s);
            break;
        }
    }
    publish_stats(removal->subscriber);
    free(removal);
}

/* ---- the control loop's side ---- */

int bt_kv_subscriber_new(bt_kv_subscriber_t **subscriber_p, const bt_kv_subscriber_config_t *config)
{
    const bt_zmq_feeds_config_t feeds = {.on_message = on_message,
                                         .on_up = on_up,
                                         .on_down = on_down,
                                         .on_turn = on_turn,
                                         .wants_more = wants_more,
                                         .max_frame_bytes = BT_KV_PAYLOAD_MAX};
    bt_kv_subscriber_t *sub = calloc(1, sizeof(*sub));

    if (sub == NULL)
        return BT_E_NOMEM;
    sub->config = *config;
    sub->snapshot = config->snapshot != NULL ? strdup(config->snapshot) : NULL;
    if (config->snapshot != NULL && config->snapshot_ms > 0)
        sub->save_at_ms = bt_clock_ms() + config->snapshot_ms;
    bt_list_init(&sub->sources);
    bt_kv_decoder_init(&sub->decoder);
    pthread_mutex_init(&sub->lock, NULL);
    int rc = config->snapshot != NULL && sub->snapshot == NULL
                 ? BT_E_NOMEM
                 : bt_zmq_feeds_new(&sub->feeds, &feeds);
    if (rc == 0 && config->snapshot != NULL)
        (void) bt_zmq_feeds_post(sub->feeds, run_load, sub); /* before any source is added */
    if (rc == 0) {
        *subscriber_p = sub;
        return 0;
    }
    pthread_mutex_destroy(&sub->lock);
    free(sub->snapshot);
    free(sub);
    return rc;
}

void bt_kv_subscriber_save(bt_kv_subscriber_t *sub)
{
    if (sub->snapshot != NULL)
        (void) bt_zmq_feeds_post(sub->feeds, run_save, sub);
}

int bt_kv_subscriber_add(bt_kv_subscriber_t *sub, const bt_kv_source_t *source)
{
    const unsigned count = source->ranks > 0 ? source->ranks : 1;
    source_t *s = calloc(1, sizeof(*s) + count * sizeof(s->ranks[0]));

    if (s == NULL || count > RANKS_MAX) {
        free(s);
        return s == NULL ? BT_E_NOMEM : BT_E_LIMIT;
    }
    s->subscriber = sub;
    s->user = source->user;
    s->first_rank = source->first_rank;
    s->count = count;
    s->name = strdup(source->name);
    s->events = strdup(source->events);
    s->replay = source->replay != NULL ? strdup(source->replay) : NULL;
    if (s->name != NULL && s->events != NULL && (source->replay == NULL || s->replay != NULL) &&
        bt_zmq_feeds_post(sub->feeds, run_add, s) == 0)
        return 0;
    free_source(s);
    return BT_E_NOMEM;
}

int bt_kv_subscriber_remove(bt_kv_subscriber_t *sub, void *user)
{
    removal_t *removal = malloc(sizeof(*removal));

    if (removal == NULL)
        return BT_E_NOMEM;
    *removal = (removal_t){sub, user};
    if (bt_zmq_feeds_post(sub->feeds, run_remove, removal) == 0)
        return 0;
    free(removal);
    return BT_E_NOMEM;
}

void bt_kv_subscriber_stats(bt_kv_subscriber_t *sub, bt_kv_subscriber_stats_t *stats)
{
    pthread_mutex_lock(&sub->lock);
    *stats = sub->stats;
    pthread_mutex_unlock(&sub->lock);
}

unsigned bt_kv_subscriber_ranks(bt_kv_subscriber_t *sub, bt_kv_rank_stats_t **ranks_p)
{
    bt_kv_rank_stats_t *ranks = NULL;
    unsigned count = 0;

    pthread_mutex_lock(&sub->lock);
    if (sub->rank_count > 0 && (ranks = malloc(sub->rank_count * sizeof(ranks[0]))) != NULL) {
        count = sub->rank_count;
        memcpy(ranks, sub->ranks, count * sizeof(ranks[0]));
    }
    pthread_mutex_unlock(&sub->lock);
    *ranks_p = ranks;
    return count;
}

bool bt_kv_subscriber_close(bt_kv_subscriber_t *sub, unsigned deadline_ms)
{
    if (sub->snapshot != NULL && !sub->is_closing)
        (void) bt_zmq_feeds_post(sub->feeds, run_save, sub); /* whoever closes waits for no disk */
    sub->is_closing = true;
    if (!bt_zmq_feeds_close(sub->feeds, deadline_ms))
        return false;
    forget_restored(sub);
    while (!bt_list_empty(&sub->sources)) {
        source_t *s = bt_container_of(sub->sources.next, source_t, link);
        for (unsigned i = 0; i < s->count; i++)
            s->ranks[i].feed = NULL; /* it has gone with the thread */
        close_source(s);
    }
    bt_kv_decoder_fini(&sub->decoder);
    pthread_mutex_destroy(&sub->lock);
    free(sub->ranks);
    free(sub->snapshot);
    free(sub);
    return true;
}

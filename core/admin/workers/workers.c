/* A change goes to the registry, which checks it aside and publishes a new snapshot; what it refuses is the caller's 400 with
 * the registry's own line. Changes live as long as the process: the configuration file is not written.
 */
#include "admin/workers/workers.h"

#include "admin/call/query.h"
#include "admin/workers/worker_spec.h"
#include "base/err.h"
#include "cluster/url.h"

#include <stdio.h>
#include <stdlib.h>

#define ERR_BYTES 512

/* 404 when there is none. */
static bt_worker_t *find(const bt_admin_call_t *c)
{
    bt_worker_t *w = bt_workers_find(bt_registry_current(c->config->registry), c->key);

    if (w == NULL)
        bt_reply_error(c->reply, 404, "there is no worker %.*s; GET /workers lists them",
                       BT_STR_ARG(c->key));
    return w;
}

static void describe(const bt_admin_call_t *c, bt_worker_t *w)
{
    bt_worker_describe(&c->reply->body,
                       bt_workers_pool_of(bt_registry_current(c->config->registry), w), w, true);
}

void bt_workers_end_told(const bt_admin_call_t *c, const char *why)
{
    if (c->config->fleet != NULL) {
        bt_text_puts(&c->reply->body, ",\"fleet\":");
        bt_text_json_str(&c->reply->body, bt_str(why != NULL ? why : "told"));
    }
    bt_text_puts(&c->reply->body, "}\n");
}

/* ---- lists: rows of the set of workers that was there when they were asked for ---- */

typedef struct list {
    bt_rows_t rows;
    bt_workers_t *workers;
    unsigned pool, at, total;
    bool is_urls; /* as other routers list them */
} list_t;

/* The next one and its pool; NULL: that were all. */
static bt_worker_t *next_of(list_t *l, const bt_worker_pool_t **pool_p)
{
    while (l->pool < l->workers->pool_count && l->at == l->workers->pools[l->pool].all.count) {
        l->pool++;
        l->at = 0;
    }
    if (l->pool == l->workers->pool_count)
        return NULL;
    *pool_p = &l->workers->pools[l->pool];
    return (*pool_p)->all.items[l->at++];
}

static void write_row(list_t *l, bt_text_t *out, const bt_worker_pool_t *pool, bt_worker_t *w)
{
    const bool is_first = l->total++ == 0;

    if (l->is_urls) {
        bt_text_puts(out, is_first ? "" : ",");
        bt_text_json_str(out, bt_str(w->spec.url));
    } else {
        bt_text_puts(out, is_first ? "\n" : ",\n");
        bt_worker_describe(out, pool, w, false);
    }
}

static bool write_list(bt_rows_t *rows, bt_text_t *out)
{
    list_t *l = bt_container_of(rows, list_t, rows);
    const size_t enough = out->len + BT_PIECE_BYTES;
    const bt_worker_pool_t *pool;
    bt_worker_t *w;

    while (out->len < enough && !out->failed) {
        if ((w = next_of(l, &pool)) != NULL) {
            write_row(l, out, pool, w);
            continue;
        }
        if (l->is_urls)
            bt_text_puts(out, "]}\n");
        else
            bt_text_printf(out, "\n],\"total\":%u}\n", l->total);
        return true;
    }
    return out->failed;
}

static void free_list(bt_rows_t *rows)
{
    list_t *l = bt_container_of(rows, list_t, rows);

    bt_workers_unref(l->workers);
    free(l);
}

static void begin_list(const bt_admin_call_t *c, const char *beginning, bool is_urls)
{
    list_t *l = calloc(1, sizeof *l);

    if (l == NULL) {
        bt_reply_error(c->reply, 503, "%s", bt_err_text(BT_E_NOMEM));
        return;
    }
    l->rows = (bt_rows_t){.write = write_list, .free = free_list};
    l->is_urls = is_urls;
    l->workers = bt_workers_ref(bt_registry_current(c->config->registry));
    bt_text_puts(&c->reply->body, beginning);
    c->reply->rows = &l->rows;
}

void bt_workers_list(const bt_admin_call_t *c)
{
    begin_list(c, "{\"workers\":[", false);
}

/* ---- changes ---- */

static bool is_named(const char *wanted, const bt_worker_pool_t *pool)
{
    return wanted == NULL ? pool->index == 0 : strcmp(wanted, pool->spec.name) == 0;
}

/* The same url in the same pool, or the same name anywhere: a conflict, not a malformed request. */
static bool is_taken(const bt_workers_t *workers, const bt_spec_request_t *r)
{
    const bt_worker_t *by_url = bt_workers_find(workers, bt_str(r->spec.url));

    if (by_url != NULL && is_named(r->pool, bt_workers_pool_of(workers, by_url)))
        return true;
    return r->spec.name != NULL && bt_workers_find(workers, bt_str(r->spec.name)) != NULL;
}

/* Status: 0 = added. */
static unsigned add(const bt_admin_config_t *config, bt_spec_request_t *r, char *err)
{
    const bool taken = is_taken(bt_registry_current(config->registry), r);
    int rc = 0;

    if (config->complete != NULL)
        rc = config->complete(config->complete_user, r->pool, &r->spec, err, ERR_BYTES);
    if (rc == 0)
        rc = bt_registry_add(config->registry, r->pool, &r->spec, err, ERR_BYTES);
    if (rc == 0)
        return 0;
    return rc == BT_E_NOMEM ? 503 : taken ? 409 : 400;
}

/* The one that was just added: the highest id. */
static bt_worker_t *newest(const bt_workers_t *workers)
{
    bt_worker_t *best = NULL;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++)
            if (best == NULL || workers->pools[i].all.items[j]->id > best->id)
                best = workers->pools[i].all.items[j];
    return best;
}

/* NULL = the others are told, or there is nobody to tell. */
static const char *notify_added(const bt_admin_config_t *config)
{
    const bt_workers_t *workers = bt_registry_current(config->registry);
    const bt_worker_t *w = newest(workers);

    if (config->fleet == NULL)
        return NULL;
    return bt_fleet_worker_added(config->fleet, bt_workers_pool_of(workers, w)->spec.name, w);
}

/* For the audit log: it is in no path. */
static void name_object(const bt_admin_call_t *c, bt_str_t url)
{
    snprintf(c->reply->object, sizeof c->reply->object, "%.*s", BT_STR_ARG(url));
}

void bt_workers_add(const bt_admin_call_t *c)
{
    char err[ERR_BYTES];
    bt_spec_request_t r;
    unsigned status = 400;

    if (bt_spec_from_json(&r, c->request->body, err, sizeof err) == 0)
        status = add(c->config, &r, err);
    name_object(c, bt_str(r.spec.url));
    if (status != 0) {
        bt_reply_error(c->reply, status, "%s", err);
    } else {
        const char *why = notify_added(c->config);
        c->reply->status = 201;
        describe(c, newest(bt_registry_current(c->config->registry)));
        c->reply->body.len -= c->reply->body.len > 0; /* its brace */
        bt_workers_end_told(c, why);
    }
    bt_spec_request_fini(&r);
}

void bt_workers_show(const bt_admin_call_t *c)
{
    bt_worker_t *w = find(c);

    if (w == NULL)
        return;
    describe(c, w);
    bt_text_puts(&c->reply->body, "\n");
}

static bool is_same_place(const bt_worker_t *a, const bt_worker_t *b)
{
    const bt_url_t x = {
        .host = a->host, .port = a->port, .base_path = a->base_path, .rank = a->spec.dp_rank};
    const bt_url_t y = {
        .host = b->host, .port = b->port, .base_path = b->base_path, .rank = b->spec.dp_rank};

    return bt_url_eq(&x, &y);
}

/* All that the key names, here and on the other replicas. */
static int remove_all(const bt_admin_config_t *config, bt_str_t key, const char **why_p)
{
    bt_workers_t *before = bt_workers_ref(bt_registry_current(config->registry));
    const bt_worker_t *first = bt_workers_find(before, key);
    const bool is_name = bt_str_eq(key, bt_str(first->name));
    int rc = bt_registry_remove(config->registry, key);

    for (unsigned i = 0; config->fleet != NULL && i < before->pool_count; i++)
        for (unsigned j = 0; j < before->pools[i].all.count; j++) {
            const bt_worker_t *w = before->pools[i].all.items[j];
            if (w == first || (!is_name && is_same_place(w, first)))
                *why_p = bt_fleet_worker_removed(config->fleet, before->pools[i].spec.name, w);
        }
    bt_workers_unref(before);
    return rc;
}

/* Who names it now: "config, file". */
static void list_sources(const bt_worker_t *w, char *text, size_t size)
{
    const unsigned sources = atomic_load_explicit(&w->sources, memory_order_relaxed);
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < BT_NAMED_COUNT; i++)
        if ((sources & (1U << i)) != 0)
            used += (size_t) snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "",
                                      bt_source_name((enum bt_source) i));
}

/* NULL when it can be removed: somebody gave its name by hand. */
static const char *not_removable(const bt_worker_t *w, char *why, size_t size)
{
    const unsigned sources = atomic_load_explicit(&w->sources, memory_order_relaxed);
    char names[64];

    if ((sources & ~BT_NAMED_FOUND) != 0)
        return NULL;
    list_sources(w, names, sizeof names);
    snprintf(why, size, "worker %s is named by: %s. Take it out there, or drain it here", w->name,
             names);
    return why;
}

static void say(const bt_admin_call_t *c, const char *what, bt_str_t name, const char *why)
{
    bt_text_printf(&c->reply->body, "{\"status\":\"%s\",\"worker\":", what);
    bt_text_json_str(&c->reply->body, name);
    bt_workers_end_told(c, why);
}

/* Others name it, too. */
static void say_kept(const bt_admin_call_t *c, const bt_worker_t *w, const char *why)
{
    char names[64];

    list_sources(w, names, sizeof names);
    bt_text_puts(&c->reply->body, "{\"status\":\"kept\"");
    bt_text_json_member(&c->reply->body, "worker", w->name);
    bt_text_json_member(&c->reply->body, "named_by", names);
    bt_workers_end_told(c, why);
}

void bt_workers_remove(const bt_admin_call_t *c)
{
    bt_worker_t *w = find(c);
    const char *why = NULL;
    char text[ERR_BYTES];

    if (w == NULL)
        return;
    if (not_removable(w, text, sizeof text) != NULL) {
        bt_reply_error(c->reply, 409, "%s", text);
        return;
    }
    bt_worker_ref(w); /* its name outlives the snapshot */
    int rc = remove_all(c->config, c->key, &why);
    if (rc < 0)
        bt_reply_error(c->reply, 503, "%s", bt_err_text(rc));
    else if (bt_workers_pool_of(bt_registry_current(c->config->registry), w) == NULL)
        say(c, "removed", bt_str(w->name), why);
    else
        say_kept(c, w, why);
    bt_worker_unref(w);
}

/* All that the key names (a url may stand in several pools), here and on the other replicas: told even where nothing changes here, for this order may have
 * overtaken another replica's that has not come yet. */
static void drain_all(const bt_admin_config_t *config, bt_str_t key, const bt_worker_t *first,
                      bool draining, const char **why_p)
{
    const bt_workers_t *workers = bt_registry_current(config->registry);
    const bool is_name = bt_str_eq(key, bt_str(first->name));

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            const bt_worker_t *w = workers->pools[i].all.items[j];
            if (w != first && (is_name || !is_same_place(w, first)))
                continue;
            (void) bt_registry_drain(config->registry, bt_str(w->name), draining);
            if (config->fleet != NULL)
                *why_p = bt_fleet_worker_drained(config->fleet, workers->pools[i].spec.name, w,
                                                 draining);
        }
}

static void drain(const bt_admin_call_t *c, bool draining)
{
    const bt_worker_t *w = bt_workers_find(bt_registry_current(c->config->registry), c->key);
    const bool is_name = w != NULL && bt_str_eq(c->key, bt_str(w->name));
    const char *why = NULL;
    unsigned lifted = 0;

    if (w != NULL)
        drain_all(c->config, c->key, w, draining, &why);
    if (c->config->fleet != NULL && !draining && !is_name) /* a drain outlives its worker */
        lifted = bt_fleet_undrain_url(c->config->fleet, c->key, &why);
    if (w != NULL || lifted > 0)
        say(c, draining ? "draining" : "serving", w != NULL ? bt_str(w->name) : c->key, why);
    else
        (void) find(c);
}

void bt_workers_drain(const bt_admin_call_t *c)
{
    drain(c, true);
}

void bt_workers_undrain(const bt_admin_call_t *c)
{
    drain(c, false);
}

/* ---- other routers' routes ---- */

static void answer_text(bt_admin_reply_t *reply, unsigned status, const char *before, bt_str_t text)
{
    reply->status = status;
    reply->type = "text/plain; charset=utf-8";
    if (status >= 400)
        snprintf(reply->why, sizeof reply->why, "%s%.*s", before, BT_STR_ARG(text));
    bt_text_puts(&reply->body, before);
    bt_text_put(&reply->body, text);
    bt_text_puts(&reply->body, "\n");
}

void bt_workers_peer_add(const bt_admin_call_t *c)
{
    char err[ERR_BYTES];
    bt_spec_request_t r;
    unsigned status = 400;

    if (bt_spec_from_query(&r, c->request->query, err, sizeof err) == 0)
        status = add(c->config, &r, err);
    name_object(c, bt_str(r.spec.url));
    if (status == 0)
        (void) notify_added(c->config);
    if (status != 0)
        answer_text(c->reply, status, "", bt_str(err));
    else
        answer_text(c->reply, 200, "Successfully added worker: ", bt_str(r.spec.url));
    bt_spec_request_fini(&r);
}

/* The url parameter, decoded; false when it is not there. */
static bool read_url(bt_str_t query, bt_text_t *url)
{
    bt_str_t name, value;

    while (bt_query_next(&query, &name, &value))
        if (bt_str_eq(name, BT_STR("url")))
            return bt_query_decode(url, value, true) == 0 && url->len > 0;
    return false;
}

void bt_workers_peer_remove(const bt_admin_call_t *c)
{
    const bt_worker_t *w = NULL;
    const char *why = NULL;
    char text[ERR_BYTES];
    bt_text_t url;

    bt_text_init(&url);
    if (!read_url(c->request->query, &url))
        answer_text(c->reply, 400, "",
                    BT_STR("\"url\" is missing: /remove_worker?url=http://host:port"));
    else if ((w = bt_workers_find(bt_registry_current(c->config->registry), bt_text_str(&url))) ==
             NULL)
        answer_text(c->reply, 404, "There is no worker: ", bt_text_str(&url));
    else if (not_removable(w, text, sizeof text) != NULL)
        answer_text(c->reply, 409, "Not removed: ", bt_str(text));
    else if (remove_all(c->config, bt_text_str(&url), &why) < 0)
        answer_text(c->reply, 503, "Not removed: ", bt_text_str(&url));
    else
        answer_text(c->reply, 200, "Successfully removed worker: ", bt_text_str(&url));
    name_object(c, bt_text_str(&url));
    bt_text_fini(&url);
}

void bt_workers_peer_list(const bt_admin_call_t *c)
{
    begin_list(c, "{\"urls\":[", true);
}

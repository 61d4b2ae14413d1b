#include "gateway/jwks_url.h"

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "discovery/https.h"
#include "loop/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>

#define TICK_MS 500
#define CALL_MS 10000
#define RETRY_MS 5000
#define CA_BYTES_MAX ((size_t) 1 << 20)

struct bt_jwks_url {
    bt_jwks_url_config_t config;
    bt_loop_t *loop;
    bt_https_t *https;
    bt_https_call_t call;
    bt_resolve_t resolve;
    bt_timer_t tick;
    char host[256], address[64];
    bt_text_t ca, body;
    uint64_t begun_ms, due_ms;
    bool is_resolving, is_missed, is_closed, is_failing;
};

/* ---- what comes ---- */

static void fail(bt_jwks_url_t *j, const char *why)
{
    const uint64_t retry = j->config.ttl_ms < RETRY_MS ? j->config.ttl_ms : RETRY_MS;

    if (!j->is_failing)
        bt_log_error("gateway",
                     "%s: %s; the issuer's keys that are known count on, it is asked again",
                     j->config.url, why);
    j->is_failing = true;
    j->due_ms = bt_clock_ms() + retry;
}

static void take(bt_jwks_url_t *j, bt_jwks_t *jwks)
{
    if (j->is_failing)
        bt_log_info("gateway", "%s: answers again", j->config.url);
    j->is_failing = false;
    const unsigned count = jwks->count, left_out = jwks->left_out;
    if (bt_identities_set_jwks(j->config.identities, jwks))
        bt_log_info("gateway", "%s: %u keys of the issuer count from now on, %u are of no use here",
                    j->config.url, count, left_out);
}

static bool on_data(bt_https_call_t *call, int status, bt_str_t bytes)
{
    bt_jwks_url_t *j = bt_container_of(call, bt_jwks_url_t, call);

    if (status != 200)
        return true;
    bt_text_put(&j->body, bytes);
    return !j->body.failed && j->body.len <= BT_JWKS_BYTES_MAX;
}

static void on_head(bt_https_call_t *call, int status)
{
    (void) call;
    (void) status;
}

static void on_end(bt_https_call_t *call, const bt_https_end_t *end)
{
    bt_jwks_url_t *j = bt_container_of(call, bt_jwks_url_t, call);
    bt_jwks_t *jwks = NULL;
    char why[400];

    j->due_ms = bt_clock_ms() + j->config.ttl_ms;
    if (j->body.len > BT_JWKS_BYTES_MAX)
        fail(j, "its answer is larger than 256 KiB");
    else if (end->status != 0 && end->status != 200)
        fail(j, (snprintf(why, sizeof why, "it answers with status %d", end->status), why));
    else if (!end->is_whole)
        fail(j, end->why);
    else if (bt_jwks_read(bt_text_str(&j->body), &jwks, why, sizeof why) < 0)
        fail(j, why);
    else
        take(j, jwks);
    bt_text_fini(&j->body);
    bt_text_init(&j->body);
}

/* ---- a call ---- */

static void call(bt_jwks_url_t *j)
{
    const bt_https_request_t request = {.url = j->config.url,
                                        .address = j->address[0] != '\0' ? j->address : NULL,
                                        .ca = bt_text_str(&j->ca),
                                        .total_ms = CALL_MS};
    int rc = bt_https_get(j->https, &j->call, &request);

    if (rc < 0)
        fail(j, bt_err_text(rc));
}

static void free_when_done(bt_jwks_url_t *j)
{
    if (j->is_resolving)
        return;
    bt_text_fini(&j->ca);
    bt_text_fini(&j->body);
    free(j);
}

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    bt_jwks_url_t *j = r->user;

    j->is_resolving = false;
    if (j->is_closed) {
        free_when_done(j);
        return;
    }
    if (rc == 0 && getnameinfo((const struct sockaddr *) addr, sizeof *addr, j->address,
                               sizeof j->address, NULL, 0, NI_NUMERICHOST) != 0)
        rc = BT_E_RESOLVE;
    if (rc < 0)
        fail(j, bt_err_text(rc));
    else
        call(j);
}

static void fetch(bt_jwks_url_t *j)
{
    struct sockaddr_storage numeric;
    int rc;

    if (j->is_resolving || bt_https_runs(&j->call))
        return;
    j->is_missed = false;
    j->begun_ms = bt_clock_ms();
    j->due_ms = j->begun_ms + j->config.ttl_ms;
    if (bt_resolve_numeric(j->host, 0, &numeric) == 0) {
        call(j);
        return;
    }
    j->resolve.user = j;
    rc = bt_resolve_start(&j->resolve, j->loop, j->host, 0, on_resolved);
    j->is_resolving = rc == 0;
    if (rc < 0)
        fail(j, bt_err_text(rc));
}

static void on_tick(bt_timer_t *timer)
{
    bt_jwks_url_t *j = bt_container_of(timer, bt_jwks_url_t, tick);
    const uint64_t now = bt_clock_ms();

    if (bt_identities_was_kid_missed(j->config.identities))
        j->is_missed = true;
    if (now >= j->due_ms || (j->is_missed && now >= j->begun_ms + BT_JWKS_MISSED_MS))
        fetch(j);
    bt_timer_start(timer, TICK_MS);
}

/* ---- life ---- */

static int read_ca(bt_jwks_url_t *j, char *err, size_t err_size)
{
    const char *path = j->config.ca_file;
    char piece[4096];
    size_t n;

    if (path == NULL)
        return 0;
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return bt_err_refuse(err, err_size, "--jwt-jwks-ca-file: %s: %s", path, strerror(errno));
    while ((n = fread(piece, 1, sizeof piece, in)) > 0 && j->ca.len <= CA_BYTES_MAX)
        bt_text_put(&j->ca, (bt_str_t){piece, n});
    const bool is_bad = ferror(in) || j->ca.len == 0 || j->ca.len > CA_BYTES_MAX;
    fclose(in);
    if (is_bad)
        return bt_err_refuse(err, err_size,
                             "--jwt-jwks-ca-file: %s: certificates in PEM are expected", path);
    return 0;
}

static void find_host(bt_jwks_url_t *j)
{
    const char *from = strstr(j->config.url, "://") + 3; /* config/identity.c has looked */
    const bool is_v6 = *from == '[';

    from += is_v6;
    snprintf(j->host, sizeof j->host, "%.*s", (int) strcspn(from, is_v6 ? "]" : "/:?#"), from);
}

int bt_jwks_url_new(bt_jwks_url_t **j_p, bt_loop_t *loop, const bt_jwks_url_config_t *config,
                    char *err, size_t err_size)
{
    bt_jwks_url_t *j = calloc(1, sizeof *j);
    int rc;

    if (j == NULL)
        return BT_E_NOMEM;
    j->config = *config;
    j->loop = loop;
    j->call.on_head = on_head;
    j->call.on_data = on_data;
    j->call.on_end = on_end;
    bt_text_init(&j->ca);
    bt_text_init(&j->body);
    bt_timer_init(loop, &j->tick, on_tick);
    find_host(j);
    rc = read_ca(j, err, err_size);
    if (rc == 0)
        rc = bt_https_new(&j->https, loop, err, err_size);
    if (rc < 0) {
        free_when_done(j);
        return rc;
    }
    *j_p = j;
    return 0;
}

void bt_jwks_url_start(bt_jwks_url_t *j)
{
    fetch(j);
    bt_timer_start(&j->tick, TICK_MS);
}

void bt_jwks_url_again(bt_jwks_url_t *j)
{
    j->due_ms = 0;
}

void bt_jwks_url_close(bt_jwks_url_t *j)
{
    if (j == NULL)
        return;
    j->is_closed = true;
    bt_timer_stop(&j->tick);
    bt_https_cancel(&j->call);
    bt_https_close(j->https);
    if (j->is_resolving)
        bt_resolve_cancel(&j->resolve); /* its end comes all the same */
    else
        free_when_done(j);
}

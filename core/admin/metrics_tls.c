/* metrics_tls.c - handshakes by listener, and when certificates expire. */
#include "admin/metrics.h"

#include "tls/server.h"

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

typedef struct side {
    const char *name;
    bt_tls_server_t *server;
} side_t;

static void write_handshakes(bt_prom_t *p, const side_t *side)
{
    const bt_tls_counts_t *counts = bt_tls_server_counts(side->server);
    const bt_label_t listener = {"listener", bt_str(side->name)};
    const bt_label_t with_12[] = {listener, {"version", BT_STR("TLSv1.2")}},
                     with_13[] = {listener, {"version", BT_STR("TLSv1.3")}};

    bt_prom_count(p, with_12, 2, load(&counts->done_12));
    bt_prom_count(p, with_13, 2, load(&counts->done_13));
}

static void write_resumed(bt_prom_t *p, const side_t *side)
{
    const bt_label_t listener = {"listener", bt_str(side->name)};

    bt_prom_count(p, &listener, 1, load(&bt_tls_server_counts(side->server)->resumed));
}

static void write_failures(bt_prom_t *p, const side_t *side)
{
    const bt_tls_counts_t *counts = bt_tls_server_counts(side->server);

    for (unsigned i = 0; i < BT_TLS_FAILURES; i++) {
        const bt_label_t labels[] = {
            {"listener", bt_str(side->name)},
            {"reason", bt_str(bt_tls_failure_name((enum bt_tls_failure) i))}};
        bt_prom_count(p, labels, 2, load(&counts->failed[i]));
    }
}

static void write_expiry(bt_prom_t *p, const side_t *side)
{
    char file[256];
    int64_t expiry_s;

    for (unsigned i = 0; bt_tls_server_expiry(side->server, i, &expiry_s, file, sizeof file); i++) {
        const bt_label_t labels[] = {{"listener", bt_str(side->name)}, {"file", bt_str(file)}};
        bt_prom_int(p, labels, 2, expiry_s);
    }
}

static void each(bt_prom_t *p, const side_t sides[2], void (*write)(bt_prom_t *, const side_t *))
{
    for (unsigned i = 0; i < 2; i++)
        if (sides[i].server != NULL)
            write(p, &sides[i]);
}

void bt_metrics_tls(bt_prom_t *p, bt_tls_server_t *clients, bt_tls_server_t *admin)
{
    const side_t sides[2] = {{"client", clients}, {"admin", admin}};

    if (clients == NULL && admin == NULL)
        return;
    bt_prom_family(p, "baton_tls_handshakes_total", "counter",
                   "TLS handshakes of clients that were done, by version");
    each(p, sides, write_handshakes);
    bt_prom_family(p, "baton_tls_handshakes_resumed_total", "counter",
                   "Of them, those that a ticket made short");
    each(p, sides, write_resumed);
    bt_prom_family(p, "baton_tls_handshakes_failed_total", "counter",
                   "TLS handshakes of clients that failed, by reason");
    each(p, sides, write_failures);
    bt_prom_family(p, "baton_tls_certificate_expiry_seconds", "gauge",
                   "When each certificate expires, in seconds since 1970");
    each(p, sides, write_expiry);
}

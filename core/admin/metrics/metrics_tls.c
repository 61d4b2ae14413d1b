/* metrics_tls.c - handshakes by side, and when certificates expire. */
#include "admin/metrics/metrics.h"

#include "store/store.h"
#include "tls/client.h"
#include "tls/server.h"

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

/* Who the other end is. */
typedef struct side {
    const char *name;
    bt_tls_server_t *server;       /* NULL: we are its client */
    const bt_tls_counts_t *counts; /* of ours as a client */
} side_t;

static const bt_tls_counts_t *counts_of(const side_t *side)
{
    return side->server != NULL ? bt_tls_server_counts(side->server) : side->counts;
}

static void write_handshakes(bt_prom_t *p, const side_t *side)
{
    const bt_tls_counts_t *counts = counts_of(side);
    const bt_label_t label = {"side", bt_str(side->name)};
    const bt_label_t with_12[] = {label, {"version", BT_STR("TLSv1.2")}},
                     with_13[] = {label, {"version", BT_STR("TLSv1.3")}};

    bt_prom_count(p, with_12, 2, load(&counts->done_12));
    bt_prom_count(p, with_13, 2, load(&counts->done_13));
}

static void write_resumed(bt_prom_t *p, const side_t *side)
{
    const bt_label_t label = {"side", bt_str(side->name)};

    bt_prom_count(p, &label, 1, load(&counts_of(side)->resumed));
}

static void write_failures(bt_prom_t *p, const side_t *side)
{
    const bt_tls_counts_t *counts = counts_of(side);

    for (unsigned i = 0; i < BT_TLS_FAILURES; i++) {
        const bt_label_t labels[] = {
            {"side", bt_str(side->name)},
            {"reason", bt_str(bt_tls_failure_name((enum bt_tls_failure) i))}};
        bt_prom_count(p, labels, 2, load(&counts->failed[i]));
    }
}

static void write_expiry(bt_prom_t *p, const side_t *side)
{
    char file[256];
    int64_t expiry_s;

    for (unsigned i = 0; bt_tls_server_expiry(side->server, i, &expiry_s, file, sizeof file); i++) {
        const bt_label_t labels[] = {{"side", bt_str(side->name)}, {"file", bt_str(file)}};
        bt_prom_int(p, labels, 2, expiry_s);
    }
}

void bt_metrics_tls(bt_prom_t *p, bt_tls_server_t *clients, bt_tls_server_t *admin)
{
    static const struct {
        const char *name, *type, *help;
        void (*write)(bt_prom_t *, const side_t *);
        bool is_served; /* of listeners only */
    } rows[] = {
        {"baton_tls_handshakes_total", "counter", "TLS handshakes that were done, by version",
         write_handshakes, false},
        {"baton_tls_handshakes_resumed_total", "counter", "Of them, those that a ticket made short",
         write_resumed, false},
        {"baton_tls_handshakes_failed_total", "counter", "TLS handshakes that failed, by reason",
         write_failures, false},
        {"baton_tls_certificate_expiry_seconds", "gauge",
         "When each certificate expires, in seconds since 1970", write_expiry, true},
    };
    const side_t sides[] = {{"client", clients, NULL},
                            {"admin", admin, NULL},
                            {"worker", NULL, bt_tls_client_counts()},
                            {"store", NULL, bt_store_tls_counts()}};
    const bool is_client = bt_tls_clients_are_there();

    if (clients == NULL && admin == NULL && !is_client)
        return;
    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        bt_prom_family(p, rows[r].name, rows[r].type, rows[r].help);
        for (unsigned i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
            if (sides[i].server != NULL ||
                (sides[i].counts != NULL && is_client && !rows[r].is_served))
                rows[r].write(p, &sides[i]);
    }
}

/* metrics_http2.c - clients' HTTP/2: connections, streams, and why some of them were ended. */
#include "admin/metrics/metrics.h"

#include "http/http2_counts.h"

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

void bt_metrics_http2(bt_prom_t *p)
{
    bt_http2_counts_t c;

    bt_http2_counts_sum(&c);
    const uint64_t connections = load(&c.connections), streams = load(&c.streams);
    bt_prom_one(p, "baton_http2_connections", "gauge", "Clients' connections that speak HTTP/2",
                connections - load(&c.connections_closed));
    bt_prom_one(p, "baton_http2_connections_total", "counter", "Such connections so far",
                connections);
    bt_prom_one(p, "baton_http2_streams", "gauge", "Their streams: requests that are not over",
                streams - load(&c.streams_closed));
    bt_prom_one(p, "baton_http2_streams_total", "counter", "Such streams so far", streams);
    bt_prom_family(p, "baton_http2_streams_reset_total", "counter",
                   "Streams that were reset, by the client or for what is said");
    for (unsigned i = 0; i < BT_HTTP2_RESETS; i++) {
        const bt_label_t label = {"cause", bt_str(bt_http2_reset_name((enum bt_http2_reset) i))};
        bt_prom_count(p, &label, 1, load(&c.resets[i]));
    }
    bt_prom_family(p, "baton_http2_connections_ended_total", "counter",
                   "Connections that were ended for what their client did");
    for (unsigned i = 0; i < BT_HTTP2_ENDS; i++) {
        const bt_label_t label = {"cause", bt_str(bt_http2_end_name((enum bt_http2_end) i))};
        bt_prom_count(p, &label, 1, load(&c.ends[i]));
    }
}

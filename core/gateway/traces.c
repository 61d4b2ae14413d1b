/* traces.c - traces to --trace-endpoint: the queue that all loops share, and the exporter on the control loop. */
#include "gateway/traces.h"

#include "config/config.h"
#include "trace/exporter.h"

int bt_gateway_traces_open(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    const bt_trace_exporter_config_t config = {
        .endpoint = c->trace_endpoint,
        .service_name = c->trace_service_name != NULL ? c->trace_service_name : "baton",
        .instance = g->replica,
        .version = BT_VERSION,
        .ca_file = c->trace_ca_file,
        .headers_file = c->trace_headers_file};
    int rc;

    if (c->trace_endpoint == NULL)
        return 0;
    rc = bt_trace_queue_new(&g->shared.traces);
    if (rc == 0)
        rc = bt_trace_exporter_new(&g->traces, &g->control, g->shared.traces, &config, err,
                                   err_size);
    g->shared.trace_sample = c->trace_sample_ppm / 1e6;
    g->shared.trace_slow_us = c->trace_slow_ms * 1000;
    return rc;
}

void bt_gateway_traces_start(bt_gateway_t *g)
{
    if (g->traces != NULL)
        bt_trace_exporter_start(g->traces);
}

void bt_gateway_traces_close(bt_gateway_t *g, void (*done)(void *gateway))
{
    bt_trace_exporter_t *traces = g->traces;

    g->traces = NULL;
    bt_trace_exporter_close(traces, done, g);
}

void bt_gateway_traces_free(bt_gateway_t *g)
{
    bt_trace_queue_free(g->shared.traces);
    g->shared.traces = NULL;
}

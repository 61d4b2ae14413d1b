/* KV transfer between gateway-managed workers, as the hub counts it. Not there at all without --transfer-port. */
#include "admin/metrics/metrics.h"

#define N(array) ((unsigned) (sizeof(array) / sizeof((array)[0])))

static void write_phases(bt_prom_t *p, const bt_transfer_stats_t *stats)
{
    bt_prom_family(p, "baton_transfer_rooms", "gauge",
                   "Rooms that have not ended, by what they are doing");
    for (unsigned i = 0; i < BT_TRANSFER_PHASE_DONE; i++) {
        const bt_label_t label = {"phase",
                                  bt_str(bt_transfer_phase_name((enum bt_transfer_phase) i))};
        bt_prom_count(p, &label, 1, stats->rooms_by_phase[i]);
    }
}

static void write_results(bt_prom_t *p, const bt_transfer_stats_t *stats)
{
    const struct {
        const char *result;
        uint64_t value;
    } rows[] = {{"done", stats->rooms_done},
                {"failed", stats->rooms_failed},
                {"closed", stats->rooms_closed}};

    bt_prom_family(
        p, "baton_transfer_rooms_total", "counter",
        "Rooms that have ended; closed: the gateway gave them up, as when a client left");
    for (unsigned i = 0; i < N(rows); i++) {
        const bt_label_t label = {"result", bt_str(rows[i].result)};
        bt_prom_count(p, &label, 1, rows[i].value);
    }
}

void bt_metrics_transfer(bt_prom_t *p, const bt_transfer_stats_t *stats)
{
    const bt_prom_row_t rows[] = {
        {"baton_transfer_agents", "gauge", "Agents of engines that are registered", stats->agents},
        {"baton_transfer_agents_waiting", "gauge",
         "Registered agents whose worker is not in the fleet", stats->agents_waiting},
        {"baton_transfer_agents_lost_total", "counter",
         "Agents whose connection ended or fell silent", stats->agents_lost},
        {"baton_transfer_agents_refused_total", "counter",
         "Connections that were refused, or closed before they had registered",
         stats->agents_refused},
        {"baton_transfer_rooms_orphaned_total", "counter",
         "Rooms whose sender was lost before the first byte", stats->rooms_orphaned},
        {"baton_transfer_rooms_repaired_total", "counter",
         "Times that another prefill took over a room", stats->rooms_repaired},
        {"baton_transfer_bytes_total", "counter", "KV bytes that receivers of ended rooms have got",
         stats->bytes},
    };

    bt_prom_rows(p, rows, N(rows));
    write_phases(p, stats);
    write_results(p, stats);
    bt_prom_one_micro(p, "baton_transfer_wait_seconds_total", "counter",
                      "Time that done rooms have waited for their first byte, sum", stats->wait_us);
    bt_prom_one_micro(p, "baton_transfer_seconds_total", "counter",
                      "Time from the first to the last byte of done rooms, sum",
                      stats->transfer_us);
}

void bt_metrics_registration(bt_prom_t *p, const bt_registration_t *registration)
{
    bt_prom_family(p, "baton_registrations_total", "counter",
                   "What engines have said of themselves by ZeroMQ: taken, or why not (malformed, "
                   "stranger, unknown, conflict)");
    for (unsigned i = 0; i < BT_REGISTRATION_RESULTS; i++) {
        const enum bt_registration_result result = (enum bt_registration_result) i;
        const bt_label_t label = {"result", bt_str(bt_registration_result_name(result))};
        bt_prom_count(p, &label, 1, bt_registration_count(registration, result));
    }
}

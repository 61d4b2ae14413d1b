"""What vLLM's log and /metrics tell of transfers: vllm:baton_kv_*. A worker notes, the scheduler's process adds up, the server shows.

Histograms are of rooms that this engine received (decode), one value a room and worker; counters of both sides.
"""
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
BYTES = [2 ** power for power in range(14, 37, 2)]  # 16 KiB to 64 GiB
HISTOGRAMS = {
    "wait_seconds": ("Time from a room's opening at decode to its first byte.", SECONDS),
    "transfer_seconds": ("Time from a room's first byte at decode to its last.", SECONDS),
    "received_bytes": ("KV bytes that came in a room.", BYTES)}
COUNTERS = {
    "sent_bytes": "KV bytes that left in rooms that succeeded.",
    "failed_loads": "Rooms that decode opened and that failed.",
    "failed_sends": "Rooms that prefill opened and that failed."}


class BatonStats(KVConnectorStats):
    """data: a list of values for each histogram, a sum for each counter. Plain, since it is pickled and packed on its way."""

    def __init__(self, data=None):
        super().__init__(data or {})
        if not self.data:
            self.reset()

    def reset(self):
        self.data = {**{name: [] for name in HISTOGRAMS}, **dict.fromkeys(COUNTERS, 0)}

    def note_received(self, room):
        """room: RoomStats of the library."""
        self.data["wait_seconds"].append((room.bootstrap_us + room.wait_us) / 1e6)
        self.data["transfer_seconds"].append(room.transfer_us / 1e6)
        self.data["received_bytes"].append(room.bytes)

    def note_sent(self, room):
        self.data["sent_bytes"] += room.bytes

    def note_failure(self, is_load):
        self.data["failed_loads" if is_load else "failed_sends"] += 1

    def take(self):
        """What there is, and from here on nothing; None where there is nothing."""
        if self.is_empty():
            return None
        taken = BatonStats(data=self.data)
        self.reset()
        return taken

    def is_empty(self):
        return not any(self.data.values())

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data[name] + value
        return self

    def reduce(self):
        """For the log's line."""
        size, seconds = sum(self.data["received_bytes"]), sum(self.data["transfer_seconds"])
        return {"Rooms received": len(self.data["received_bytes"]), "MB received": round(size / 1e6, 3),
                "Throughput (MB/s)": round(size / 1e6 / seconds, 1) if seconds else 0,
                "Max wait (ms)": round(max(self.data["wait_seconds"], default=0) * 1e3, 1),
                "MB sent": round(self.data["sent_bytes"] / 1e6, 3),
                "Failed loads": self.data["failed_loads"], "Failed sends": self.data["failed_sends"]}


class BatonPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.metrics = {}
        for name, (text, buckets) in HISTOGRAMS.items():
            self.add(name, self._histogram_cls(name=f"vllm:baton_kv_{name}", documentation=text, buckets=buckets,
                                               labelnames=labelnames))
        for name, text in COUNTERS.items():
            self.add(name, self._counter_cls(name=f"vllm:baton_kv_{name}", documentation=text, labelnames=labelnames))

    def add(self, name, metric):
        self.metrics[name] = create_metric_per_engine(metric, self.per_engine_labelvalues)

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            metric = self.metrics[name][engine_idx]
            if name in COUNTERS:
                metric.inc(value)
            for one in value if name in HISTOGRAMS else ():
                metric.observe(one)

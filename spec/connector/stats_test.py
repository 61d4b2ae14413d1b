"""What vLLM shows of transfers: its log's line and vllm:baton_kv_* on /metrics."""
import pickle
import unittest

import paths  # noqa: F401
from vllm.distributed.kv_transfer.kv_connector.v1 import metrics
from vllm_connector.baton_kv import RoomStats
from vllm_connector.connector import BatonConnector
from vllm_connector.stats import BatonStats

ROOM = {"bytes": 3_000_000, "bootstrap_us": 1000, "wait_us": 2000, "transfer_us": 6000}


def noted():
    stats = BatonStats()
    stats.note_received(RoomStats(**ROOM))
    stats.note_sent(RoomStats(bytes=500_000))
    stats.note_failure(is_load=True)
    stats.note_failure(is_load=False)
    stats.note_failure(is_load=False)
    return stats


class Stats(unittest.TestCase):
    def test_nothing_is_nothing(self):
        self.assertTrue(BatonStats().is_empty())
        self.assertIsNone(BatonStats().take())

    def test_each_step_tells_what_is_new(self):
        stats = noted()
        taken = pickle.loads(pickle.dumps(stats.take()))
        self.assertEqual(taken.data, {"wait_seconds": [0.003], "transfer_seconds": [0.006], "received_bytes": [3_000_000],
                                      "sent_bytes": 500_000, "failed_loads": 1, "failed_sends": 2})
        self.assertIsNone(stats.take())
        stats.note_sent(RoomStats(bytes=1))
        self.assertEqual(taken.data["sent_bytes"], 500_000, "it is its own")

    def test_ranks_and_steps_add_up(self):
        total = BatonConnector.build_kv_connector_stats()
        for _ in range(3):
            total = total.aggregate(BatonConnector.build_kv_connector_stats(noted().to_dict()))
        self.assertEqual((total.data["received_bytes"], total.data["sent_bytes"]), ([3_000_000] * 3, 1_500_000))

    def test_the_logs_line(self):
        self.assertEqual(noted().reduce(), {"Rooms received": 1, "MB received": 3.0, "Throughput (MB/s)": 500.0, "Max wait (ms)": 3.0,
                                            "MB sent": 0.5, "Failed loads": 1, "Failed sends": 2})
        self.assertEqual(BatonStats().reduce()["Throughput (MB/s)"], 0)


class Metric:
    made = {}

    def __init__(self, name, documentation, labelnames, buckets=()):
        self.name, self.text, self.values, self.buckets = name, documentation, [], buckets
        Metric.made[name] = self

    def labels(self, *values):
        assert values == ("model", "0")
        return self

    def inc(self, value):
        self.values.append(value)

    observe = inc


class Prometheus(unittest.TestCase):
    def test_every_figure_has_its_metric(self):
        Metric.made = {}
        shown = BatonConnector.build_prom_metrics(None, dict.fromkeys((metrics.Gauge, metrics.Counter, metrics.Histogram), Metric),
                                                  ["model_name", "engine"], {0: ["model", "0"]})
        shown.observe(noted().data, 0)
        self.assertEqual({name: metric.values for name, metric in Metric.made.items()}, {
            "vllm:baton_kv_wait_seconds": [0.003], "vllm:baton_kv_transfer_seconds": [0.006],
            "vllm:baton_kv_received_bytes": [3_000_000], "vllm:baton_kv_sent_bytes": [500_000], "vllm:baton_kv_failed_loads": [1],
            "vllm:baton_kv_failed_sends": [2]})


if __name__ == "__main__":
    unittest.main()

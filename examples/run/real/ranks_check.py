"""BatonConnector between engines of unlike tensor-parallel sizes: each decode rank must get the heads that it computes with.

The tiny model has two KV heads, so of two ranks each holds one. Wrong heads give another text.
"""
import os

from pair import Pair
from process import cores, free_ports
from request_check import check_requests
from vllm_engine import VllmEngine

SIZES = ((2, 1), (1, 2))


class RanksPair(Pair):
    def __init__(self, venv, model, folder, backend, sizes):
        self.sizes, self.backend = sizes, backend
        self.transfer_port, = free_ports(1)
        super().__init__(venv, model, os.path.join(folder, f"ranks-{sizes[0]}-{sizes[1]}"), "BatonConnector")

    def start(self, venv, model):
        extra = {"gateway": f"127.0.0.1:{self.transfer_port}", "backends": [self.backend]}
        engines = [self.add(VllmEngine(venv, model, self.folder, role, core, self.connector, extra, ranks=ranks))
                   for role, core, ranks in zip(("prefill", "decode"), cores(), self.sizes)]
        self.prefills, self.decode = engines[:1], engines[1]

    def gateway(self, name, decode_url, *flags):
        return super().gateway(name, decode_url, "--transfer-port", str(self.transfer_port), *flags)


def check_ranks(venv, model, folder, backend, plain, report):
    for sizes in SIZES:
        name = f"BatonConnector over {backend}, {sizes[0]} ranks of prefill and {sizes[1]} of decode"
        print(f"\n{name}: starting prefill and decode", flush=True)
        pair = RanksPair(venv, model, folder, backend, sizes)
        try:
            pair.wait_ready()
            plain.wait_ready()
            report.head(f"{name}, text and usage against the plain engine's")
            gateway = pair.gateway("gateway", pair.decode.url)
            check_requests(pair, gateway, plain, report)
            report.row("each rank received, nothing failed", wrong_figures(pair))
            gateway.stop()
        finally:
            pair.stop()


def wrong_figures(pair):
    """As vLLM's own /metrics tells them."""
    received = pair.decode.metric("vllm:baton_kv_received_bytes_count")
    failed = pair.decode.metric("vllm:baton_kv_failed_loads_total")
    sent = pair.prefill.metric("vllm:baton_kv_sent_bytes_total")
    good = received > 0 and received % pair.sizes[1] == 0 and failed == 0 and sent > 0
    return [] if good else [f"received {received}, failed {failed}, sent {sent}"]

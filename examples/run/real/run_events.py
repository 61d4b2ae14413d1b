"""python run_events.py vllm|sglang|pair|sim - the gateway over two real engines on this CPU that publish their KV events.

pair: prefill and decode of vLLM with NixlConnector; otherwise each engine does both. sim: what `baton sim` foretells of two of vLLM's.
"""
import json
import sys
import time

import sglang_install
import sim_check
import vllm_install
from events_check import BLOCK, BLOCKS, check_events, check_loss
from events_pair import check_pair
from model import ready_model
from process import StartError, cores, free_ports
from report import Report
from scratch import scratch_folder
from sglang_engine import SglangEngine
from vllm_engine import VllmEngine

PAIR = ("prefill", "decode")


def config(engine):
    engine.events, engine.replay = free_ports(2)
    return ["--kv-events-config", json.dumps({"publisher": "zmq", "endpoint": f"tcp://*:{engine.events}",
                                              "replay_endpoint": f"tcp://*:{engine.replay}", **engine.SWITCH})]


class Vllm(VllmEngine):
    kind, install, SWITCH = "vllm", vllm_install, {"enable_kv_cache_events": True}
    room = ["--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "1024"]

    def __init__(self, venv, model, folder, name, core):
        self.name = name
        connector = "NixlConnector" if name in PAIR else None
        super().__init__(venv, model, folder, name, core, connector, flags=[
            *config(self), "--enable-prompt-tokens-details", "--enable-prefix-caching", "--block-size", str(BLOCK),
            *self.room])


class LongVllm(Vllm):
    room = ["--num-gpu-blocks-override", str(sim_check.BLOCKS), "--max-num-batched-tokens", str(sim_check.STEP_TOKENS)]


class Sglang(SglangEngine):
    kind, install, SWITCH = "sglang", sglang_install, {}

    def __init__(self, venv, model, folder, name, core):
        self.name = name
        super().__init__(venv, model, folder, "plain", core, flags=[
            *config(self), "--enable-cache-report", "--page-size", str(BLOCK), "--max-total-tokens", str(BLOCKS * BLOCK)])


def main(asked):
    wanted = {"vllm": (Vllm, ("w1", "w2")), "sglang": (Sglang, ("w1", "w2")), "pair": (Vllm, PAIR),
              "sim": (LongVllm, ("w1", "w2"))}
    if len(asked) != 1 or asked[0] not in wanted:
        sys.exit(f"usage: run_events.py {'|'.join(wanted)}")
    kind, names = wanted[asked[0]]
    print(f"KV events of real {kind.kind} engines on this CPU")
    venv = kind.install.ready_venv()
    model = ready_model(venv)
    report = Report(("requests", "hits", "foretold", "apart") if asked[0] == "sim" else
                    ("requests", "equal", "share", "cached", "evicted"))
    with scratch_folder("events", report) as folder:
        engines = [kind(venv, model, folder, name, core) for name, core in zip(names, cores())]
        try:
            began = time.monotonic()
            for engine in engines:
                engine.wait_ready()
            print(f"  engines ready after {time.monotonic() - began:.0f} s")
            report.head("hits that `baton sim` foretells" if asked[0] == "sim" else "predicted hits are what engines say they had")
            if asked[0] == "sim":
                sim_check.check_sim(folder, engines, report)
            elif names == PAIR:
                check_pair(folder, engines, report)
            else:
                check_events(folder, engines, report)
                check_loss(venv, folder, engines, report)
        except StartError as error:
            report.row("start", [str(error)])
        finally:
            for engine in engines:
                engine.process.kill()
    return report.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The gateway over real vLLM engines on this CPU: one prefill, one decode, and a plain engine that says what is right."""
import os
import sys
import time

import vllm_install
from answers import read
from cases import prompt, vllm_cases
from compare import ask_both, differences, monotony, wait_for
from gateway import Gateway
from kill_check import check_kill
from model import ready_model
from process import StartError, cores
from report import Report
from scratch import scratch_folder
from vllm_engine import BLOCK, VllmEngine

CONNECTORS = ("NixlConnector", "NixlPushConnector", "ExampleConnector")
RESPONSE = {"model": "tiny", "max_output_tokens": 16, "temperature": 0}


class Pair:
    """Prefill and decode with one connector, and the gateway before them."""

    def __init__(self, venv, model, folder, connector):
        self.connector = connector
        self.folder = os.path.join(folder, connector)
        os.mkdir(self.folder)
        first, second = cores()
        self.engines = []
        self.prefill = self.add(VllmEngine(venv, model, self.folder, "prefill", first, connector))
        self.decode = self.add(VllmEngine(venv, model, self.folder, "decode", second, connector))

    def add(self, engine):
        self.engines.append(engine)
        return engine

    def wait_ready(self):
        for engine in self.engines:
            engine.wait_ready()

    def ask_decode(self, request, plain):
        """Without parameters decode is an engine like any other."""
        got, expected = (read("completions", one.post("/v1/completions", request)) for one in (self.decode, plain))
        return got.faults + ([] if got.texts == expected.texts else [f"{got.texts} instead of {expected.texts}"])

    def gateway(self, name, decode_url):
        return Gateway(name, self.folder, cores()[1], ["--vllm-pd-disaggregation", "--kv-connector", self.connector,
                                                       "--prefill", self.prefill.url, "--decode", decode_url])

    def stop(self):
        for engine in self.engines:
            engine.process.kill()


def check_requests(pair, gateway, plain, report):
    """Every case; then prefill must hold nothing."""
    idle = pair.prefill.kv_usage()
    seen = []
    for case in vllm_cases(pair.connector):
        computed, received, took = pair.decode.computed_prompt_tokens(), pair.decode.received_prompt_tokens(), []
        faults, texts = ask_both(case, gateway, plain, took)
        seen += texts
        wait_for(lambda: pair.decode.received_prompt_tokens() > received, 1)
        computed = round(pair.decode.computed_prompt_tokens() - computed)
        received = round(pair.decode.received_prompt_tokens() - received)
        faults += wrong_source(pair.connector, case, computed, received)
        report.row(case.name, faults, (computed, received, *took))
    report.row("answers differ among prompts", monotony(seen))
    report.row("responses, follow-up by id", follow_up(gateway, plain))
    check_refusal(gateway, plain, report)
    check_idle(pair, idle, report)


def wrong_source(connector, case, computed, received):
    """Where decode's prompt tokens came from. A store of whole blocks leaves each prompt's rest to decode."""
    if connector == "ExampleConnector":
        is_short = "4 tokens" in case.name
        faults = [] if computed <= BLOCK * case.prompts else [f"decode computed {computed} prompt tokens"]
        return faults if received > 0 or is_short else faults + ["decode got nothing from the store"]
    faults = [] if computed == 0 else [f"decode computed {computed} prompt tokens"]
    return faults if received > 0 else faults + ["decode received nothing from prefill"]


def follow_up(gateway, plain):
    """The second turn names the first by id, which only the worker that made it knows."""
    turns = []
    for server in (gateway, plain):
        first = server.post("/v1/responses", {**RESPONSE, "input": prompt("first turn")})
        if first.status != 200:
            return [f"first turn: {first.status} {first.body[:300]!r}"]
        again = server.get("/v1/responses/" + first.json()["id"])
        second = server.post("/v1/responses", {**RESPONSE, "input": "and then?", "previous_response_id": first.json()["id"]})
        turns.append([read("responses", reply) for reply in (first, again, second)])
    return [fault for expected, got in zip(turns[1], turns[0]) for fault in differences(expected, got)]


def check_refusal(gateway, plain, report):
    """What decode refuses reaches the client as it is, and frees prefill (check_idle sees it)."""
    body = {"model": "tiny", "prompt": prompt("too long"), "max_tokens": 999999, "temperature": 0}
    expected, got = plain.post("/v1/completions", body), gateway.post("/v1/completions", body)
    faults = [] if got.status == 400 and got.body == expected.body else [f"{got.status} {got.body[:300]!r}"]
    report.row("max_tokens 999999: the engine's own 400", faults)


def check_idle(pair, idle, report):
    """Well within the lease of 30 s: blocks are gone because decode read or refused them, not because time passed."""
    is_idle = wait_for(lambda: pair.prefill.kv_usage() <= idle, 8)
    faults = [] if is_idle else [f"kv_cache_usage_perc {pair.prefill.kv_usage()} instead of {idle}"]
    if pair.prefill.expired_holds() > 0:
        faults.append(f"{pair.prefill.expired_holds():.0f} leases ran out")
    report.row("no block left on prefill", faults)


def check_connector(venv, model, folder, connector, plain, report):
    print(f"\n{connector}: starting prefill and decode", end="", flush=True)
    began = time.monotonic()
    pair = Pair(venv, model, folder, connector)
    try:
        pair.wait_ready()
        plain.wait_ready()
        print(f", ready after {time.monotonic() - began:.0f} s")
        report.head(f"{connector}, text and usage against the plain engine's")
        gateway = pair.gateway("gateway", pair.decode.url)
        check_requests(pair, gateway, plain, report)
        gateway.stop()
        if connector != "ExampleConnector":  # there the store outlives prefill
            check_kill(pair, plain, report)
    finally:
        pair.stop()


def main():
    wanted = [os.environ["CONNECTOR"]] if os.environ.get("CONNECTOR") else CONNECTORS
    unknown = set(wanted) - set(CONNECTORS)
    if unknown:
        sys.exit(f"error: CONNECTOR={unknown.pop()} is none of {', '.join(CONNECTORS)}")
    print("real vLLM engines on this CPU")
    venv = vllm_install.ready_venv()
    model = ready_model(venv)
    report = Report(("computed", "received", "ms"))
    with scratch_folder("vllm", report) as folder:
        plain = VllmEngine(venv, model, folder, "plain", cores()[0])
        try:
            for connector in wanted:
                check_connector(venv, model, folder, connector, plain, report)
        except StartError as error:
            report.row("start", [str(error)])
        finally:
            plain.process.kill()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

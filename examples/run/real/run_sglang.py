"""The gateway over a real SGLang pair on this CPU, KV by Mooncake over TCP; a plain server says what is right."""
import sys
import time

import sglang_install
from answers import read
from cases import sglang_cases
from compare import ask_both, monotony, wait_for
from gateway import Gateway
from kill_check import body, check_kill
from model import ready_model
from process import StartError, cores
from report import Report
from scratch import scratch_folder
from sglang_engine import SglangEngine


class Pair:
    def __init__(self, venv, model, folder):
        first, second = cores()
        self.folder = folder
        self.prefill = SglangEngine(venv, model, folder, "prefill", first)
        self.decode = SglangEngine(venv, model, folder, "decode", second)
        self.plain = SglangEngine(venv, model, folder, "plain", first)

    def engines(self):
        return self.prefill, self.decode, self.plain

    def ask_decode(self, request, plain):
        """Decode makes up KV for this host: a text, and another one than the plain server's."""
        made_up = {"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 7}
        got = read("completions", self.decode.post("/v1/completions", {**request, **made_up}))
        expected = read("completions", plain.post("/v1/completions", request))
        return got.faults + ([] if got.texts != expected.texts else ["the same text without KV: nothing is proved"])

    def gateway(self, name, decode_url):
        return Gateway(name, self.folder, cores()[1], ["--pd-disaggregation", "--prefill", self.prefill.url,
                                                       str(self.prefill.bootstrap_port), "--decode", decode_url])


def check_requests(pair, gateway, report):
    idle = pair.prefill.loads(), pair.decode.loads()
    seen = []
    for case in sglang_cases("sglang"):
        took, used = [], prefill_tokens(pair.prefill)
        faults, texts = ask_both(case, gateway, pair.plain, took)
        seen += texts
        if prefill_tokens(pair.prefill) <= used:
            faults.append("prefill computed nothing for it")
        report.row(case.name, faults, took)
    report.row("answers differ among prompts", monotony(seen))
    report.row("responses, a follow-up by id is refused", refused_follow_up(gateway))
    is_idle = wait_for(lambda: (pair.prefill.loads(), pair.decode.loads()) == idle, 8)
    faults = [] if is_idle else [f"{pair.prefill.loads()} and {pair.decode.loads()} instead of {idle}"]
    report.row("nothing left on either side", faults)
    report.row("without prefill's KV decode says otherwise", pair.ask_decode(body("no KV"), pair.plain))


def refused_follow_up(gateway):
    """Servers of a pair keep no responses, and decode does nothing without prefill: a clear 400, and none of them asked."""
    second = gateway.post("/v1/responses", {"model": "tiny", "input": "and then?", "previous_response_id": "resp_1"})
    if second.status == 400 and "previous_response_id" in second.json()["error"]["message"]:
        return []
    return [f"follow-up: {second.status} {second.body[:300]!r}"]


def prefill_tokens(prefill):
    return prefill.metric("sglang:prompt_tokens_total")


def check(venv, model, folder, report):
    print("\nstarting prefill, decode and a plain server", end="", flush=True)
    began = time.monotonic()
    pair = Pair(venv, model, folder)
    try:
        for engine in pair.engines():
            engine.wait_ready()
        print(f", ready after {time.monotonic() - began:.0f} s")
        report.head("text and usage against the plain server's")
        gateway = pair.gateway("gateway", pair.decode.url)
        check_requests(pair, gateway, report)
        gateway.stop()
        check_kill(pair, pair.plain, report)
    finally:
        for engine in pair.engines():
            engine.process.kill()


def main():
    print("a real SGLang pair on this CPU")
    venv = sglang_install.ready_venv()
    model = ready_model(venv)
    report = Report(("ms",))
    with scratch_folder("sglang", report) as folder:
        try:
            check(venv, model, folder, report)
        except StartError as error:
            report.row("start", [str(error)])
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

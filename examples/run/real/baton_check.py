"""BatonConnector: what every connector is asked, then prefills that stop or die while KV moves, and before it does.

Two prefills, because what a dead one has left undone is another one's work. The second computes few tokens a step, so that a long
prompt is on its way for long enough to be caught in the middle. (It gets no request with a seed: a prompt that takes several steps
then kills vLLM 0.32 on a CPU, whatever the connector: "CPU Generator does not use offset".)
"""
import http.client
import os
import threading
import time

from cases import Case, prompt
from compare import wait_for
from kill_check import body, decode_faults, judge
from pair import Pair
from process import StartError, cores, free_ports
from request_check import check_requests
from vllm_engine import VllmEngine

STEP_TOKENS = 32
LONG_WORDS = 1500
RELEASE_MS = 5000
TRIES = 8


class BatonPair(Pair):
    """Two prefills and a decode; their agents look for the gateway at one port, whenever it comes."""

    def __init__(self, venv, model, folder, backend):
        self.backend = backend
        self.transfer_port, = free_ports(1)
        super().__init__(venv, model, os.path.join(folder, backend), "BatonConnector")

    def start(self, venv, model):
        first, second = cores()
        extra = {"gateway": f"127.0.0.1:{self.transfer_port}", "backends": [self.backend], "release_ms": RELEASE_MS}
        few = ["--max-num-batched-tokens", str(STEP_TOKENS)]
        self.prefills = [self.add(VllmEngine(venv, model, self.folder, "prefill", first, self.connector, extra))]
        self.slow = self.add(VllmEngine(venv, model, self.folder, "prefill2", first, self.connector, extra, few))
        self.decode = self.add(VllmEngine(venv, model, self.folder, "decode", second, self.connector, extra))

    def gateway(self, name, decode_url, *flags):
        return super().gateway(name, decode_url, "--transfer-port", str(self.transfer_port), *flags)


def check_baton(venv, model, folder, backend, plain, report):
    print(f"\nBatonConnector over {backend}: starting two prefills and decode", end="", flush=True)
    began = time.monotonic()
    pair = BatonPair(venv, model, folder, backend)
    try:
        pair.wait_ready()
        plain.wait_ready()
        print(f", ready after {time.monotonic() - began:.0f} s")
        report.head(f"BatonConnector over {backend}, text and usage against the plain engine's")
        gateway = pair.gateway("gateway", pair.decode.url)
        check_requests(pair, gateway, plain, report)
        report.row("all KV went over " + backend, Watch(gateway, pair).wrong_backends())
        gateway.stop()
        check_failures(pair, plain, report)
    finally:
        pair.stop()


def check_failures(pair, plain, report):
    pair.prefills.append(pair.slow)
    gateway = pair.gateway("gateway-failures", pair.decode.url, "--policy", "round_robin")
    watch = Watch(gateway, pair)
    check_chunks(watch, plain, report)
    check_stopped(watch, plain, report)
    check_killed_early(watch, plain, report)
    check_killed_late(watch, plain, report)
    gateway.stop()


class Watch:
    """Requests under way, and their rooms as /admin/rooms tells them."""

    def __init__(self, gateway, pair):
        self.gateway, self.pair = gateway, pair
        self.count = 0
        if not self.wait_agents(len(pair.engines)):  # /readiness is content with one pair
            raise StartError(f"agents have not come to the gateway: {self.told()['agents']}")
        self.engines = {agent["worker"]: engine for agent in self.told()["agents"] for engine in pair.engines
                        if agent["name"] == f"{engine.role}/0"}

    def told(self):
        return self.gateway.admin.get("/admin/rooms").json()

    def room(self, request_id):
        return next((room for room in self.told()["rooms"] if room["request_id"] == request_id), None)

    def wrong_backends(self):
        found = {room["backend"] for room in self.told()["rooms"] if room["phase"] == "done"}
        return [] if found == {self.pair.backend} else [f"rooms name {found}"]

    def begin(self, *seed, words):
        """A request in a thread of its own."""
        self.count += 1
        request = {**body(*seed), "prompt": prompt(*seed, self.count, words=words)}
        return Sent(self.gateway, f"baton-{self.pair.backend}-{self.count}", request)

    def catch(self, is_caught, *seed, words=LONG_WORDS):
        """A request at a moment when is_caught(room) is true, or None; many are given to another prefill, or are too quick."""
        for _ in range(TRIES):
            sent = self.begin(*seed, words=words)
            while sent.thread.is_alive():
                room = self.room(sent.request_id)
                if room is not None and is_caught(room):
                    return sent
                time.sleep(0.003)
            sent.thread.join()
        return None

    def prefill_of(self, room):
        return self.engines[room["prefill"]]

    def is_moving_from(self, engine):
        """In the middle: some pages have come, others are still to come."""
        return lambda room: room["phase"] == "moving" and room["bytes"] > 0 and self.prefill_of(room) is engine

    def wait_agents(self, count):
        return wait_for(lambda: len(self.told()["agents"]) == count, 15)

    def decode_is_idle(self):
        """Its blocks come back when the room's pages are safe: release_ms at most."""
        return wait_for(lambda: self.pair.decode.kv_usage() == 0, RELEASE_MS / 1000 + 5)


class Sent:
    def __init__(self, gateway, request_id, request):
        self.request_id = request_id
        self.case = Case(request_id, "completions", request)
        self.gateway = gateway
        self.reply, self.ms = None, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        began = time.monotonic()
        try:
            self.reply = self.gateway.post(self.case.path, self.case.body, {"X-Request-Id": self.request_id})
        except (OSError, http.client.HTTPException) as error:
            self.reply = error
        self.ms = round((time.monotonic() - began) * 1000)

    def verdict(self, plain, seconds):
        """An error with a message, or the right text, and in time."""
        self.thread.join()
        faults = judge(self.case, self.reply, plain)
        return faults + ([f"after {self.ms} ms"] if self.ms > seconds * 1000 else [])


def check_chunks(watch, plain, report):
    """Two in a row, so that one of them is the slow prefill's."""
    for _ in range(2):
        sent = watch.begin("chunks", words=LONG_WORDS)
        faults = sent.verdict(plain, 20)
        room = watch.room(sent.request_id)
        name = watch.prefill_of(room).role if room else "nobody"
        report.row(f"a long prompt by {name}", faults + wrong_status(sent), (sent.ms,))


def wrong_status(sent):
    return [] if sent.reply.status == 200 else [f"{sent.reply.status} {sent.reply.body[:200]!r}"]


def check_stopped(watch, plain, report):
    """The agents' dead_ms is 5 s: by then the room has failed, and another prefill may serve."""
    name, slow = "prefill stopped in the middle", watch.pair.slow
    sent = watch.catch(watch.is_moving_from(slow), "stopped")
    slow.process.stop()
    finish(watch, sent, plain, report, name, 20)
    slow.process.resume()
    report.row("the stopped prefill is back", [] if watch.wait_agents(3) else [f"agents: {watch.told()['agents']}"])


def check_killed_early(watch, plain, report):
    """It is stopped first, so that it can't begin; decode must get the right KV from the other one without being asked anew."""
    victim = watch.pair.prefills[0]
    victim.process.stop()
    sent = watch.catch(lambda room: room["phase"] in ("opening", "waiting") and watch.prefill_of(room) is victim, "early", words=60)
    victim.process.kill()
    finish(watch, sent, plain, report, "prefill killed before the first byte", 20)
    if sent is not None:
        room = watch.room(sent.request_id)
        faults = [] if room and room["repairs"] == 1 and room["phase"] == "done" else [str(room)]
        report.row("decode's room was re-paired", faults + wrong_status(sent))


def check_killed_late(watch, plain, report):
    """The last prefill; afterwards decode is alone, and an engine like any other."""
    sent = watch.catch(watch.is_moving_from(watch.pair.slow), "late")
    watch.pair.slow.process.kill()
    finish(watch, sent, plain, report, "prefill killed in the middle", 35)


def finish(watch, sent, plain, report, name, seconds):
    if sent is None:
        report.row(name, ["no request could be caught at that moment"])
        return
    faults = sent.verdict(plain, seconds)
    report.row(name, faults, (sent.ms,))
    if hasattr(sent.reply, "status"):
        report.note(f"answered {sent.reply.status} {sent.reply.body[:120].decode(errors='replace')}")
    faults = decode_faults(watch.pair, plain) + ([] if watch.decode_is_idle() else [f"decode holds {watch.pair.decode.kv_usage()}"])
    report.row("decode lives, and holds no block", faults)

"""What the gateway predicts by engines' KV events, beside what the engines say they had.

An engine here has `name`, `kind` (as in baton.lua), `events` and `replay`, the ports at which it publishes.
"""
import os
import random
import time

from compare import wait_for
from gateway import Gateway
from process import Process, StartError, cores, free_ports

BLOCK = 32
BLOCKS = 120  # an engine's; a conversation has up to 30, and TALKS are under way
TALKS = 24
REQUESTS = 500
WANTED = 0.99
# Predictions are the scores of a request's record. A request goes where most of it is; one in four goes elsewhere.
POLICY = """return { api = 2, name = "events", version = "1",
  plan = function(req, view)
    baton.prefix_match(view.hybrid, req, %d)
    local chosen = baton.argmax(view.hybrid, "kv_hit_tokens")
    for i = 1, #view.hybrid do
      local w = view.hybrid[i]
      if w.kv_hit_tokens then baton.note_score(w, w.kv_hit_tokens) end
      if w.name == req.headers["x-worker"] then chosen = w end
    end
    return { kind = "single", worker = chosen }
  end }
"""


def words(engine, events, role="hybrid"):
    """As a worker of baton.lua; events: the port to follow."""
    return (f'{{ name = "{engine.name}", role = "{role}", url = "{engine.url}", engine = "{engine.kind}", '
            f'kv_events = "tcp://127.0.0.1:{events}", kv_events_replay = "tcp://127.0.0.1:{engine.replay}" }},')


class Talk:
    """A conversation: each turn is the one before, its answer and some tokens more; it begins anew when it is long."""

    def __init__(self, chance, number):
        self.chance = chance
        self.begin = [1 + (i * (number % 3 + 2)) % 500 for i in range(BLOCK * (2 + number % 3 * 2))]
        self.ids = []

    def turn(self):
        if not self.ids or len(self.ids) > 26 * BLOCK:
            self.ids = self.begin + self.tokens(self.chance.randint(1, 6 * BLOCK))
        if self.chance.random() < 0.3:  # an engine never takes a whole prompt from its cache: its last token is computed
            self.ids += self.tokens(-len(self.ids) % BLOCK)
        return self.ids

    def tokens(self, count):
        return [self.chance.randint(1, 500) for _ in range(count)]

    def go_on(self, answer):
        self.ids = self.ids + answer + self.tokens(self.chance.randint(1, 2 * BLOCK))


class Traffic:
    """Turns of many conversations, one after the other; what was predicted for each, and what the engine says it had."""

    def __init__(self, gateway, names, seed):
        self.gateway = gateway
        self.names = names
        self.chance = random.Random(seed)
        self.talks = [Talk(self.chance, number) for number in range(TALKS)]
        self.seed = seed
        self.sent = self.equal = self.cached = self.asked = self.evicted = self.asked_known = 0
        self.wrong = []
        self.seen = set()

    def run(self, count, pause=0):
        for _ in range(count):
            time.sleep(pause)
            self.one(self.chance.choice(self.talks))
        return self

    def one(self, talk):
        """A talk goes back to the same prompt now and then; what was there before and is not is evicted."""
        ids, name = talk.turn(), f"events-{self.seed}-{self.sent}"
        headers = {"x-request-id": name}
        if self.chance.random() < 0.25:
            headers["x-worker"] = self.chance.choice(self.names)
        body = {"model": "tiny", "prompt": ids, "max_tokens": self.chance.randint(1, BLOCK), "temperature": 0,
                "return_token_ids": True}
        reply = self.gateway.post("/v1/completions", body, headers)
        if reply.status != 200:
            raise StartError(f"{reply.status} {reply.body[:300]!r}")
        self.judge(name, ids, self.had(reply, ids))
        if self.chance.random() < 0.8:
            talk.go_on(reply.json()["choices"][0].get("token_ids") or [])

    def had(self, reply, _ids):
        """By the engine's own word, tokens."""
        return (reply.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    def judge(self, name, ids, cached):
        worker, predicted = self.predicted(self.record(name))
        self.count(worker, ids, cached)
        self.equal += predicted == cached
        if predicted != cached:
            self.wrong.append(f"{name} at {worker}: {len(ids)} tokens, {predicted} predicted, {cached} cached")

    def count(self, worker, ids, cached):
        blocks = [(worker, hash(tuple(ids[:end]))) for end in range(BLOCK, len(ids), BLOCK)]
        self.evicted += any(block in self.seen for block in blocks[cached // BLOCK:])
        self.seen.update(blocks)
        self.sent += 1
        self.asked += len(ids)
        self.cached += cached

    def record(self, name):
        reply = None

        def is_told():
            nonlocal reply
            reply = self.gateway.admin.get("/admin/explain/" + name)
            return reply.status == 200

        if not wait_for(is_told, 10):
            raise StartError(f"no record of {name}: {reply.status} {reply.body[:200]!r}")
        return reply.json()

    def predicted(self, record):
        """The worker and what it was predicted to have."""
        worker = record["plan"]["worker"]
        return worker, scores(record, "hybrid")[worker]

    def is_known(self, worker):
        """Asked with a prompt of its own, shorter than a block."""
        self.asked_known += 1
        name = f"known-{self.seed}-{self.asked_known}"
        body = {"model": "tiny", "prompt": [1], "max_tokens": 1}
        return (self.gateway.post("/v1/completions", body, {"x-request-id": name, "x-worker": worker}).status == 200 and
                self.predicted(self.record(name)) == (worker, 0))

    def share(self):
        return self.equal / self.sent


def scores(record, role):
    return {row["name"]: row.get("score") for row in record["candidates"][role]["rows"]}


def start_gateway(name, folder, workers, text=POLICY, flags=()):
    """workers: words of baton.lua; text: of the policy."""
    policy, config = os.path.join(folder, name + "-policy.lua"), os.path.join(folder, name + ".lua")
    with open(policy, "w", encoding="utf-8") as file:
        file.write(text % BLOCK)
    with open(config, "w", encoding="utf-8") as file:
        file.write(f'return {{ policy = "{policy}", pools = {{ {{ workers = {{ {" ".join(workers)} }} }} }} }}')
    return Gateway(name, folder, cores()[1], ["--record-sample", "1", *flags, config])


def wait_followed(traffic):
    """Each worker is served, and what it holds is known."""
    for name in traffic.names:
        if not wait_for(lambda: traffic.is_known(name), 60):
            raise StartError(f"the KV events of {name} are not followed; see {traffic.gateway.process.log}")


def row(report, name, traffic, wanted=WANTED):
    faults = [] if traffic.share() >= wanted else traffic.wrong[:12]
    faults += [] if traffic.evicted > 0 or traffic.sent < REQUESTS else ["nothing was evicted"]
    report.row(name, faults, (traffic.sent, traffic.equal, f"{100 * traffic.share():.1f} %",
                              f"{100 * traffic.cached / traffic.asked:.0f} %", traffic.evicted))
    for one in traffic.wrong[:8] if not faults else ():
        report.note(one)


def ask_all(report, name, gateway, names, seed, count, pause=0, wanted=WANTED):
    traffic = Traffic(gateway, names, seed)
    wait_followed(traffic)
    row(report, name, traffic.run(count, pause), wanted)


def check_events(folder, engines, report):
    first, names = engines[0], [one.name for one in engines]
    gateway = start_gateway("gateway-one", folder, [words(first, first.events)])
    ask_all(report, "one engine", gateway, [first.name], 1, REQUESTS // 5)
    gateway.stop()
    gateway = start_gateway("gateway-two", folder, [words(one, one.events) for one in engines])
    ask_all(report, "two engines", gateway, names, 2, REQUESTS)
    first.process.kill()
    first.process.start()
    first.wait_ready()
    ask_all(report, "one killed and started again", gateway, names, 3, REQUESTS // 5)
    gateway.stop()


def check_loss(venv, folder, engines, report):
    """A relay before each engine's events loses every tenth message; the engines say them again. What is lost last shows a second later, so
    at full speed some predictions come too early."""
    ports, names = free_ports(len(engines)), [one.name for one in engines]
    relay = os.path.join(os.path.dirname(os.path.abspath(__file__)), "event_relay.py")
    relays = [Process(f"relay of {one.name}", [venv.python, "-B", relay, f"tcp://127.0.0.1:{one.events}", str(port), "10"],
                      os.path.join(folder, f"relay-{one.name}.log"), cores()[0]) for one, port in zip(engines, ports)]
    try:
        gateway = start_gateway("gateway-loss", folder, [words(one, port) for one, port in zip(engines, ports)])
        ask_all(report, "every tenth message lost", gateway, names, 4, REQUESTS // 2, wanted=0)
        ask_all(report, "the same, 2 s between requests", gateway, names, 5, REQUESTS // 10, pause=2)
        gateway.stop()
    finally:
        for one in relays:
            one.kill()

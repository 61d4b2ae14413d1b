"""KV events of a prefill and a decode engine: what is predicted for both, beside the engines' own counters of hits."""
from compare import wait_for
from events_check import REQUESTS, Traffic, row, scores, start_gateway, wait_followed, words
from process import StartError

POLICY = """return { api = 2, name = "events", version = "1",
  plan = function(req, view)
    baton.prefix_match(view.prefill, req, %d)
    for _, list in ipairs({ view.prefill, view.decode }) do
      if list[1].kv_hit_tokens then baton.note_score(list[1], list[1].kv_hit_tokens) end
    end
    return { prefill = view.prefill[1], decode = view.decode[1] }
  end }
"""
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


class PairTraffic(Traffic):
    """names are prefill's and decode's; so are pairs of numbers."""

    def __init__(self, gateway, engines, seed):
        super().__init__(gateway, [engine.name for engine in engines], seed)
        self.engines = engines
        self.before = self.counters()

    def counters(self):
        return [(engine.metric(HITS), engine.metric(QUERIES)) for engine in self.engines]

    def had(self, _reply, ids):
        """Counters are behind answers."""
        now = None

        def are_counted():
            nonlocal now
            now = self.counters()
            return all(one[1] - was[1] >= len(ids) for one, was in zip(now, self.before))

        if not wait_for(are_counted, 10):
            raise StartError(f"the engines have not counted a prompt of {len(ids)} tokens: {self.before}, then {now}")
        hits = tuple(round(one[0] - was[0]) for one, was in zip(now, self.before))
        self.before = now
        return hits

    def predicted(self, record):
        return "both", tuple(scores(record, role).get(name) for role, name in zip(("prefill", "decode"), self.names))

    def count(self, worker, ids, cached):
        super().count(worker, ids, cached[0])

    def is_known(self, worker):
        self.asked_known += 1
        name = f"known-{self.seed}-{self.asked_known}"
        body = {"model": "tiny", "prompt": [1], "max_tokens": 1}
        is_served = self.gateway.post("/v1/completions", body, {"x-request-id": name}).status == 200
        is_known = is_served and self.predicted(self.record(name))[1] == (0, 0)
        if is_known:
            self.had(None, [1])
        return is_known


def check_pair(folder, engines, report):
    gateway = start_gateway("gateway-pair", folder, [words(one, one.events, one.name) for one in engines], POLICY,
                            ["--kv-connector", "NixlConnector"])
    traffic = PairTraffic(gateway, engines, 6)
    wait_followed(traffic)
    row(report, "prefill and decode", traffic.run(REQUESTS // 4))
    gateway.stop()

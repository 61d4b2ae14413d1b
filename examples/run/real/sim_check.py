"""One trace through real engines, through simulated ones (baton-sim) and through `baton sim`: three hit ratios, which must be near.

A block of the trace (512 tokens) is one of the engines' here. Prompts go to the gateway as token ids, AT_ONCE at a time; hits are
`cached_tokens` of the engines' answers. `baton sim` has the same policy, the engines' room, and steps as long as the engine's are.
"""
import json
import os
import random
import subprocess
import threading
import time

from events_check import words
from gateway import BUILD, ROOT, Gateway
from process import Process, StartError, cores, free_ports
from web import Server

BLOCK = 32
BLOCKS = 600  # an engine's
LONGEST = 1900
ROWS = 400
AT_ONCE = 4
MAX_SEQS, STEP_TOKENS = 16, 2048
POLICIES = ("round_robin", "dynamo_kv", "baton_kv")
WITHIN = 3.0  # points
TRACE = os.path.join(ROOT, "spec", "bench", "traces", "conversation_cut.jsonl")
TRACE_BLOCK = 512
SIM_BLOCK = 16  # of the trace that `baton sim` gets: two ids are one of ours


class SimEngine(Server):
    """A baton-sim process that is one engine."""

    kind = "vllm"

    def __init__(self, folder, name, core, step_ms):
        self.name = name
        port, self.events, self.replay = free_ports(3)
        super().__init__(port)
        worker = (f"role=hybrid,name={name},port={port},by_ids=1,queue=1,block_size={BLOCK},blocks={BLOCKS},"
                  f"kv_events={self.events},kv_events_replay={self.replay},ttft={step_ms['begin']:.3f},"
                  f"ttft_per_token={step_ms['token']:.6f},itl={step_ms['decode']:.3f}")
        self.process = Process(name, [os.path.join(BUILD, "baton-sim"), "--model", "tiny", "--worker", worker],
                               os.path.join(folder, name + ".log"), core)

    def wait_ready(self):
        self.process.wait_until(self.is_healthy, 20, "good answer from /health")


def read_rows():
    """(tokens of the prompt, of the answer, ids of its whole blocks) in the trace's order. The last block of a prompt is never whole: how
    much of it is computed anew would depend on its size."""
    rows = []
    with open(TRACE, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            tokens = max(1, row["input_length"] * BLOCK // TRACE_BLOCK)
            tokens += tokens % BLOCK == 0
            if tokens <= LONGEST and len(rows) < ROWS:
                rows.append((tokens, max(1, row["output_length"] * BLOCK // TRACE_BLOCK), row["hash_ids"][:tokens // BLOCK]))
    return rows


def prompt_of(row, number, salt):
    """salt: another one, other prompts, so that what engines still hold of earlier runs is of no use."""
    ids = [one for block in row[2] for one in random.Random(f"{salt} {block}").choices(range(1, 500), k=BLOCK)]
    return ids + random.Random(f"{salt} own {number}").choices(range(1, 500), k=row[0] - len(ids))


class Run:
    """All rows, AT_ONCE of them under way."""

    def __init__(self, gateway, rows, salt):
        self.gateway, self.rows, self.salt = gateway, rows, salt
        self.lock = threading.Lock()
        self.next = self.asked = self.cached = 0
        self.faults = []
        threads = [threading.Thread(target=self.work) for _ in range(AT_ONCE)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def work(self):
        while not self.faults:
            with self.lock:
                number = self.next
                self.next += 1
            if number >= len(self.rows):
                return
            try:
                self.ask(number)
            except (OSError, ValueError, KeyError) as error:
                self.faults.append(f"row {number}: {error!r}")

    def ask(self, number):
        body = {"model": "tiny", "prompt": prompt_of(self.rows[number], number, self.salt), "temperature": 0,
                "max_tokens": self.rows[number][1], "ignore_eos": True}
        reply = self.gateway.post("/v1/completions", body)
        if reply.status != 200:
            raise ValueError(f"{reply.status} {reply.body[:300]!r}")
        usage = reply.json()["usage"]
        with self.lock:
            self.asked += usage["prompt_tokens"]
            self.cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    def hits(self):
        return 100 * self.cached / self.asked


def run_gateway(folder, engines, policy, rows):
    name = f"gateway-{engines[0].name}-{policy}"
    config = os.path.join(folder, name + ".lua")
    with open(config, "w", encoding="utf-8") as file:
        workers = " ".join(words(one, one.events) for one in engines)
        file.write(f'return {{ policy = "{policy}", pools = {{ {{ workers = {{ {workers} }} }} }} }}')
    gateway = Gateway(name, folder, cores()[1], [config])
    gateway.process.wait_until(lambda: gateway.admin.metric("baton_kv_ranks_followed") == len(engines), 30, "KV events")
    run = Run(gateway, rows, policy)
    gateway.stop()
    if run.faults:
        raise StartError("\n".join(run.faults[:4]))
    return run.hits()


def step_ms(engine):
    """How long its steps are: to begin one, for a prompt's token in it, for a token of an answer."""
    def measure(length, answer):
        took = []
        for number in range(4):
            ids = random.Random(f"step {length} {answer} {number}").choices(range(1, 500), k=length)
            began = time.monotonic()
            reply = engine.post("/v1/completions", {"model": "tiny", "prompt": ids, "max_tokens": answer, "ignore_eos": True})
            took.append(1000 * (time.monotonic() - began))
            if reply.status != 200:
                raise StartError(f"{reply.status} {reply.body[:300]!r}")
        return min(took)
    short, long, answers = measure(40, 1), measure(LONGEST, 1), measure(40, 33)
    token = max(0.001, (long - short) / (LONGEST - 40))
    return {"begin": max(0.1, short - 40 * token), "token": token, "decode": max(0.1, (answers - short) / 32)}


def run_sim(folder, rows, step):
    """hit ratio of each policy, by `baton sim`."""
    trace, model = os.path.join(folder, "trace.jsonl"), os.path.join(folder, "engine.lua")
    with open(trace, "w", encoding="utf-8") as file:
        for number, (tokens, answer, blocks) in enumerate(rows):
            ids = [2 * block + half for block in blocks for half in range(BLOCK // SIM_BLOCK)]
            file.write(json.dumps({"chat_id": number, "timestamp": number, "input_length": tokens, "output_length": answer,
                                   "hash_ids": ids}) + "\n")
    with open(model, "w", encoding="utf-8") as file:
        file.write(f"return {{ prefill_ms = {{ {step['begin']}, {step['token']}, 0 }}, decode_ms = {{ {step['decode']}, 0, 0, 0, 0 }}, "
                   f"min_step_ms = 0.1, max_batched_tokens = {STEP_TOKENS}, max_seqs = {MAX_SEQS}, kv_tokens = {BLOCKS * BLOCK}, "
                   f"kv_bytes_per_token = 1024, link_gb_s = 10 }}")
    told = subprocess.run([os.path.join(BUILD, "baton"), "sim", *POLICIES, "--json", "--trace", trace, "--engines", "2",
                           "--concurrency", str(AT_ONCE), "--engine-model", model], capture_output=True, text=True, timeout=300,
                          check=False)
    if told.returncode != 0:
        raise StartError(told.stderr)
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    return [100 * line["hit_ratio"] for line in lines[:len(POLICIES)]], 100 * lines[0]["hit_ceiling"]


def check_sim(folder, engines, report):
    rows, step = read_rows(), step_ms(engines[0])
    expected, ceiling = run_sim(folder, rows, step)
    simulated = [SimEngine(folder, f"sim{i}", cores()[0], step) for i in range(2)]
    try:
        for one in simulated:
            one.wait_ready()
        for policy, hits in zip(POLICIES, expected):
            for name, fleet in (("vLLM", engines), ("baton-sim", simulated)):
                got = run_gateway(folder, fleet, policy, rows)
                far = abs(got - hits)
                report.row(f"{policy}, {name}", [] if far <= WITHIN else [f"{far:.1f} points apart"],
                           (len(rows), f"{got:.1f} %", f"{hits:.1f} %", f"{hits - got:+.1f}"))
    finally:
        for one in simulated:
            one.process.kill()
    report.note(f"one cache without end would hit {ceiling:.1f} %; a step takes {step['begin']:.1f} ms, {1000 * step['token']:.0f} us "
                f"more for a prompt's token, {step['decode']:.1f} ms for a token of an answer")

"""What is asked of every pair: all cases, where decode got its prompt from, and that prefill holds nothing afterwards."""
from answers import read
from cases import prompt, vllm_cases
from compare import ask_both, differences, monotony, wait_for
from vllm_engine import BLOCK

RESPONSE = {"model": "tiny", "max_output_tokens": 16, "temperature": 0}


def check_requests(pair, gateway, plain, report):
    """Every case; then prefill must hold nothing."""
    idle = [prefill.kv_usage() for prefill in pair.prefills]
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
    faults = []
    for prefill, usage in zip(pair.prefills, idle):
        if not wait_for(lambda: prefill.kv_usage() <= usage, 8):
            faults.append(f"kv_cache_usage_perc {prefill.kv_usage()} instead of {usage}")
        if prefill.expired_holds() > 0:
            faults.append(f"{prefill.expired_holds():.0f} leases ran out")
    report.row("no block left on prefill", faults)

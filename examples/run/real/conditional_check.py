"""policies/conditional_disagg.lua decides a request at a time: decode alone, or by prefill and decode. The text is the same."""
import os

from cases import Case, both_ways, prompt
from compare import ask_both, wait_for
from gateway import ROOT
from request_check import wrong_source
from vllm_engine import BLOCK

POLICY = os.path.join(ROOT, "policies", "conditional_disagg.lua")
SAMPLING = {"model": "tiny", "max_tokens": 24, "temperature": 0}
LONG = 700  # words, about 1,000 tokens: more than the policy's min_tokens and less than vLLM's --max-model-len


def check_conditional(pair, plain, report):
    """Short prompts, long ones, and long ones that decode has had the beginning of."""
    gateway = pair.gateway("gateway-conditional", pair.decode.url, "--policy", POLICY)
    for case in asked("short", prompt(pair.connector, "short")):
        check(case, pair, gateway, plain, report, is_alone=True)
    first = prompt(pair.connector, "long", words=LONG)
    for case in asked("long", first):
        check(case, pair, gateway, plain, report, is_alone=False)
    more = Case("long, begun before", "completions", body(first + " and " + prompt("more")))
    check(more, pair, gateway, plain, report, is_alone=True)
    gateway.stop()


def asked(name, text):
    """One text as completions and as chat, streamed and not."""
    usage = {"stream_options": {"include_usage": True}}
    yield from both_ways(name, "completions", body(text), **usage)
    chat = {**SAMPLING, "messages": [{"role": "user", "content": "chat " + text}]}
    yield from both_ways(name + ", chat", "chat", chat, **usage)


def body(text):
    return {**SAMPLING, "prompt": text}


def check(case, pair, gateway, plain, report, is_alone):
    """Text and usage as the plain engine's, and each engine's own counters of prompt tokens."""
    before, took = counters(pair), []
    faults, _ = ask_both(case, gateway, plain, took)
    wait_for(lambda: counters(pair) != before, 1)
    prefilled, computed, received = (round(now - then) for now, then in zip(counters(pair), before))
    faults += alone_faults(prefilled, computed, received) if is_alone else pair_faults(pair, case, prefilled, computed, received)
    report.row(case.name + (": decode alone" if is_alone else ": both"), faults, (computed, received, *took))
    report.note(f"prefill computed {prefilled}")


def counters(pair):
    decode = pair.decode
    return pair.prefill.computed_prompt_tokens(), decode.computed_prompt_tokens(), decode.received_prompt_tokens()


def alone_faults(prefilled, computed, received):
    faults = [f"prefill computed {prefilled} prompt tokens"] if prefilled else []
    faults += [f"decode received {received} tokens"] if received else []
    return faults if computed > 0 else faults + ["decode computed nothing"]


def pair_faults(pair, case, prefilled, computed, received):
    faults = [] if prefilled > BLOCK else [f"prefill computed {prefilled} prompt tokens only"]
    return faults + wrong_source(pair.connector, case, computed, received)

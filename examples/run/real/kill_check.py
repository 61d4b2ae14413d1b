"""Prefill is killed between the legs: the client must get a clear error or a right answer, and decode must live."""
import http.client
import threading
import time

from answers import read
from cases import Case, prompt
from gate import Gate


def check_kill(pair, plain, report):
    """Two requests at once, one of them streamed; both decode legs are held while prefill's processes get SIGKILL."""
    gate = Gate(pair.decode.port)
    gateway = pair.gateway("gateway-kill", gate.url)
    warm = Case("warm up", "completions", body("before the kill"))
    faults = read(warm.api, gateway.post(warm.path, warm.body)).faults  # decode has now talked to prefill
    report.row("before the kill", faults)
    cases = [Case("prefill killed between the legs", "completions", body("killed")),
             Case("prefill killed between the legs, stream", "completions", {**body("killed too"), "stream": True})]
    gate.arm(len(cases), pair.prefill.process.kill)
    for case, reply, seconds in at_once(cases, gateway):
        report.row(case.name, judge(case, reply, plain), (round(seconds * 1000),))
        if hasattr(reply, "status"):
            report.note(f"answered {reply.status} {reply.body[:160].decode(errors='replace')}")
    report.row("decode lives", decode_faults(pair, plain))
    gateway.stop()
    gate.close()


def body(*seed):
    return {"model": "tiny", "max_tokens": 24, "temperature": 0, "prompt": prompt(*seed)}


def at_once(cases, gateway):
    results = [None] * len(cases)

    def run(index, case):
        began = time.monotonic()
        try:
            reply = gateway.post(case.path, case.body)
        except (OSError, http.client.HTTPException) as error:
            reply = error
        results[index] = (case, reply, time.monotonic() - began)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(cases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def judge(case, reply, plain):
    """A status of 5xx with a message, or the right text. A stream that says 200 and then an error came too late."""
    if not hasattr(reply, "status"):
        return [f"no answer: {reply!r}"]
    if reply.status >= 500:
        message = reply.json().get("error", {}).get("message")
        return [] if message else [f"{reply.status} without a message: {reply.body[:200]!r}"]
    got, expected = read(case.api, reply), read(case.api, plain.post(case.path, case.body))
    if got.faults or got.texts != expected.texts:
        return [f"{reply.status} {reply.body[:300]!r} instead of {expected.texts}"]
    return []


def decode_faults(pair, plain):
    """Asked directly: /health alone may say 200 for a second after an engine has died. The pair knows how to ask decode."""
    time.sleep(2)
    faults = [] if pair.decode.is_healthy() else ["/health is not 200"]
    try:
        return faults + pair.ask_decode(body("after the kill"), plain)
    except (OSError, http.client.HTTPException) as error:
        return faults + [f"no answer: {error!r}"]

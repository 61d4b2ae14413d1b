"""The gateway over real vLLM engines on this CPU: one prefill, one decode, and a plain engine that says what is right."""
import os
import sys
import time

import vllm_install
from baton_check import check_baton
from conditional_check import check_conditional
from kill_check import check_kill
from model import ready_model
from pair import Pair
from process import StartError, cores
from ranks_check import check_ranks
from report import Report
from request_check import check_requests
from scratch import scratch_folder
from vllm_engine import VllmEngine

CONNECTORS = ("NixlConnector", "NixlPushConnector", "ExampleConnector", "baton")
BACKENDS = ("tcp", "shm")  # of baton


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
        check_conditional(pair, plain, report)
        if connector != "ExampleConnector":  # there the store outlives prefill
            check_kill(pair, plain, report)
    finally:
        pair.stop()


def wanted(variable, known):
    """What the environment asks for, or all."""
    asked = os.environ.get(variable)
    if asked and asked not in known:
        sys.exit(f"error: {variable}={asked} is none of {', '.join(known)}")
    return [asked] if asked else known


def main():
    connectors, backends = wanted("CONNECTOR", CONNECTORS), wanted("BACKEND", BACKENDS)
    print("real vLLM engines on this CPU")
    venv = vllm_install.ready_venv()
    model = ready_model(venv)
    report = Report(("computed", "received", "ms"))
    with scratch_folder("vllm", report) as folder:
        plain = VllmEngine(venv, model, folder, "plain", cores()[0])
        try:
            for connector in connectors:
                if connector == "baton":
                    for backend in backends:
                        check_baton(venv, model, folder, backend, plain, report)
                    check_ranks(venv, model, folder, backends[0], plain, report)
                else:
                    check_connector(venv, model, folder, connector, plain, report)
        except StartError as error:
            report.row("start", [str(error)])
        finally:
            plain.process.kill()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())

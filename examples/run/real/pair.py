"""Prefill and decode engines with one connector, and the gateway before them."""
import os

from answers import read
from gateway import Gateway
from process import cores
from vllm_engine import VllmEngine


class Pair:
    """One prefill and one decode; others make their engines otherwise."""

    def __init__(self, venv, model, folder, connector):
        self.connector = connector
        self.folder = os.path.join(folder, connector)
        os.makedirs(self.folder)
        self.engines = []
        self.start(venv, model)

    def start(self, venv, model):
        first, second = cores()
        self.prefills = [self.add(VllmEngine(venv, model, self.folder, "prefill", first, self.connector))]
        self.decode = self.add(VllmEngine(venv, model, self.folder, "decode", second, self.connector))

    @property
    def prefill(self):
        return self.prefills[0]

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

    def gateway(self, name, decode_url, *flags):
        prefills = [word for prefill in self.prefills for word in ("--prefill", prefill.url)]
        return Gateway(name, self.folder, cores()[1], ["--vllm-pd-disaggregation", "--kv-connector", self.connector, *prefills,
                                                       "--decode", decode_url, *flags])

    def stop(self):
        for engine in self.engines:
            engine.process.kill()

"""Rooms that a gateway manages: nobody names an address, another prefill may take over, the gateway may abort."""
import itertools
import time
import unittest

import paths  # noqa: F401
from engine import Engine, Request, Status, run
from gateway import RECEIVER, SENDER, Gateway
from vllm_connector import baton_kv

ROOMS = itertools.count(70000)
BLOCKS = 64
EXTRA = {"backends": ["tcp"], "dead_ms": 3000, "heartbeat_ms": 200, "bootstrap_ms": 15000, "stall_ms": 5000, "release_ms": 5000}


def wait_for(is_true, seconds=10):
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class GatewayManaged(unittest.TestCase):
    def setUp(self):
        self.gateway = Gateway(token="secret")
        self.addCleanup(self.gateway.close)

    def engine(self, name, **more):
        extra = {**EXTRA, "gateway": self.gateway.address, "worker": "http://" + name, "gateway_token": "secret",
                 **more.pop("extra", {})}
        engine = Engine(name, extra, blocks=BLOCKS, **more)
        self.addCleanup(engine.close)
        return engine

    def engines(self, *names, **more):
        engines = [self.engine(name, **more.get(name, {})) for name in names]
        self.assertTrue(wait_for(lambda: len(self.gateway.agents) == len(names)), "not all agents have registered")
        return engines

    def leg(self, kind, name, room, tokens=18):
        flag = {"p": "do_remote_decode", "d": "do_remote_prefill"}[kind]
        prompt = [f"{name}{place}" for place in range(tokens)]
        return Request(f"{kind}-{name}", prompt, {flag: True, "baton_room": room}, max_tokens=3)

    def settle(self, *engines):
        self.assertTrue(run(engines, lambda: not any(engine.has_work() for engine in engines)), "something never ends")
        self.assertEqual([engine.leaks(BLOCKS) for engine in engines], [[]] * len(engines))

    def test_agents_tell_whose_they_are(self):
        self.engines("p", "d")
        agent = self.gateway.agents["http://p", 0]
        self.assertEqual((agent.name, agent.ranks, agent.host, agent.kinds), ("p/0", 1, "127.0.0.1", baton_kv.BACKENDS["tcp"]))

    def test_the_gateway_says_who_sends_in_any_order(self):
        p, d = self.engines("p", "d", p={"budget": 4})
        for order in ("gpd", "gdp", "dpg", "pdg", "dgp"):
            room = next(ROOMS)
            prefill, decode = self.leg("p", order, room), self.leg("d", order, room)
            for letter in order:
                if letter == "g":
                    self.gateway.open(room, "http://p", "http://d")
                else:
                    (p.add(prefill) if letter == "p" else d.add(decode))
                    (p if letter == "p" else d).step()
            self.assertTrue(run([p, d], lambda: decode.outputs == 1), f"order {order}")
            self.assertEqual((d.wrong_slots(decode), decode.computed_here), ([], 0))
            for side in (SENDER, RECEIVER):
                self.assertTrue(wait_for(lambda: self.gateway.told.get((room, side)) == baton_kv.SUCCESS))
            self.settle(p, d)

    def test_another_prefill_takes_over_before_the_first_byte(self):
        p, p2, d = self.engines("p", "p2", "d")
        room, second = next(ROOMS), next(ROOMS)
        decode = d.add(self.leg("d", "repair", room))
        self.gateway.open(room, "http://p", "http://d", repair_ms=10000)
        d.step()
        p.close()
        self.assertTrue(run([d], lambda: self.gateway.told.get((room, RECEIVER)) == "orphan"), "decode is not orphaned")
        self.assertFalse(decode.is_finished())
        self.gateway.repair(room, second, "http://p2", "http://d")
        p2.add(self.leg("p", "repair", second))
        self.assertTrue(run([p2, d], lambda: decode.outputs == 1))
        self.assertEqual((d.wrong_slots(decode), decode.computed_here), ([], 0))
        self.settle(p2, d)

    def test_the_gateways_abort_ends_both_requests(self):
        p, d = self.engines("p", "d", p={"budget": 4})
        room = next(ROOMS)
        prefill, decode = p.add(self.leg("p", "abort", room, 30)), d.add(self.leg("d", "abort", room, 30))
        self.gateway.open(room, "http://p", "http://d")
        d.step()
        p.step()
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            for worker in ("http://p", "http://d"):
                self.gateway.abort(room, worker, "the client is gone")
            self.assertTrue(run([d], lambda: decode.is_finished()))
            self.settle(p, d)
        self.assertEqual((decode.status, prefill.status), (Status.FINISHED_ERROR, Status.FINISHED_LENGTH_CAPPED))
        self.assertIn("the client is gone", "\n".join(log.output))

    def test_an_abort_may_come_before_the_engines_do(self):
        p, d = self.engines("p", "d")
        room = next(ROOMS)
        self.gateway.open(room, "http://p", "http://d")
        self.gateway.abort(room, "http://d", "too late")
        decode = d.add(self.leg("d", "tomb", room))
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.assertTrue(run([d], lambda: decode.is_finished()))
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        self.assertIn("too late", "\n".join(log.output))

    def test_a_gateway_that_refuses_is_told_with_the_failure(self):
        d = self.engine("d", extra={"gateway_token": "wrong", "bootstrap_ms": 500})
        decode = d.add(self.leg("d", "refused", next(ROOMS)))
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.assertTrue(run([d], lambda: decode.is_finished()))
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        self.assertIn("the token is another one", "\n".join(log.output))


if __name__ == "__main__":
    unittest.main()

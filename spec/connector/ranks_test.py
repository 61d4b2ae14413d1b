"""Workers of several ranks: of equal and unlike tensor-parallel sizes, with heads that are split, copied, or the latent of MLA.

What a head has for a token is its own, so a head that comes from another place than its own is seen.
"""
import itertools
import unittest

import paths  # noqa: F401
from engine import Engine, Request, Status, run
from gateway import Gateway
from gateway_test import wait_for

ROOMS = itertools.count(90000)
BLOCKS = 64
EXTRA = {"dead_ms": 3000, "heartbeat_ms": 200, "bootstrap_ms": 15000, "stall_ms": 5000, "release_ms": 5000}


class Ranks(unittest.TestCase):
    """Over tcp; the class at the end repeats it otherwise."""
    extra = {"backends": ["tcp"]}

    def setUp(self):
        self.gateway = Gateway()
        self.addCleanup(self.gateway.close)
        self.agents = 0

    def engine(self, name, ranks, **more):
        extra = {**EXTRA, **self.extra, "gateway": self.gateway.address, "worker": "http://" + name}
        with self.assertLogs("vllm.baton_connector", "INFO") as self.at_start:
            engine = Engine(name, extra, blocks=BLOCKS, ranks=ranks, **more)
        self.addCleanup(engine.close)
        self.agents += ranks
        self.assertTrue(wait_for(lambda: len(self.gateway.agents) == self.agents), "not all agents have registered")
        return engine

    def leg(self, kind, name, room, tokens):
        flag = {"p": "do_remote_decode", "d": "do_remote_prefill"}[kind]
        prompt = [f"{name}{place}" for place in range(tokens)]
        # A prefill leg ends with its first token, as the gateway asks: a second one would be written into a page on its way.
        return Request(f"{kind}-{name}", prompt, {flag: True, "baton_room": room}, max_tokens=1 if kind == "p" else 3)

    def settle(self, *engines):
        self.assertTrue(run(engines, lambda: not any(engine.has_work() for engine in engines)), "something never ends")
        self.assertEqual([engine.leaks(BLOCKS) for engine in engines], [[]] * len(engines))

    def serve(self, p, d, name, tokens, order="gpd"):
        """A whole request; every head of every rank is looked at while decode still has its blocks."""
        room = next(ROOMS)
        prefill, decode = self.leg("p", name, room, tokens), self.leg("d", name, room, tokens)
        for letter in order:
            if letter == "g":
                self.gateway.open(room, "http://p", "http://d")
            else:
                (p.add(prefill) if letter == "p" else d.add(decode))
                (p if letter == "p" else d).step()
        self.assertTrue(run([p, d], lambda: decode.outputs == 1), f"{name}, order {order}")
        self.assertEqual((d.wrong_slots(decode), decode.computed_here), ([], 0))
        return prefill, decode

    def check(self, p_ranks, d_ranks, heads, **more):
        p = self.engine("p", p_ranks, heads=heads, budget=7, **more)
        d = self.engine("d", d_ranks, heads=heads, **more)
        for order in ("gpd", "pdg", "dpg"):
            for tokens in (3, 4, 18):
                self.serve(p, d, f"{order}{tokens}x", tokens, order)
        self.settle(p, d)
        return p, d

    def test_equal_sizes(self):
        self.check(2, 2, 4)

    def test_prefill_has_more_ranks(self):
        self.check(2, 1, 4)

    def test_prefill_has_many_more_ranks(self):
        self.check(4, 1, 8)

    def test_decode_has_more_ranks(self):
        self.check(1, 2, 4)

    def test_neither_is_a_multiple_of_the_other(self):
        self.check(3, 2, 6)

    def test_four_ranks_and_two(self):
        self.check(4, 2, 8)

    def test_two_ranks_and_four(self):
        self.check(2, 4, 8)

    def test_fewer_heads_than_ranks(self):
        """Two heads: of four ranks two hold each."""
        self.check(4, 1, 2)

    def test_fewer_heads_than_ranks_on_both_sides(self):
        self.check(2, 4, 1)

    def test_the_latent_of_mla_from_more_ranks(self):
        p, d = self.check(4, 1, 16, is_mla=True)
        sent = [worker.worker.agent.stats().bytes_sent for worker in p.workers]
        self.assertGreater(sent[0], 0)
        self.assertEqual(sent[1:], [0, 0, 0], "whoever has a copy that nobody needs sends nothing")

    def test_the_latent_of_mla_to_more_ranks(self):
        p, d = self.check(2, 4, 16, is_mla=True)
        sent = [worker.worker.agent.stats().bytes_sent for worker in p.workers]
        self.assertEqual(sent[0], sent[1], "copies share the work")

    def test_a_prefix_that_decode_has(self):
        p, d = self.engine("p", 2, heads=4), self.engine("d", 1, heads=4)
        donor = d.add(Request("donor", [f"known{place}" for place in range(18)], max_tokens=2))
        self.assertTrue(run([d], lambda: donor.outputs == 1))
        d.cache_prefix(donor)
        before = d.agent.stats().bytes_received
        self.serve(p, d, "known", 18)
        self.assertEqual(d.agent.stats().bytes_received - before, d.memory.page * d.memory.layers, "one page, from both")
        self.settle(p, d)

    def test_one_rank_of_prefill_is_lost(self):
        """What the others sent is not enough: the request fails, and the engine goes on."""
        p, d = self.engine("p", 2, heads=4, budget=4), self.engine("d", 1, heads=4)
        room = next(ROOMS)
        decode = d.add(self.leg("d", "lost", room, 30))
        self.gateway.open(room, "http://p", "http://d")
        d.step()
        p.add(self.leg("p", "lost", room, 30))
        p.step()
        # A rank that is gone before decode's link to it has no name yet.
        self.assertTrue(run([d], lambda: d.agent.stats().links == 2))
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            p.workers[1].shutdown()
            self.assertTrue(run([d], lambda: decode.is_finished()))
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        self.assertIn("p/1", "\n".join(log.output), "the log names the rank")
        self.settle(d)

    def test_another_number_of_heads(self):
        p, d = self.engine("p", 1, heads=6), self.engine("d", 2, heads=12)
        self.refused(p, d, "kv_heads=6", "kv_heads=12")

    def test_another_number_of_ranks_and_pages_that_cannot_be_cut(self):
        """Two pipeline stages of one rank have other layers each; two ranks of one stage have not."""
        p, d = self.engine("p", 2, heads=2, stages=2), self.engine("d", 1, heads=2, stages=2)
        self.refused(p, d, "2 senders and this agent is rank 0 of 1", "the same tensor-parallel size")
        self.assertIn("pipeline stages", "\n".join(self.at_start.output))

    def test_another_number_of_layers(self):
        p, d = self.engine("p", 1, heads=4, layers=3), self.engine("d", 1, heads=4)
        self.refused(p, d, "layers=3", "layers=2")

    def test_another_type_of_the_same_size(self):
        """float16 and bfloat16 have pages of the same size: without a word about it decode would read noise."""
        p, d = (self.engine(name, 1, heads=2, dtype=f"torch.{dtype}") for name, dtype in (("p", "float16"), ("d", "bfloat16")))
        self.refused(p, d, "dtype=float16", "dtype=bfloat16", "set the same on both")

    def test_a_latent_and_a_head(self):
        p, d = self.engine("p", 1, heads=2, is_mla=True), self.engine("d", 1, heads=2)
        self.refused(p, d, "kv_heads=1", "kv_heads=2")

    def refused(self, p, d, *reasons):
        room = next(ROOMS)
        self.gateway.open(room, "http://p", "http://d")
        decode = d.add(self.leg("d", "refused", room, 9))
        p.add(self.leg("p", "refused", room, 9))
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.assertTrue(run([p, d], lambda: decode.is_finished()), "the request does not end")
            for worker in ("http://p", "http://d"):  # as the gateway does
                self.gateway.abort(room, worker, "decode has failed")
            self.settle(p, d)
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        told = "\n".join(log.output)
        for reason in reasons:
            self.assertIn(reason, told)

    def test_stats_are_of_all_ranks(self):
        p, d = self.engine("p", 2, heads=4), self.engine("d", 1, heads=4)
        self.serve(p, d, "stats", 8)
        self.settle(p, d)
        size = 2 * d.memory.page * d.memory.layers
        self.assertEqual(d.stats.data["received_bytes"], [size])
        self.assertEqual((p.stats.data["sent_bytes"], p.stats.data["received_bytes"]), (size, []))
        self.assertEqual((d.stats.data["failed_loads"], p.stats.data["failed_sends"]), (0, 0))


class RanksOverShm(Ranks):
    extra = {"backends": ["shm"]}


class RanksLayerByLayer(Ranks):
    extra = {"backends": ["tcp"], "layerwise": True, "crc": True}


if __name__ == "__main__":
    unittest.main()

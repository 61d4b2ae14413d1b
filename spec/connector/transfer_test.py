"""Two fake engines whose KV goes through the real library: every slot is compared, every block must come back."""
import itertools
import unittest

import paths  # noqa: F401
from engine import Engine, Request, Status, run

ROOMS = itertools.count(1000)
BLOCKS = 64
EXTRA = {"allow_sources": True, "dead_ms": 3000, "heartbeat_ms": 200, "bootstrap_ms": 15000, "stall_ms": 5000, "release_ms": 5000}


def words(name, count):
    return [f"{name}{place}" for place in range(count)]


class Transfers(unittest.TestCase):
    """Over tcp; the classes at the end repeat it otherwise."""
    extra = {"backends": ["tcp"]}

    def engine(self, name, **more):
        extra = {**EXTRA, **self.extra, **more.pop("extra", {})}
        engine = Engine(name, extra, blocks=BLOCKS, **more)
        self.addCleanup(engine.close)
        return engine

    def pair(self, p=None, d=None):
        self.p, self.d = self.engine("p", **(p or {})), self.engine("d", **(d or {}))
        return self.p, self.d

    def legs(self, name, tokens, room=None, **more):
        room = room or next(ROOMS)
        prompt = words(name, tokens)
        return (Request("p-" + name, prompt, {"do_remote_decode": True, "do_remote_prefill": False, "baton_room": room}),
                Request("d-" + name, prompt, {"do_remote_decode": False, "do_remote_prefill": True, "baton_room": room,
                                              "baton_source": f"127.0.0.1:{self.p.agent.port}"}, max_tokens=4, **more))

    def send(self, name, tokens, first="p"):
        """One request through both; decode's is checked while it still has its blocks."""
        prefill, decode = self.legs(name, tokens)
        for side in (first, "d" if first == "p" else "p"):
            (self.p.add(prefill) if side == "p" else self.d.add(decode))
            (self.p if side == "p" else self.d).step()
        self.assertTrue(run([self.p, self.d], lambda: decode.outputs == 1), "decode has not begun in time")
        self.assertEqual(self.d.wrong_slots(decode), [])
        self.assertEqual(decode.computed_here, 0)
        return prefill, decode

    def settle(self):
        self.assertTrue(run([self.p, self.d], lambda: not self.p.has_work() and not self.d.has_work()), "something never ends")
        self.assertEqual((self.p.leaks(BLOCKS), self.d.leaks(BLOCKS)), ([], []))

    def failed(self, decode, *reasons):
        """The request ends with an error, the log says why, and the engine takes the next one."""
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.assertTrue(run([self.p, self.d], lambda: decode.is_finished()))
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        for reason in reasons:
            self.assertIn(reason, "\n".join(log.output))

    # ---- what goes well ----
    def test_prompts_of_all_sizes_whichever_side_is_first(self):
        self.pair()
        for first in ("p", "d"):
            for tokens in (1, 3, 4, 5, 8, 41):
                self.send(f"{first}{tokens}x", tokens, first)
        self.settle()

    def test_a_prompt_in_chunks_is_sent_in_chunks(self):
        self.pair(p={"budget": 3})
        self.send("chunks", 30, "d")
        self.settle()
        self.assertGreater(self.p.agent.stats().chunks, 5)

    def test_what_prefill_has_in_its_prefix_cache_is_sent_too(self):
        self.pair(p={"budget": 5})
        donor = self.p.add(Request("donor", words("cached", 18), max_tokens=2))
        self.assertTrue(run([self.p], lambda: donor.outputs == 1))
        self.p.cache_prefix(donor)
        prefill, _ = self.send("cached", 18)
        self.assertLess(prefill.computed_here, 18)
        self.settle()

    def test_what_decode_has_in_its_prefix_cache_is_not_sent(self):
        self.pair()
        donor = Request("donor", words("known", 18), max_tokens=2)
        self.d.add(donor)
        self.assertTrue(run([self.d], lambda: donor.outputs == 1))
        self.d.cache_prefix(donor)
        before = self.d.agent.stats().bytes_received
        _, decode = self.send("known", 18)
        page = self.d.memory.page * self.d.memory.layers
        self.assertEqual(decode.external, 2)
        self.assertEqual(self.d.agent.stats().bytes_received - before, page)
        self.settle()

    def test_many_at_once(self):
        self.pair(p={"budget": 16})
        for round_number in range(3):
            legs = [self.legs(f"{round_number}many{index}x", 5 + index % 3) for index in range(15)]
            for index, (prefill, decode) in enumerate(legs):
                (self.p.add(prefill), self.d.add(decode)) if index % 2 else (self.d.add(decode), self.p.add(prefill))
            self.assertTrue(run([self.p, self.d], lambda: all(decode.is_finished() for _, decode in legs)))
            self.assertEqual({decode.status for _, decode in legs}, {Status.FINISHED_LENGTH_CAPPED})
            self.assertEqual({decode.computed_here for _, decode in legs}, {0})
        self.settle()

    def test_a_full_lane_only_delays(self):
        self.pair(p={"budget": 1, "extra": {"lane_depth": 1}})
        self.send("lane", 24)
        self.settle()

    def test_prefill_that_goes_on_is_no_matter(self):
        self.pair()
        prefill, decode = self.legs("longer", 10)
        prefill.max_tokens = 8
        self.p.add(prefill)
        self.d.add(decode)
        self.assertTrue(run([self.p, self.d], lambda: decode.outputs == 1))
        self.assertEqual(self.d.wrong_slots(decode), [])
        self.settle()

    # ---- requests that end early ----
    def test_prefill_aborted_in_the_middle(self):
        self.pair(p={"budget": 4})
        prefill, decode = self.legs("aborted", 30)
        self.d.add(decode)
        self.p.add(prefill)
        self.p.step()
        self.d.step()
        self.p.step()
        self.p.abort("p-aborted")
        self.failed(decode, "prefill's request was aborted")
        self.send("next", 9)
        self.settle()

    def test_prefill_aborted_before_decode_comes(self):
        self.pair(p={"budget": 4})
        prefill, decode = self.legs("early", 30)
        self.p.add(prefill)
        self.p.step()
        self.p.abort("p-early")
        with self.assertLogs("vllm.baton_connector", "WARNING"):
            self.assertTrue(run([self.p], lambda: not self.p.has_work()))
        self.d.add(decode)
        self.failed(decode, "prefill's request was aborted")
        self.settle()

    def test_decode_aborted_while_it_waits(self):
        self.pair(p={"budget": 4})
        prefill, decode = self.legs("gone", 30)
        self.d.add(decode)
        self.d.step()
        self.p.add(prefill)
        self.p.step()
        self.d.abort("d-gone")
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.settle()
        self.assertIn("decode's request was aborted", "\n".join(log.output))
        self.send("after", 9)
        self.settle()

    def test_decode_aborted_before_prefill_comes(self):
        """It may be gone before it could announce itself: then prefill's own deadline ends the room, or a gateway."""
        self.pair(p={"extra": {"bootstrap_ms": 1000}})
        prefill, decode = self.legs("left", 9)
        self.d.add(decode)
        self.d.step()
        self.d.abort("d-left")
        self.assertTrue(run([self.d], lambda: not self.d.has_work()))
        self.p.add(prefill)
        with self.assertLogs("vllm.baton_connector", "WARNING"):
            self.settle()

    def test_decode_aborted_before_it_was_scheduled(self):
        self.pair()
        _, decode = self.legs("never", 9)
        self.d.add(decode)
        self.d.abort("d-never")
        self.settle()

    def test_preempted_before_anything_was_sent_the_room_goes_on(self):
        self.pair(p={"budget": 2})
        prefill, decode = self.legs("again", 11)
        self.p.add(prefill)
        self.p.step()
        self.p.preempt("p-again")
        self.d.add(decode)
        self.assertTrue(run([self.p, self.d], lambda: decode.outputs == 1))
        self.assertEqual(self.d.wrong_slots(decode), [])
        self.settle()

    def test_preempted_later_the_room_fails_before_its_pages_are_others(self):
        self.pair(p={"budget": 4})
        prefill, decode = self.legs("preempted", 30)
        self.p.add(prefill)
        self.p.step()
        self.p.preempt("p-preempted")
        other = self.p.add(Request("other", words("other", 8)))
        self.d.add(decode)
        self.failed(decode, "prefill was preempted")
        self.assertEqual(decode.computed_here, 0)
        self.settle()
        self.assertTrue(other.is_finished() and prefill.is_finished())

    def test_decode_preempted_after_its_load_computes_itself(self):
        self.pair()
        _, decode = self.send("twice", 9)
        self.d.preempt("d-twice")
        decode.is_loaded = False
        self.assertTrue(run([self.p, self.d], lambda: decode.is_finished()))
        self.assertEqual(decode.computed_here, 9)
        self.settle()

    # ---- what goes wrong ----
    def test_prefill_that_never_comes(self):
        self.pair(d={"extra": {"bootstrap_ms": 300}})
        _, decode = self.legs("alone", 9)
        self.d.add(decode)
        self.failed(decode, "timed out after 300 ms")
        self.send("next", 9)
        self.settle()

    def test_decode_that_never_comes(self):
        self.pair(p={"extra": {"bootstrap_ms": 300}})
        prefill, _ = self.legs("alone", 9)
        self.p.add(prefill)
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.settle()
        self.assertIn("timed out after 300 ms", "\n".join(log.output))
        self.assertEqual(prefill.status, Status.FINISHED_LENGTH_CAPPED)

    def test_after_a_failure_decode_may_compute_itself(self):
        self.pair(d={"policy": "recompute", "extra": {"bootstrap_ms": 300}})
        donor = Request("donor", words("policy", 5), max_tokens=2)
        self.d.add(donor)
        self.assertTrue(run([self.d], lambda: donor.outputs == 1))
        self.d.cache_prefix(donor)
        _, decode = self.legs("policy", 18)
        self.d.add(decode)
        with self.assertLogs("vllm.baton_connector", "WARNING"):
            self.assertTrue(run([self.d], lambda: decode.outputs == 1))
        self.assertEqual(self.d.wrong_slots(decode), [])
        self.assertEqual(decode.computed_here, 14)
        self.settle()

    def test_one_room_for_two_requests(self):
        """The second of each side is refused; the first ones are not harmed."""
        self.pair()
        room = next(ROOMS)
        (p1, d1), (p2, d2) = self.legs("first", 9, room), self.legs("second", 9, room)
        for request in (d1, d2):
            self.d.add(request)
        for request in (p1, p2):
            self.p.add(request)
        self.failed(d2, "another request has it")
        self.assertTrue(run([self.p, self.d], lambda: d1.is_finished()))
        self.assertEqual((d1.status, d1.computed_here), (Status.FINISHED_LENGTH_CAPPED, 0))
        self.settle()

    def test_prompts_of_unlike_lengths(self):
        self.pair()
        (prefill, _), (_, decode) = self.legs("short", 5), self.legs("long", 20)
        decode.kv_transfer_params["baton_room"] = prefill.kv_transfer_params["baton_room"]
        self.p.add(prefill)
        self.d.add(decode)
        self.failed(decode, "pages")
        self.send("next", 9)
        self.settle()

    def test_engines_with_pages_of_unlike_sizes(self):
        self.pair(p={"extra": {"bootstrap_ms": 500}}, d={"slot_bytes": 128})  # nobody tells prefill
        prefill, decode = self.legs("sizes", 9)
        self.p.add(prefill)
        self.d.add(decode)
        self.failed(decode, "head=4x16", "head=4x32", "set the same on both")
        self.settle()

    def test_a_room_without_a_source_waits_for_its_gateway(self):
        self.pair(d={"extra": {"allow_sources": False, "bootstrap_ms": 300}})
        _, decode = self.legs("nobody", 9)
        self.d.add(decode)
        self.failed(decode, f"room {decode.kv_transfer_params['baton_room']}: ")
        self.settle()

    def test_no_parameters_no_transfer(self):
        self.pair()
        request = self.d.add(Request("plain", words("plain", 9)))
        self.assertTrue(run([self.d], lambda: request.is_finished()))
        self.assertEqual(request.computed_here, 9)
        self.settle()


class OverShm(Transfers):
    extra = {"backends": ["shm"]}


class LayerByLayer(Transfers):
    extra = {"backends": ["tcp"], "layerwise": True, "crc": True}


if __name__ == "__main__":
    unittest.main()

"""The scheduler's side: which pages are told when, and whose blocks stay."""
import unittest
from types import SimpleNamespace

import paths  # noqa: F401
from engine import Blocks, Request, Status
from vllm_connector.plan import Load, Save
from vllm_connector.scheduler import SchedulerSide
from vllm_connector.settings import Settings

BLOCK = 4


def output(new=(), cached=(), scheduled=None, preempted=()):
    """new: (id, blocks, computed); cached: (id, new blocks or None, computed, is resumed)."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=one, block_ids=(blocks,), num_computed_tokens=done)
                            for one, blocks, done in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[one for one, *_ in cached], resumed_req_ids={one for one, _, _, is_resumed in cached if is_resumed},
            new_block_ids=[(blocks,) if blocks else None for _, blocks, _, _ in cached],
            num_computed_tokens=[done for _, _, done, _ in cached]),
        num_scheduled_tokens=scheduled or {}, preempted_req_ids=set(preempted), finished_req_ids=set())


def prefill(tokens, room=7, request_id="p"):
    return Request(request_id, range(tokens), {"do_remote_decode": True, "do_remote_prefill": False, "baton_room": room})


def decode(tokens, room=7, **more):
    return Request("d", range(tokens), {"do_remote_decode": False, "do_remote_prefill": True, "baton_room": room, **more})


class Decode(unittest.TestCase):
    def setUp(self):
        self.side = SchedulerSide(Settings(), BLOCK)

    def test_the_whole_prompt_is_external(self):
        request = decode(10)
        self.assertEqual(self.side.external_tokens(request, 0), 10)
        self.assertEqual(self.side.external_tokens(request, 0), 10, "asking changes nothing")
        self.side.blocks_given(request, Blocks([5, 6, 7]), 10)
        plan = self.side.build_plan(output())
        self.assertEqual(plan.loads, [Load("d", 7, [5, 6, 7], 0, [])])
        self.assertFalse(self.side.build_plan(output()), "told once")

    def test_what_is_here_already_is_a_prefix(self):
        request = decode(10)
        self.assertEqual(self.side.external_tokens(request, 4), 6)
        self.side.blocks_given(request, Blocks([5, 6, 7, 8]), 6)
        self.assertEqual(self.side.build_plan(output()).loads, [Load("d", 7, [5, 6, 7], 1, [])])

    def test_a_second_time_it_is_computed_here(self):
        request = decode(10)
        self.side.blocks_given(request, Blocks([5, 6, 7]), 10)
        self.assertEqual(self.side.external_tokens(request, 0), 0)
        self.side.build_plan(output())
        self.side.blocks_given(request, Blocks([5, 6, 7]), 0)
        self.assertEqual(self.side.build_plan(output()).loads, [])

    def test_parameters_that_are_wrong_are_no_parameters(self):
        for room in (None, 0, -1, "7", True, 1 << 64, 1.5):
            with self.assertLogs("vllm_connector.scheduler", "WARNING"):
                request = decode(10, room)
                self.assertEqual(self.side.external_tokens(request, 0), 0)
                self.side.blocks_given(request, Blocks([5]), 0)
            self.assertEqual(self.side.build_plan(output()).loads, [])

    def test_a_request_without_parameters_is_nobodys(self):
        request = Request("d", range(10))
        self.assertEqual(self.side.external_tokens(request, 0), 0)
        self.side.blocks_given(request, Blocks([5]), 0)
        self.assertFalse(self.side.build_plan(output(new=[("d", [5], 0)], scheduled={"d": 10})))
        self.assertFalse(self.side.request_finished(request))

    def test_sources_of_the_request_count_only_where_allowed(self):
        request = decode(4, baton_source="127.0.0.1:9")
        self.side.blocks_given(request, Blocks([5]), 4)
        self.assertEqual(self.side.build_plan(output()).loads[0].sources, [])
        allowed = SchedulerSide(Settings(allow_sources=True), BLOCK)
        both = (["127.0.0.1:9", "127.0.0.1:8"], [("127.0.0.1", 9), ("127.0.0.1", 8)])
        for given, expected in (("127.0.0.1:9", [("127.0.0.1", 9)]), both, ("bad", [])):
            request = decode(4, baton_source=given)
            allowed.blocks_given(request, Blocks([5]), 4)
            self.assertEqual(allowed.build_plan(output()).loads[0].sources, expected)


class Prefill(unittest.TestCase):
    def setUp(self):
        self.side = SchedulerSide(Settings(), BLOCK)

    def start(self, request, blocks, computed, count):
        self.side.blocks_given(request, Blocks(blocks), 0)
        step = output(new=[(request.request_id, blocks, computed)], scheduled={request.request_id: count})
        return self.side.build_plan(step).saves

    def test_a_prompt_in_one_step(self):
        self.assertEqual(self.start(prefill(10), [1, 2, 3], 0, 10), [Save("p", 7, 0, [1, 2, 3], True)])

    def test_a_prompt_that_ends_with_a_page(self):
        self.assertEqual(self.start(prefill(8), [1, 2], 0, 8), [Save("p", 7, 0, [1, 2], True)])

    def test_a_prompt_in_chunks(self):
        """6 of 15 tokens: one page is full. 8 more: two more. The last token ends the rest."""
        self.assertEqual(self.start(prefill(15), [1, 2], 0, 6), [Save("p", 7, 0, [1], False)])
        plan = self.side.build_plan(output(cached=[("p", [3, 4], 6, False)], scheduled={"p": 8}))
        self.assertEqual(plan.saves, [Save("p", 7, 1, [2, 3], False)])
        plan = self.side.build_plan(output(cached=[("p", None, 14, False)], scheduled={"p": 1}))
        self.assertEqual(plan.saves, [Save("p", 7, 3, [4], True)])
        plan = self.side.build_plan(output(cached=[("p", [9], 15, False)], scheduled={"p": 1}))
        self.assertEqual(plan.saves, [], "what is generated is nobody's")

    def test_a_chunk_without_a_full_page_opens_the_room(self):
        self.assertEqual(self.start(prefill(15), [1], 0, 2), [Save("p", 7, 0, [], False)])
        plan = self.side.build_plan(output(cached=[("p", None, 2, False)], scheduled={"p": 1}))
        self.assertEqual(plan.saves, [], "and is told once")

    def test_what_the_prefix_cache_has_is_sent_too(self):
        self.assertEqual(self.start(prefill(15), [1, 2, 3], 8, 4), [Save("p", 7, 0, [1, 2, 3], False)])

    def test_preempted_it_begins_anew_with_other_pages(self):
        self.start(prefill(15), [1, 2], 0, 8)
        plan = self.side.build_plan(output(preempted=["p"]))
        self.assertEqual((plan.preempted, plan.saves), (["p"], []))
        plan = self.side.build_plan(output(cached=[("p", [5, 6, 7, 8], 4, True)], scheduled={"p": 11}))
        self.assertEqual(plan.saves, [Save("p", 7, 0, [5, 6, 7, 8], True)])

    def test_its_blocks_stay_until_it_is_sent(self):
        request = prefill(4)
        self.start(request, [1], 0, 4)
        request.status = Status.FINISHED_LENGTH_CAPPED
        self.assertTrue(self.side.request_finished(request))
        self.assertEqual(self.side.build_plan(output()).aborted, [])
        self.assertEqual(self.side.held, {"p"})
        self.side.sent({"p"})
        self.assertEqual((self.side.held, self.side.sendings), (set(), {}))

    def test_aborted_they_stay_too_and_the_room_is_stopped(self):
        for request, count, status in ((prefill(8), 4, Status.FINISHED_LENGTH_CAPPED), (prefill(4), 4, Status.FINISHED_ABORTED)):
            self.start(request, [1, 2], 0, count)
            request.status = status
            self.assertTrue(self.side.request_finished(request))
            self.assertEqual(self.side.build_plan(output()).aborted, ["p"])
            self.side.sent({"p"})

    def test_aborted_before_it_was_scheduled_nothing_stays(self):
        request = prefill(4)
        request.status = Status.FINISHED_ABORTED
        self.assertFalse(self.side.request_finished(request))
        self.side.blocks_given(request, Blocks([1]), 0)
        self.assertFalse(self.side.request_finished(request))
        self.assertEqual(self.side.sendings, {})

    def test_without_a_room_it_is_a_request_like_any_other(self):
        request = prefill(4, room=None)
        with self.assertLogs("vllm_connector.scheduler", "WARNING"):
            self.assertEqual(self.start(request, [1], 0, 4), [])
        self.assertFalse(self.side.request_finished(request))


if __name__ == "__main__":
    unittest.main()

"""The worker's side against an agent that does as it is told: what is asked of the library, when, and when requests are told."""
import unittest

import paths  # noqa: F401
from vllm_connector import baton_kv
from vllm_connector.model import Model
from vllm_connector.plan import Load, Plan, Save
from vllm_connector.settings import Settings
from vllm_connector.worker import WorkerSide, missing_ranges


class FakeAgent:
    """Rooms are numbered from 1; `state` and `is_free` say how each one stands."""

    def __init__(self):
        self.calls, self.state, self.is_free = [], {}, {}
        self.refusals = []  # of the next sends
        self.on_wait = lambda: None

    def open(self):
        handle = len(self.state) + 1
        self.state[handle], self.is_free[handle] = baton_kv.BOOTSTRAPPING, False
        return handle

    def open_receiver(self, *arguments):
        self.calls.append(("receive", *arguments))
        return self.open()

    def open_sender(self, *arguments):
        self.calls.append(("open", *arguments))
        return self.open()

    def send(self, *arguments):
        if self.refusals:
            raise self.refusals.pop(0)
        self.calls.append(("send", *arguments))

    def room_stats(self, handle):
        return baton_kv.RoomStats(bytes=4096, bootstrap_us=1000, wait_us=2000, transfer_us=5000)

    def states(self, handles):
        return [self.state[handle] for handle in handles]

    def abort(self, handle, reason):
        self.calls.append(("abort", handle, reason))
        if self.state[handle] != baton_kv.SUCCESS:
            self.state[handle] = baton_kv.FAILED

    def reason(self, handle):
        return f"reason of {handle}"

    def release(self, handle):
        return self.is_free[handle]

    def wait(self, timeout_ms):
        self.calls.append(("wait", timeout_ms))
        self.on_wait()

    def close(self):
        self.calls.append(("close",))

    def take_calls(self):
        calls, self.calls = self.calls, []
        return calls


class Case(unittest.TestCase):
    settings = Settings(idle_wait_ms=0)

    def setUp(self):
        self.side = WorkerSide(self.settings, "w/0")
        self.agent = self.side.agent = FakeAgent()
        self.side.layout, self.side.buffers, self.side.by_layer = 9, 3, {"a": [0], "b": [1], "c": [2]}

    def step(self, *saves, finished=(), layers=(), is_idle=False, **plan):
        self.side.take(Plan(saves=list(saves), **plan))
        for layer in layers:
            self.side.layer_computed(layer)
        self.side.step_computed()
        return self.side.poll(finished, is_idle)


class Receiving(Case):
    def open(self, request="r", room=5, prefix=1):
        self.assertEqual(self.step(loads=[Load(request, room, [11, 12, 13], prefix, [])]), (set(), set()))

    def test_a_request_is_told_when_its_pages_are_free(self):
        self.open()
        self.assertEqual(self.agent.take_calls(), [("receive", 5, 9, [11, 12, 13], 1, [])])
        self.agent.state[1] = baton_kv.TRANSFERRING
        self.assertEqual(self.step(), (set(), set()))
        self.agent.state[1] = baton_kv.SUCCESS
        self.assertEqual(self.step(), (set(), set()), "not yet released")
        self.agent.is_free[1] = True
        self.assertEqual(self.step(), (set(), {"r"}))
        self.assertEqual(self.side.take_failed_pages(), set())
        self.assertEqual(self.step(), (set(), set()), "once")

    def test_a_failure_is_told_with_its_pages_when_they_are_free(self):
        self.open()
        self.agent.state[1] = baton_kv.FAILED
        self.assertEqual(self.step(), (set(), set()))
        self.assertEqual(self.side.take_failed_pages(), set(), "a writer may still be under way")
        self.agent.is_free[1] = True
        with self.assertLogs("vllm_connector.worker", "WARNING") as log:
            self.assertEqual(self.step(), (set(), {"r"}))
        self.assertIn("room 5: reason of 1", log.output[0])
        self.assertEqual(self.side.take_failed_pages(), {12, 13}, "the prefix was not the room's")
        self.assertEqual(self.side.take_failed_pages(), set(), "once")

    def test_a_room_that_cannot_be_opened_fails_in_the_same_step(self):
        self.agent.open_receiver = lambda *_: (_ for _ in ()).throw(baton_kv.KvError("receiver", -1, "no"))
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.assertEqual(self.step(loads=[Load("r", 5, [11], 0, [])]), (set(), {"r"}))
        self.assertEqual(self.side.take_failed_pages(), {11})

    def test_an_aborted_request_ends_its_room_and_reports_no_pages(self):
        self.open()
        self.agent.take_calls()
        self.assertEqual(self.step(finished={"r"}), (set(), set()))
        self.assertEqual(self.agent.take_calls(), [("abort", 1, "decode's request was aborted")])
        self.agent.is_free[1] = True
        self.assertEqual(self.step(), (set(), {"r"}))
        self.assertEqual(self.side.take_failed_pages(), set())

    def test_a_source_is_the_one_of_the_same_rank(self):
        side = WorkerSide(self.settings, "w/1", Model(rank=1, ranks=2))
        self.assertEqual(side.my_source([("a", 1), ("b", 2)]), [("b", 2)])
        self.assertEqual(side.my_source([]), [])
        for sources in ([("a", 1)], [("a", 1)] * 3):
            with self.assertRaisesRegex(ValueError, f"names {len(sources)} agents and this server has 2 ranks: name one a rank"):
                side.my_source(sources)


class Sending(Case):
    def test_chunks_go_after_the_forward_and_the_request_when_all_is_over(self):
        self.step(Save("s", 6, 0, [1, 2], False))
        self.assertEqual(self.agent.take_calls(), [("open", 6, 9, 1), ("send", 1, 0, [1, 2], False, 0, 3)])
        self.step(Save("s", 6, 2, [3], True))
        self.assertEqual(self.agent.take_calls(), [("send", 1, 2, [3], True, 0, 3)])
        self.agent.state[1], self.agent.is_free[1] = baton_kv.SUCCESS, True
        self.assertEqual(self.step(), (set(), set()), "the scheduler still has the request")
        self.assertEqual(self.step(finished={"s"}), ({"s"}, set()))
        self.assertEqual(self.side.sendings, {})

    def test_a_finished_request_is_told_when_its_room_is_released(self):
        self.step(Save("s", 6, 0, [1], True))
        self.agent.state[1] = baton_kv.SUCCESS
        self.assertEqual(self.step(finished={"s"}), (set(), set()))
        self.agent.is_free[1] = True
        self.assertEqual(self.step(), ({"s"}, set()))

    def test_a_full_lane_keeps_the_order(self):
        again = baton_kv.KvAgain("chunk", baton_kv.AGAIN, "try again")
        self.agent.refusals = [again] * 4
        self.step(Save("s", 6, 0, [1], False))
        self.step(Save("s", 6, 1, [2], True))
        self.assertEqual(self.agent.take_calls(), [("open", 6, 9, 1)])
        self.step()
        self.assertEqual(self.agent.take_calls(), [("send", 1, 0, [1], False, 0, 3), ("send", 1, 1, [2], True, 0, 3)])

    def test_a_chunk_that_is_refused_ends_the_room(self):
        self.agent.refusals = [baton_kv.KvError("chunk", -1, "invalid argument")]
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.step(Save("s", 6, 0, [1], False))
        self.assertIn(("abort", 1, "chunk: invalid argument"), self.agent.take_calls())
        self.step(Save("s", 6, 1, [2], True))
        self.agent.is_free[1] = True
        self.assertEqual(self.step(finished={"s"}), ({"s"}, set()))

    def test_a_room_that_cannot_be_opened_holds_nothing(self):
        self.agent.open_sender = lambda *_: (_ for _ in ()).throw(baton_kv.KvError("sender", -1, "no"))
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.step(Save("s", 6, 0, [1], True))
        self.assertEqual(self.step(finished={"s"}), ({"s"}, set()))

    def test_an_aborted_request_waits_for_its_room(self):
        self.step(Save("s", 6, 0, [1], False))
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.assertEqual(self.step(aborted=["s"], finished={"s"}), (set(), set()))
        self.assertIn(("abort", 1, "prefill's request was aborted"), self.agent.take_calls())
        self.agent.is_free[1] = True
        self.assertEqual(self.step(), ({"s"}, set()))


class Figures(Case):
    def test_a_room_that_succeeds_is_counted_once(self):
        self.step(Save("s", 6, 0, [1], True), loads=[Load("r", 5, [11], 0, [])])
        self.agent.state = dict.fromkeys(self.agent.state, baton_kv.SUCCESS)
        for _ in range(3):  # until they are released they are looked at again and again
            self.step()
        self.agent.is_free = dict.fromkeys(self.agent.state, True)
        self.step(finished={"s"})
        data = self.side.take_stats().data
        self.assertEqual((data["received_bytes"], data["wait_seconds"], data["transfer_seconds"], data["sent_bytes"]),
                         ([4096], [0.003], [0.005], 4096))
        self.assertIsNone(self.side.take_stats())

    def test_failures_are_counted_once(self):
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.step(Save("s", 6, 0, [1], True), loads=[Load("r", 5, [11], 0, [])])
            self.agent.state = dict.fromkeys(self.agent.state, baton_kv.FAILED)
            self.step()
            self.agent.is_free = dict.fromkeys(self.agent.state, True)
            self.step(finished={"s"})
        data = self.side.take_stats().data
        self.assertEqual((data["failed_loads"], data["failed_sends"], data["received_bytes"]), (1, 1, []))

    def test_a_request_that_nobody_waits_for_has_not_failed(self):
        self.step(loads=[Load("r", 5, [11], 0, [])])
        self.step(finished={"r"})
        self.agent.is_free = {1: True}
        self.step()
        self.assertIsNone(self.side.take_stats())


class Managed(Case):
    def test_a_gateway_names_the_receivers(self):
        self.side.gateways = {1: "127.0.0.1:29500"}
        self.step(Save("s", 6, 0, [1], False))
        self.assertEqual(self.agent.take_calls()[0], ("open", 6, 9, baton_kv.RECEIVERS_OF_GATEWAY))

    def test_unless_requests_name_the_senders(self):
        self.side.gateways = {1: "127.0.0.1:29500"}
        self.side.settings = Settings(idle_wait_ms=0, allow_sources=True)
        self.step(Save("s", 6, 0, [1], False))
        self.assertEqual(self.agent.take_calls()[0], ("open", 6, 9, 1))


class Preempted(Case):
    def test_a_room_of_which_nothing_went_goes_on(self):
        self.step(Save("s", 6, 0, [], False))
        self.agent.take_calls()
        self.step(preempted=["s"])
        self.step(Save("s", 6, 0, [7], True))
        self.assertEqual(self.agent.take_calls(), [("send", 1, 0, [7], True, 0, 3)])

    def test_what_the_library_never_took_is_forgotten(self):
        self.agent.refusals = [baton_kv.KvAgain("chunk", baton_kv.AGAIN, "try again")] * 2
        self.step(Save("s", 6, 0, [1], False))
        self.step(Save("s", 6, 0, [7], True), preempted=["s"])
        self.assertEqual(self.agent.take_calls(), [("open", 6, 9, 1), ("send", 1, 0, [7], True, 0, 3)])

    def test_a_room_that_cannot_succeed_any_more_is_not_waited_for(self):
        self.step(Save("s", 6, 0, [1], False))
        self.agent.take_calls()
        with self.assertLogs("vllm_connector.worker", "WARNING"):
            self.step(preempted=["s"])
        self.assertEqual(self.agent.take_calls(), [("abort", 1, "prefill was preempted")])

    def test_one_that_still_could_is(self):
        self.step(Save("s", 6, 0, [1], True))
        self.agent.take_calls()
        self.agent.on_wait = lambda: self.agent.is_free.update({1: True})
        self.step(preempted=["s"])
        self.assertEqual(self.agent.take_calls(), [("abort", 1, "prefill was preempted"), ("wait", 1)])
        self.assertEqual(self.side.sendings["s"].handle, 0)


class Layers(Case):
    settings = Settings(idle_wait_ms=0, layerwise=True)

    def test_each_goes_when_it_is_computed_the_rest_with_the_last(self):
        self.step(Save("s", 6, 0, [1], True), layers=["b"])
        self.assertEqual(self.agent.take_calls()[1:], [("send", 1, 0, [1], False, 1, 1), ("send", 1, 0, [1], False, 0, 1),
                                                       ("send", 1, 0, [1], True, 2, 1)])

    def test_when_all_have_gone_the_last_is_empty(self):
        self.step(Save("s", 6, 0, [1], True), layers=["a", "b", "c"])
        self.assertEqual(self.agent.take_calls()[-1], ("send", 1, 0, [], True, 0, 0))

    def test_a_step_without_pages_sends_nothing(self):
        self.step(Save("s", 6, 0, [], False), layers=["a"])
        self.assertEqual(self.agent.take_calls(), [("open", 6, 9, 1)])

    def test_ranges(self):
        self.assertEqual(missing_ranges(set(), 4), [(0, 4)])
        self.assertEqual(missing_ranges({1}, 4), [(0, 1), (2, 2)])
        self.assertEqual(missing_ranges({0, 1}, 2), [])


class Idle(Case):
    settings = Settings(idle_wait_ms=3)

    def test_a_step_without_a_forward_sleeps_while_rooms_are_open(self):
        self.assertEqual(self.step(is_idle=True), (set(), set()))
        self.assertEqual(self.agent.take_calls(), [], "nothing to wait for")
        self.agent.on_wait = lambda: (self.agent.state.update({1: baton_kv.SUCCESS}), self.agent.is_free.update({1: True}))
        self.assertEqual(self.step(loads=[Load("r", 5, [11], 0, [])], is_idle=True), (set(), {"r"}))
        self.assertEqual(self.agent.take_calls()[-1], ("wait", 3))

    def test_a_step_with_a_forward_does_not(self):
        self.step(loads=[Load("r", 5, [11], 0, [])])
        self.assertNotIn(("wait", 3), self.agent.take_calls())


if __name__ == "__main__":
    unittest.main()

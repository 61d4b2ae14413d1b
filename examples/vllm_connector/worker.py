"""The side in a vLLM worker process: the agent, and the rooms under way.

A step of the engine: take(plan) before the forward opens rooms (and stops those whose pages go away), layer_computed and
step_computed send, poll says what is over. Nothing waits, with two exceptions: poll in a step without a forward sleeps up to
idle_wait_ms for a room to end, because the engine steps without pause while requests wait for KV; and see `preempt`.

A room's pages are vLLM's again only when the library has released them; only then is the request told as sent or received.
"""
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from . import baton_kv
from .model import Model
from .pages import add_layout, cut, kv_format, places_by_layer
from .stats import BatonStats


@dataclass
class Receiving:
    request: str
    room: int
    handle: int  # 0: it could not be opened
    pages: list  # those that the room fills
    reason: str = ""  # why it failed
    is_told: bool = False  # its success is in the stats
    is_gone: bool = False  # nobody waits for it any more


@dataclass
class Sending:
    request: str
    room: int
    handle: int  # 0: over, and released
    jobs: deque = field(default_factory=deque)  # arguments of Agent.send that the library has not taken yet
    is_posted: bool = False  # the library has some of it
    is_last_posted: bool = False
    is_finished: bool = False  # the scheduler is done with the request
    is_told: bool = False  # how it ended is in the stats, a failure in the log


class WorkerSide:
    def __init__(self, settings, name, model=None, log=None):
        self.settings = settings
        self.name, self.model = name, model or Model()
        self.log = log or logging.getLogger(__name__)
        self.agent = None
        self.gateways = {}
        self.layout, self.by_layer, self.buffers = 0, {}, 0
        self.receivings, self.sendings = {}, {}
        self.step = []  # the saves of this step
        self.saved_buffers = set()  # of this step, layer by layer
        self.failed_pages = set()
        self.stats = BatonStats()

    def register(self, kv_caches, num_blocks):
        settings, model = self.settings, self.model
        places_by_layer(kv_caches, num_blocks)  # refuses what can't be moved, before there is an agent
        told = kv_format(kv_caches, num_blocks, model)
        heads, why_not = cut(kv_caches, num_blocks, model)
        self.agent = baton_kv.Agent(self.name, settings.library, settings.backends, kv_format=told, **settings.agent)
        self.layout, self.by_layer, self.buffers = add_layout(self.agent, kv_caches, num_blocks)
        for host, port in settings.gateways:
            number = self.agent.add_gateway(host, port, settings.worker, model.rank, model.ranks, settings.gateway_token,
                                            heads or (0, 0))
            self.gateways[number] = f"{host}:{port}"
        self.log.info("libbaton_kv agent %s (rank %d of %d) on %s:%d, %d buffers of %d pages in host memory, for %s; pages: %s",
                      self.name, model.rank, model.ranks, settings.agent["host"], self.agent.port, self.buffers, num_blocks,
                      ", ".join(self.gateways.values()) or "no gateway", told)
        if why_not:
            self.log.info("only workers of as many ranks as this one's %d can be its other side: %s", model.ranks, why_not)

    def close(self):
        if self.agent is not None:
            self.agent.close()

    # ---- before the forward ----
    def take(self, plan):
        for request in plan.preempted:
            self.preempt(request)
        for request in plan.aborted:
            self.abort(self.sendings.get(request), "prefill's request was aborted")
        for load in plan.loads:
            self.open_receiving(load)
        for save in plan.saves:
            if save.request not in self.sendings:
                self.open_sending(save)
        self.step = list(plan.saves)
        self.saved_buffers = set()

    def open_receiving(self, load):
        receiving = Receiving(load.request, load.room, 0, load.pages[load.prefix_pages:])
        if any(other.room == load.room for other in self.receivings.values()):  # it would get the other one's KV
            receiving.reason = "another request has it"
        self.receivings[load.request] = receiving
        if receiving.reason:
            return
        try:
            receiving.handle = self.agent.open_receiver(load.room, self.layout, load.pages, load.prefix_pages,
                                                        self.my_source(load.sources))
        except (baton_kv.KvError, ValueError) as error:
            receiving.reason = str(error)

    def my_source(self, sources):
        """Without a gateway each rank has its own counterpart; with one, the library finds those that have its heads."""
        if sources and len(sources) != self.model.ranks:
            raise ValueError(f"baton_source names {len(sources)} agents and this server has {self.model.ranks} ranks: name one a "
                             "rank, or let a gateway name them")
        return [sources[self.model.rank]] if sources else []

    def open_sending(self, save):
        sending = self.sendings[save.request] = Sending(save.request, save.room, 0)
        is_told = self.gateways and not self.settings.allow_sources
        try:
            sending.handle = self.agent.open_sender(save.room, self.layout, baton_kv.RECEIVERS_OF_GATEWAY if is_told else 1)
        except baton_kv.KvError as error:
            self.stats.note_failure(is_load=False)
            self.log.warning("request %s: room %d: %s; decode gets nothing", save.request, save.room, error)

    def preempt(self, request):
        """Its pages will be overwritten by this step. A room of which nothing is under way begins anew. One that could still
        succeed must be over first, so that is waited for: at most release_ms, and only when prefill goes on after its prompt."""
        sending = self.sendings.get(request)
        if sending is None or not sending.handle:
            return
        sending.jobs.clear()
        if not sending.is_posted:
            return
        self.abort(sending, "prefill was preempted")
        deadline = time.monotonic() + self.settings.agent.get("release_ms", 30000) / 1000 + 1
        while sending.is_last_posted and sending.handle and time.monotonic() < deadline:
            if not self.try_release(sending):
                self.agent.wait(1)

    def abort(self, room, reason):
        if room is not None and room.handle:
            self.agent.abort(room.handle, reason)

    # ---- the forward ----
    def layer_computed(self, layer):
        """Its KV of this step is in its pages."""
        if not self.settings.layerwise or not self.step:
            return
        for number in self.by_layer.get(layer, ()):
            if number in self.saved_buffers:
                continue
            self.saved_buffers.add(number)
            for save in self.step:
                self.add_job(save, number, 1)

    def step_computed(self):
        """The forward is over: what was not sent by layers goes now."""
        ranges = missing_ranges(self.saved_buffers, self.buffers)
        for save in self.step:
            for first, count in ranges:
                self.add_job(save, first, count, save.last and (first, count) == ranges[-1])
            if save.last and not ranges:
                self.add_last(save)
        self.step = []

    def add_job(self, save, first, count, last=False):
        sending = self.sendings.get(save.request)
        if sending is not None and sending.handle and (save.pages or last):
            sending.jobs.append((save.first, save.pages, last, first, count))
            self.flush(sending)

    def add_last(self, save):
        sending = self.sendings.get(save.request)
        if sending is not None and sending.handle:
            sending.jobs.append((save.first, [], True, 0, 0))
            self.flush(sending)

    def flush(self, sending):
        while sending.jobs:
            first, pages, last, buffer_first, buffer_count = sending.jobs[0]
            try:
                self.agent.send(sending.handle, first, pages, last, buffer_first, buffer_count)
            except baton_kv.KvAgain:
                return
            except baton_kv.KvError as error:  # the room has failed, or fails now: poll sees it
                self.abort(sending, str(error))
                sending.jobs.clear()
                return
            sending.is_posted = True
            sending.is_last_posted = sending.is_last_posted or last
            sending.jobs.popleft()

    # ---- after it ----
    def poll(self, finished, is_idle):
        """(sent, received): requests whose rooms are over. finished: requests that the scheduler is done with."""
        for request in finished:
            self.finish(request)
        sent, received = self.collect()
        if is_idle and not sent and not received and (self.receivings or self.sendings) and self.settings.idle_wait_ms > 0:
            self.agent.wait(self.settings.idle_wait_ms)
            sent, received = self.collect()
        return sent, received

    def finish(self, request):
        receiving = self.receivings.get(request)
        if receiving is not None:
            receiving.is_gone = True
            self.abort(receiving, "decode's request was aborted")
        if request in self.sendings:
            self.sendings[request].is_finished = True

    def collect(self):
        for sending in self.sendings.values():
            if sending.jobs:
                self.flush(sending)
        rooms = [room for room in (*self.receivings.values(), *self.sendings.values()) if room.handle]
        for room, state in zip(rooms, self.agent.states([room.handle for room in rooms]) if rooms else ()):
            if state == baton_kv.FAILED:
                self.note_failure(room)
            elif state == baton_kv.SUCCESS:
                self.note_success(room)
            if state in (baton_kv.FAILED, baton_kv.SUCCESS):
                self.try_release(room)
        received = {request for request, room in self.receivings.items() if not room.handle}
        for request in received:
            self.end_receiving(self.receivings.pop(request))
        sent = {request for request, room in self.sendings.items() if not room.handle and room.is_finished}
        for request in sent:
            del self.sendings[request]
        return sent, received

    def try_release(self, room):
        if self.agent.release(room.handle):
            room.handle = 0
        return not room.handle

    def note_success(self, room):
        """Once: it is looked at again until it is released."""
        if not room.is_told:
            room.is_told = True
            note = self.stats.note_received if isinstance(room, Receiving) else self.stats.note_sent
            note(self.agent.room_stats(room.handle))

    def note_failure(self, room):
        if isinstance(room, Receiving):
            room.reason = room.reason or self.agent.reason(room.handle) or "failed"
        elif not room.is_told:
            room.is_told = True
            self.stats.note_failure(is_load=False)
            self.log.warning("request %s: room %d: %s", room.request, room.room, self.agent.reason(room.handle))

    def end_receiving(self, room):
        if not room.reason or room.is_gone:  # nobody asks for the pages of an aborted request
            return
        self.stats.note_failure(is_load=True)
        self.failed_pages.update(room.pages)
        self.log.warning("request %s: room %d: %s%s", room.request, room.room, room.reason, self.gateways_away())

    def gateways_away(self):
        away = [(where, self.agent.gateway_state(number)) for number, where in self.gateways.items()]
        return "".join(f"; not registered at gateway {where}: {why}" for where, (is_registered, why) in away if not is_registered)

    def take_stats(self):
        return self.stats.take()

    def take_failed_pages(self):
        failed, self.failed_pages = self.failed_pages, set()
        return failed


def missing_ranges(done, count):
    """The numbers below count that are not in `done`, as (first, how many)."""
    ranges = []
    for number in range(count):
        if number in done:
            continue
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges

"""The side in vLLM's scheduler: which requests have a room, and which of their pages are computed after a step.

Decode (do_remote_prefill): the whole prompt, less what the prefix cache has, is external. One load a request: when it is computed
again after a preemption, or after a failed load (kv_load_failure_policy "recompute"), that is done here.
Prefill (do_remote_decode): after each step the pages that are full are told, after the prompt's last token the last one too. Pages
that the prefix cache had are told with the first. A request's blocks stay until every worker has said that its room is over.
"""
import logging
from dataclasses import dataclass, field

from .plan import Load, Plan, Save
from .settings import address

GOOD_ENDS = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


@dataclass
class Sending:
    room: int
    tokens: int  # of the prompt
    blocks: list = field(default_factory=list)
    told: int = 0  # pages
    is_open: bool = False  # the workers know it
    is_complete: bool = False


def room_of(params):
    """A room's id, or None where there is no good one: a request with bad parameters is computed like any other."""
    room = params.get("baton_room")
    return room if isinstance(room, int) and not isinstance(room, bool) and 0 < room < 1 << 64 else None


class SchedulerSide:
    def __init__(self, settings, block_size, log=None):
        self.settings = settings
        self.block_size = block_size
        self.log = log or logging.getLogger(__name__)
        self.sendings = {}
        self.held = set()  # finished requests whose blocks still wait for their rooms
        self.plan = Plan()

    def pages(self, tokens):
        return -(-tokens // self.block_size)

    # ---- decode ----
    def external_tokens(self, request, computed):
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_prefill") or room_of(params) is None:
            return 0
        return max(0, request.num_prompt_tokens - computed)

    def add_load(self, request, params, blocks, external):
        params["do_remote_prefill"] = False  # a second time it is computed here
        room = room_of(params)
        if room is None:
            self.log.warning("request %s: no room in %r, its prompt is computed here", request.request_id, params)
        elif external > 0:
            prompt = request.num_prompt_tokens
            self.plan.loads.append(Load(request.request_id, room, list(blocks[:self.pages(prompt)]),
                                        (prompt - external) // self.block_size, self.sources_of(params)))

    def sources_of(self, params):
        """For tests and for use without a gateway: "baton_source" names prefill's agents, by rank."""
        sources = params.get("baton_source")
        if not sources or not self.settings.allow_sources:
            return []
        try:
            return [address(one, "baton_source") for one in ([sources] if isinstance(sources, str) else sources)]
        except ValueError as error:
            self.log.warning("%s", error)
            return []

    # ---- both ----
    def blocks_given(self, request, blocks, external):
        """For every request, when it is first scheduled and again when a load is over."""
        params = request.kv_transfer_params
        if not params:
            return
        if params.get("do_remote_prefill"):
            self.add_load(request, params, one_group(blocks.get_block_ids()), external)
        elif params.get("do_remote_decode") and request.request_id not in self.sendings:
            room = room_of(params)
            if room is not None:
                self.sendings[request.request_id] = Sending(room, request.num_prompt_tokens)
            else:
                self.log.warning("request %s: no room in %r, nobody gets its KV", request.request_id, params)

    # ---- prefill ----
    def build_plan(self, output):
        for request in output.preempted_req_ids or ():
            sending = self.sendings.get(request)
            if sending is not None and sending.is_open:
                self.plan.preempted.append(request)
                sending.blocks, sending.told, sending.is_complete = [], 0, False
        for new in output.scheduled_new_reqs:
            if new.req_id in self.sendings:
                self.tell(new.req_id, one_group(new.block_ids), True, new.num_computed_tokens, output)
        cached = output.scheduled_cached_reqs
        for index, request in enumerate(cached.req_ids):
            if request in self.sendings:
                blocks = cached.new_block_ids[index]
                self.tell(request, one_group(blocks) if blocks else [], request in cached.resumed_req_ids,
                          cached.num_computed_tokens[index], output)
        plan, self.plan = self.plan, Plan()
        return plan

    def tell(self, request, blocks, is_all, computed, output):
        """The pages of this request that this step completes."""
        sending = self.sendings[request]
        sending.blocks = list(blocks) if is_all else sending.blocks + list(blocks)
        if sending.is_complete:
            return
        computed += output.num_scheduled_tokens[request]
        sending.is_complete = computed >= sending.tokens
        ready = self.pages(sending.tokens) if sending.is_complete else computed // self.block_size
        if ready > sending.told or not sending.is_open or sending.is_complete:
            self.plan.saves.append(Save(request, sending.room, sending.told, sending.blocks[sending.told:ready],
                                        sending.is_complete))
        sending.told, sending.is_open = ready, True

    def request_finished(self, request):
        """True: the blocks stay until the workers have said so."""
        sending = self.sendings.get(request.request_id)
        if sending is None:
            return False
        if not sending.is_open:
            del self.sendings[request.request_id]
            return False
        if not sending.is_complete or request.status.name not in GOOD_ENDS:
            self.plan.aborted.append(request.request_id)
        self.held.add(request.request_id)
        return True

    def sent(self, requests):
        for request in requests or ():
            self.sendings.pop(request, None)
            self.held.discard(request)


def one_group(block_ids):
    """The start refuses models with several groups (model.py)."""
    return block_ids[0]

"""A fake vLLM engine: the calls that 0.32 makes to a connector, in its order, with its assertions; no model.

Its "KV" is kv_of(tokens, position, layer, head), so that a page's bytes tell whether they are the right ones. Blocks that are free
are poisoned, and looked at again before they are handed out: whoever writes a freed block is found. Metadata goes through pickle,
as between processes. Block 0 is never handed out. One scheduler, a worker a rank, whose answers are added up as vLLM does it.
"""
import enum
import pickle
import time
from types import SimpleNamespace

from configs import FullAttentionSpec, MLAAttentionSpec, cache_config, group, vllm_config
from memory import Memory, heads_of
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm_connector.connector import BatonConnector

BLOCK = 4


class Status(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 3
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9
    FINISHED_ERROR = 11


class Request:
    def __init__(self, request_id, tokens, params=None, max_tokens=1):
        self.request_id = request_id
        self.prompt = list(tokens)
        self.num_prompt_tokens = len(self.prompt)
        self.kv_transfer_params = params
        self.max_tokens = max_tokens
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.blocks = []
        self.outputs = 0
        self.computed_here = 0  # prompt tokens, the one that a full hit computes again left out
        self.external = 0
        self.is_loaded = False
        self.load_failed = False

    def is_finished(self):
        return self.status > Status.PREEMPTED


class Blocks:
    def __init__(self, ids):
        self.ids = ids

    def get_block_ids(self):
        return (list(self.ids),)


class Engine:
    """budget: prompt tokens a step. policy: kv_load_failure_policy. heads: of the model, over all ranks. is_mla: a latent, on each."""

    def __init__(self, name, extra, blocks=64, layers=2, budget=1000, policy="fail", slot_bytes=64, ranks=1, heads=1, is_mla=False,
                 dtype="torch.float32", stages=1):
        self.block_size, self.budget, self.policy, self.ranks = BLOCK, budget, policy, ranks
        held = 1 if is_mla else heads
        self.memories = [Memory(blocks, layers, BLOCK, slot_bytes, heads_of(held, rank, ranks), dtype, is_mla)
                         for rank in range(ranks)]
        cache = cache_config(blocks, [group((MLAAttentionSpec if is_mla else FullAttentionSpec)(BLOCK), layers)])
        self.workers = []
        for rank, memory in enumerate(self.memories):
            config = vllm_config(extra, name, rank, ranks, heads, is_mla, pipeline_parallel_size=stages)
            self.workers.append(BatonConnector(config, KVConnectorRole.WORKER, cache))
            self.workers[-1].register_kv_caches(memory.caches())
        self.scheduler = BatonConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.told = {"sent": {}, "received": {}}  # by how many workers, of those that not all have told
        self.stats = BatonConnector.build_kv_connector_stats()
        self.free = list(range(blocks - 1, 0, -1))
        self.requests, self.waiting, self.running = {}, [], []
        self.finished_ids, self.preempted_ids, self.received = set(), set(), set()
        self.cached = {}  # tokens of a whole prefix -> block
        self.ended = {}  # id -> Request
        self.keep_cached = set()  # blocks of the prefix cache that no request holds

    @property
    def memory(self):
        return self.memories[0]

    @property
    def worker(self):
        return self.workers[0]

    @property
    def agent(self):
        return self.worker.worker.agent

    def close(self):
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()
        for memory in self.memories:
            memory.close()

    # ---- requests ----
    def add(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)
        return request

    def abort(self, request_id, status=Status.FINISHED_ABORTED):
        request = self.requests[request_id]
        delay = request.status == Status.WAITING_FOR_REMOTE_KVS and request_id not in self.received
        self.received.discard(request_id)
        self.end(request, status, delay)

    def end(self, request, status, delay=False):
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.status = status
        delay_by_connector, _ = self.scheduler.request_finished(request, list(request.blocks))
        self.finished_ids.add(request.request_id)
        self.ended[request.request_id] = request
        if not delay and not delay_by_connector:
            self.free_request(request)

    def free_request(self, request):
        assert request.is_finished()
        self.free_blocks(request)
        del self.requests[request.request_id]

    def free_blocks(self, request):
        for block in request.blocks:
            if block not in self.cached.values():
                assert block not in self.free, "freed twice"
                for memory in self.memories:
                    memory.poison(block)
                self.free.insert(0, block)
        request.blocks = []

    def preempt(self, request_id):
        """Between two steps; its blocks may be given to others in the next one."""
        request = self.requests[request_id]
        self.running.remove(request)
        self.free_blocks(request)
        request.status, request.num_computed_tokens = Status.PREEMPTED, 0
        self.waiting.insert(0, request)
        self.preempted_ids.add(request_id)

    def cache_prefix(self, request):
        """As vLLM's prefix cache: whole blocks of the prompt stay for others (for ever, here)."""
        for index in range(request.num_prompt_tokens // self.block_size):
            self.cached.setdefault(tuple(request.prompt[:(index + 1) * self.block_size]), request.blocks[index])

    def cached_prefix(self, request):
        blocks = []
        for index in range((request.num_prompt_tokens - 1) // self.block_size):
            block = self.cached.get(tuple(request.prompt[:(index + 1) * self.block_size]))
            if block is None:
                break
            blocks.append(block)
        return blocks

    # ---- a step ----
    def has_work(self):
        return bool(self.requests or self.finished_ids or self.scheduler.has_pending_push_work())

    def step(self):
        output = self.schedule()
        meta = pickle.dumps(self.scheduler.build_connector_meta(output))
        self.preempted_ids, self.finished_ids = set(), set()
        sent, received, invalid = set(), set(), set()
        for worker, memory in zip(self.workers, self.memories):
            answer = self.step_worker(worker, memory, output, pickle.loads(meta))
            sent |= self.count("sent", answer[0])
            received |= self.count("received", answer[1])
            invalid |= answer[2]
        self.update(output, sent, received, invalid)

    def step_worker(self, worker, memory, output, meta):
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        has_forward = bool(output.num_scheduled_tokens)
        if has_forward:
            self.forward(worker, memory, output)
        worker.start_load_kv(SimpleNamespace(attn_metadata=object() if has_forward else None))
        worker.wait_for_save()
        sent, received = worker.get_finished(output.finished_req_ids)
        invalid = worker.get_block_ids_with_load_errors()
        stats = worker.get_kv_connector_stats()
        if stats is not None:
            self.stats.aggregate(BatonConnector.build_kv_connector_stats(data=pickle.loads(pickle.dumps(stats)).data))
        worker.clear_connector_metadata()
        return sent or set(), received or set(), invalid

    def count(self, what, requests):
        """Those that every worker has told now."""
        told = self.told[what]
        for request in requests:
            told[request] = told.get(request, 0) + 1
        return {request for request in requests if told[request] == self.ranks and told.pop(request)}

    def schedule(self):
        budget, scheduled, new, again = self.budget, {}, [], []
        for request in list(self.running):
            count = min(budget, max(1, request.num_prompt_tokens - request.num_computed_tokens))
            if count > 0:
                scheduled[request.request_id] = count
                again.append((request, self.grow(request, request.num_computed_tokens + count), False))
                budget -= count
        for request in list(self.waiting):
            if not self.may_run(request):
                continue
            is_again, external, local = request.status == Status.PREEMPTED, 0, []
            if request.num_computed_tokens == 0:
                local = [] if request.blocks else self.cached_prefix(request)
                external, is_async = self.scheduler.get_num_new_matched_tokens(request, len(local) * self.block_size)
                assert is_async == (external > 0)
                request.num_computed_tokens = len(local) * self.block_size + external
                request.blocks += local
            if external > 0:
                self.grow(request, request.num_computed_tokens)
                self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), external)
                request.status, request.external = Status.WAITING_FOR_REMOTE_KVS, external
                continue
            count = min(budget, request.num_prompt_tokens - request.num_computed_tokens)
            if count <= 0:
                continue
            self.grow(request, request.num_computed_tokens + count)
            self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), 0)
            self.waiting.remove(request)
            self.running.append(request)
            scheduled[request.request_id] = count
            budget -= count
            (again.append((request, list(request.blocks), True)) if is_again else new.append(request))
            request.status = Status.RUNNING
        return self.describe(scheduled, new, again)

    def describe(self, scheduled, new, again):
        cached = SimpleNamespace(
            req_ids=[request.request_id for request, _, _ in again],
            resumed_req_ids={request.request_id for request, _, is_resumed in again if is_resumed},
            new_block_ids=[(blocks,) if blocks else None for _, blocks, _ in again],
            num_computed_tokens=[request.num_computed_tokens for request, _, _ in again])
        return SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=request.request_id, block_ids=(list(request.blocks),),
                                                num_computed_tokens=request.num_computed_tokens) for request in new],
            scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled, preempted_req_ids=self.preempted_ids,
            finished_req_ids=self.finished_ids)

    def may_run(self, request):
        if request.status != Status.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self.received:
            return False
        self.received.remove(request.request_id)
        request.status = Status.WAITING
        if request.load_failed:
            request.load_failed = False
            if request.num_computed_tokens == 0:
                self.free_blocks(request)
        else:
            request.is_loaded = True
            if request.num_computed_tokens == request.num_prompt_tokens:
                request.num_computed_tokens -= 1
        return True

    def grow(self, request, tokens):
        """The blocks that were added."""
        added = []
        while (len(request.blocks) + len(added)) * self.block_size < tokens:
            block = self.free.pop()
            assert all(memory.is_poisoned(block) for memory in self.memories), f"block {block} was written while it was free"
            added.append(block)
        request.blocks += added
        return added

    def forward(self, worker, memory, output):
        for layer, name in enumerate(memory.caches()):
            worker.wait_for_layer_load(name)
            for request_id, count in output.num_scheduled_tokens.items():
                self.compute(memory, self.requests[request_id], count, layer)
            worker.save_kv_layer(name, None, None)

    def compute(self, memory, request, count, layer):
        for position in range(request.num_computed_tokens, request.num_computed_tokens + count):
            memory.write(layer, request.blocks[position // self.block_size], position % self.block_size, request.prompt, position)
        if layer == 0 and memory is self.memory and not request.is_loaded:
            request.computed_here += min(count, max(0, request.num_prompt_tokens - request.num_computed_tokens))

    def update(self, output, sent, received, invalid):
        failed = self.handle_invalid(invalid)
        for request_id, count in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.num_computed_tokens += count
            if request.num_computed_tokens >= request.num_prompt_tokens:
                request.outputs += 1
                if request.outputs >= request.max_tokens:
                    self.end(request, Status.FINISHED_LENGTH_CAPPED)
        for request in failed:
            self.end(request, Status.FINISHED_ERROR, delay=request.request_id not in self.received)
        self.scheduler.update_connector_output(SimpleNamespace(finished_sending=sent, finished_recving=received))
        for request_id in received:
            request = self.requests[request_id]
            if request.status == Status.WAITING_FOR_REMOTE_KVS:
                self.received.add(request_id)
            else:
                self.free_request_if_finished(request)
        for request_id in sent:
            self.free_request_if_finished(self.requests[request_id])

    def free_request_if_finished(self, request):
        assert request.is_finished(), f"{request.request_id} is {request.status.name}"
        self.free_request(request)

    def handle_invalid(self, invalid):
        failed = []
        for request in self.waiting:
            if request.status != Status.WAITING_FOR_REMOTE_KVS:
                continue
            bad = [index for index, block in enumerate(request.blocks) if block in invalid]
            if not bad:
                continue
            request.num_computed_tokens = bad[0] * self.block_size
            request.load_failed = True
            if self.policy == "fail":
                failed.append(request)
        return failed

    # ---- for specs ----
    def wrong_slots(self, request):
        """Places of the prompt whose KV is not the right one: (rank, layer, position, head)."""
        return [(rank, layer, position, head) for rank, memory in enumerate(self.memories) for layer in range(memory.layers)
                for position in range(request.num_prompt_tokens)
                for head in memory.wrong_heads(layer, request.blocks[position // self.block_size], position % self.block_size,
                                               request.prompt, position)]

    def leaks(self, blocks):
        """What is not as it was: requests, rooms, blocks."""
        found = [f"requests {sorted(self.requests)}"] if self.requests else []
        kept = len(set(self.cached.values()))
        if len(self.free) + kept != blocks - 1:
            found.append(f"{len(self.free)} blocks free of {blocks - 1}")
        written = [block for block in self.free if not all(memory.is_poisoned(block) for memory in self.memories)]
        if written:
            found.append(f"free blocks {written} were written")
        rooms = sum(worker.worker.agent.stats().rooms_open for worker in self.workers)
        return found + ([f"{rooms} rooms open"] if rooms else [])


def run(engines, until, seconds=20):
    """Steps them in turn until it is true; False when that takes too long."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            return False
        for engine in engines:
            if engine.has_work():
                engine.step()
    return True

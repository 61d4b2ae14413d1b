"""BatonConnector: vLLM's KVConnectorBase_V1 over libbaton_kv. Two objects, one in the scheduler's process, one in each worker's.

A request carries {"do_remote_decode": true, "baton_room": R} (prefill) or {"do_remote_prefill": true, "baton_room": R} (decode)
in kv_transfer_params; the gateway that made R tells the agents who is on the other side. Written against vLLM 0.32.
"""
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.logger import init_logger

from .model import read_model
from .plan import Plan
from .scheduler import SchedulerSide
from .settings import read_settings
from .stats import BatonPromMetrics, BatonStats
from .worker import WorkerSide

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # older than 0.32
    CacheHitSource = None

logger = init_logger("vllm.baton_connector")  # below vllm's own, so that it is printed


class BatonMetadata(KVConnectorMetadata):
    def __init__(self, plan):
        self.plan = plan


class BatonConnector(KVConnectorBase_V1):
    if CacheHitSource is not None:
        _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = read_settings(transfer.kv_connector_extra_config)
        model = read_model(vllm_config, kv_cache_config)
        self.scheduler = self.worker = None
        self.is_idle_step = True
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(settings, model.block_size, logger)
        else:
            self.num_blocks = kv_cache_config.num_blocks
            self.worker = WorkerSide(settings, f"{transfer.engine_id}/{model.rank}", model, logger)

    # ---- worker, in the order of a step ----
    def register_kv_caches(self, kv_caches):
        self.worker.register(kv_caches, self.num_blocks)

    def handle_preemptions(self, kv_connector_metadata):
        """The first thing in a step that has the metadata, before anything is overwritten."""
        plan, kv_connector_metadata.plan = kv_connector_metadata.plan, Plan()
        self.worker.take(plan)
        self.is_idle_step = True

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self.is_idle_step = False
        self.worker.layer_computed(layer_name)

    def start_load_kv(self, forward_context, **kwargs):
        if getattr(forward_context, "attn_metadata", None) is not None:
            self.is_idle_step = False

    def wait_for_save(self):
        self.worker.step_computed()

    def get_finished(self, finished_req_ids):
        sent, received = self.worker.poll(finished_req_ids, self.is_idle_step)
        return sent or None, received or None

    def get_block_ids_with_load_errors(self):
        return self.worker.take_failed_pages()

    def get_kv_connector_stats(self):
        return self.worker.take_stats() if self.worker is not None else None

    def shutdown(self):
        if self.worker is not None:
            self.worker.close()

    # ---- scheduler ----
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        count = self.scheduler.external_tokens(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.scheduler.blocks_given(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return BatonMetadata(self.scheduler.build_plan(scheduler_output))

    def request_finished(self, request, block_ids):
        return self.scheduler.request_finished(request), None

    def update_connector_output(self, connector_output):
        self.scheduler.sent(connector_output.finished_sending)

    def has_pending_push_work(self):
        """The engine must go on stepping until the rooms of finished requests are over."""
        return bool(self.scheduler.held)

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return BatonStats(data)

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return BatonPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return bool(extra_config.get("layerwise"))


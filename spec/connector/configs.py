"""What vLLM tells a connector at its start, as far as one asks: configurations, and the specs of KV caches under their real names."""
from types import SimpleNamespace


class KVCacheSpec:
    def __init__(self, block_size=4, head_size=32, **more):
        self.block_size, self.head_size, self.tokens_per_state = block_size, head_size, 1
        self.__dict__.update(more)


class FullAttentionSpec(KVCacheSpec):
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SinkFullAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(KVCacheSpec):
    pass


class MambaSpec(KVCacheSpec):
    pass


class UniformTypeKVCacheSpecs(KVCacheSpec):
    pass


def group(spec, layers=2):
    return SimpleNamespace(kv_cache_spec=spec, layer_names=[f"model.layers.{layer}.attn" for layer in range(layers)])


def cache_config(blocks=64, groups=None):
    return SimpleNamespace(num_blocks=blocks, kv_cache_groups=groups if groups is not None else [group(FullAttentionSpec())])


def vllm_config(extra=None, engine_id="e", rank=0, ranks=1, heads=1, is_mla=False, device="cpu", cache_dtype="auto", block_size=4,
                **parallel):
    sizes = {"data_parallel_size": 1, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1,
             "prefill_context_parallel_size": 1, **parallel}
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra or {}, engine_id=engine_id),
        cache_config=SimpleNamespace(block_size=block_size, cache_dtype=cache_dtype),
        model_config=SimpleNamespace(use_mla=is_mla, get_total_num_kv_heads=lambda: heads, dtype="float32"),
        device_config=SimpleNamespace(device_type=device),
        parallel_config=SimpleNamespace(rank=rank, world_size=ranks, **sizes))

"""What a connector has to know of the model and of how it is spread, and what it cannot do with it.

Whatever would move KV wrongly is refused here, when the engine starts, by name, with the figures and the way out. What only the
two sides together can tell goes with each agent as its format (pages.py): unlike ones refuse each other.
"""
import logging
import platform
from dataclasses import dataclass

MOVED = ("FullAttentionSpec", "MLAAttentionSpec")  # their blocks are the request's own from its first token to its end


@dataclass
class Model:
    rank: int = 0  # of `ranks` workers: tensor-parallel, and pipeline stages
    ranks: int = 1
    stages: int = 1  # pipeline-parallel
    heads: int = 0  # KV heads that a layer has over all ranks; MLA: 1, the latent that all of them hold; 0: not known
    block_size: int = 0
    quantization: str = "none"  # of the KV cache
    isa: str = "none"  # the CPU kernels pack keys by it


def read_model(vllm_config, kv_cache_config):
    check_parallel(vllm_config.parallel_config)
    check_memory(vllm_config)
    check_groups(kv_cache_config.kv_cache_groups)
    parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
    spec = layer_specs(kv_cache_config.kv_cache_groups[0].kv_cache_spec)[0]
    return Model(parallel.rank, parallel.world_size, parallel.pipeline_parallel_size,
                 1 if model.use_mla else model.get_total_num_kv_heads(), spec.block_size, quantization(cache.cache_dtype),
                 instruction_set(model.dtype, spec, cache.cache_dtype))


def refuse(what, remedy):
    raise ValueError(f"BatonConnector: {what}; {remedy}")


def check_parallel(parallel):
    if parallel.data_parallel_size > 1:
        refuse(f"data parallelism of {parallel.data_parallel_size} inside one server is not supported",
               "start a server a rank, each with its own \"worker\"")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size > 1:
            refuse(f"{name} is {size}: a block then holds other tokens on each rank, and its pages are not another engine's",
                   f"set {name} to 1")


def check_memory(vllm_config):
    device = vllm_config.device_config.device_type
    if device != "cpu":
        refuse(f"the KV cache is in {device} memory, and only host memory is moved (vLLM's CPU backend)",
               "use NixlConnector on this device; the gateway serves it too")


def check_groups(groups):
    """One group, whose blocks stay a request's own: what is sent is read after the step that computed it."""
    kinds = [f"{len(group.layer_names)} layers of {type(group.kv_cache_spec).__name__}" for group in groups]
    if len(groups) != 1:
        refuse(f"the model has {len(groups)} KV cache groups ({', '.join(kinds)}), and exactly one is moved",
               "start with --disable-hybrid-kv-cache-manager (attention layers only; state-space layers are not moved)")
    for group in groups:
        for spec in layer_specs(group.kv_cache_spec):
            check_spec(spec)


def layer_specs(spec):
    """Layers of one kind and unlike sizes share a group (UniformTypeKVCacheSpecs)."""
    return list(spec.kv_cache_specs.values()) if hasattr(spec, "kv_cache_specs") else [spec]


def check_spec(spec):
    kind = type(spec).__name__
    if kind not in MOVED:
        refuse(f"the model's KV cache is of {kind}, and {' and '.join(MOVED)} are moved",
               "use another connector for this model (of sliding windows only: --disable-sliding-window, which caps the context at "
               "the window): such blocks are dropped or written again before they have been sent")
    if getattr(spec, "tokens_per_state", 1) != 1:
        refuse(f"the KV cache keeps one state for {spec.tokens_per_state} tokens, and one a token is moved",
               "use another connector for this model")


def quantization(cache_dtype):
    """fp8 is a name for fp8_e4m3; what is not quantized is told by the tensors."""
    return {"auto": "none", "float16": "none", "bfloat16": "none", "fp8": "fp8_e4m3"}.get(cache_dtype, cache_dtype)


def instruction_set(dtype, spec, cache_dtype):
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
        return _get_attn_isa(dtype, spec.block_size, spec.head_size, cache_dtype)
    except (ImportError, AttributeError, TypeError) as error:
        logging.getLogger("vllm.baton_connector").warning(
            "BatonConnector: this vLLM does not say how its CPU kernels pack keys (%s): both sides need hosts of one kind", error)
        return platform.machine()

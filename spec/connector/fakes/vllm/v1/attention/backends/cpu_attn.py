def _get_attn_isa(dtype, block_size, head_size=None, kv_cache_dtype=None):
    return "vec" if block_size % 32 == 0 else "vec16"

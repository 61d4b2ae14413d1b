"""Plugin for SGLang: prefill's Mooncake sender takes page numbers the plain way.

The other way stages them in pinned memory and records a CUDA event, which a machine without a GPU does not have.
"""


def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.init_disaggregation", without_pinned_memory,
                          HookType.AROUND)


def without_pinned_memory(original, *args, **kwargs):
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender
    MooncakeKVSender.supports_host_tensor_indices = False
    return original(*args, **kwargs)

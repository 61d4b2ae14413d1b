"""What the connector refuses when the engine starts, and how it says it: what, the figure, and the way out."""
import unittest
from types import SimpleNamespace
from unittest import mock

import paths  # noqa: F401
from configs import (FullAttentionSpec, MambaSpec, MLAAttentionSpec, SinkFullAttentionSpec, SlidingWindowSpec,
                     UniformTypeKVCacheSpecs, cache_config, group, vllm_config)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm_connector.connector import BatonConnector
from vllm_connector.model import Model, read_model


class Refused(unittest.TestCase):
    def refused(self, config, cache, *reasons):
        """By both of the connector's objects: whichever vLLM makes first ends the start."""
        for role in KVConnectorRole:
            with self.assertRaises(ValueError) as caught:
                BatonConnector(config, role, cache)
            for reason in ("BatonConnector: ", *reasons):
                self.assertIn(reason, str(caught.exception))

    def test_memory_that_is_no_host_memory(self):
        for device in ("cuda", "xpu", "npu"):
            self.refused(vllm_config(device=device), cache_config(), f"in {device} memory, and only host memory is moved",
                         "use NixlConnector")

    def test_several_groups(self):
        groups = [group(FullAttentionSpec(), 6), group(SlidingWindowSpec(), 30)]
        self.refused(vllm_config(), cache_config(groups=groups), "2 KV cache groups", "6 layers of FullAttentionSpec",
                     "30 layers of SlidingWindowSpec", "--disable-hybrid-kv-cache-manager")

    def test_no_group(self):
        self.refused(vllm_config(), cache_config(groups=[]), "0 KV cache groups")

    def test_blocks_that_do_not_stay(self):
        """A sliding window's blocks are given away while prefill goes on: what is sent then would be another request's."""
        for spec in (SlidingWindowSpec(), MambaSpec(), SinkFullAttentionSpec()):
            kind = type(spec).__name__
            self.refused(vllm_config(), cache_config(groups=[group(spec)]), f"of {kind}, and FullAttentionSpec and MLAAttentionSpec",
                         "use another connector")
            mixed = UniformTypeKVCacheSpecs(kv_cache_specs={"a": FullAttentionSpec(), "b": spec})
            self.refused(vllm_config(), cache_config(groups=[group(mixed)]), f"of {kind}")

    def test_states_of_several_tokens(self):
        self.refused(vllm_config(), cache_config(groups=[group(MLAAttentionSpec(tokens_per_state=4))]), "one state for 4 tokens")

    def test_ranks_that_share_out_tokens(self):
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            self.refused(vllm_config(**{name: 2}), cache_config(), f"{name} is 2", f"set {name} to 1")

    def test_data_parallelism_in_one_server(self):
        self.refused(vllm_config(data_parallel_size=4), cache_config(), "data parallelism of 4", "start a server a rank")


class Read(unittest.TestCase):
    def test_what_is_asked_of_vllm(self):
        spec = FullAttentionSpec(32, 64)
        model = read_model(vllm_config(rank=1, ranks=2, heads=8, block_size=16), cache_config(groups=[group(spec)]))
        self.assertEqual(model, Model(1, 2, 1, 8, 32, "none", "vec"), "the block size is the group's own")

    def test_a_latent_is_one_head(self):
        cache = cache_config(groups=[group(MLAAttentionSpec(32, 576))])
        self.assertEqual(read_model(vllm_config(heads=128, is_mla=True), cache).heads, 1)

    def test_layers_of_one_kind_and_unlike_sizes(self):
        specs = UniformTypeKVCacheSpecs(kv_cache_specs={"a": FullAttentionSpec(32, 64), "b": FullAttentionSpec(32, 128)})
        self.assertEqual(read_model(vllm_config(heads=4), cache_config(groups=[group(specs)])).block_size, 32)

    def test_names_of_one_quantization(self):
        kinds = {"auto": "none", "bfloat16": "none", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
        for given, told in kinds.items():
            self.assertEqual(read_model(vllm_config(cache_dtype=given), cache_config()).quantization, told)

    def test_a_vllm_that_does_not_say_how_keys_are_packed(self):
        with mock.patch.dict("sys.modules", {"vllm.v1.attention.backends.cpu_attn": SimpleNamespace()}):
            with self.assertLogs("vllm.baton_connector", "WARNING") as log:
                model = read_model(vllm_config(), cache_config())
        self.assertNotIn(model.isa, ("none", "vec", ""))
        self.assertIn("both sides need hosts of one kind", log.output[0])


if __name__ == "__main__":
    unittest.main()

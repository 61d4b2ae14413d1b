"""Where blocks lie, for the shapes that vLLM's backends have."""
import unittest

import paths  # noqa: F401
from memory import Storage, Tensor
from vllm_connector.model import Model
from vllm_connector.pages import Place, add_layout, cut, kv_format, places, places_by_layer


def tensor(shape, stride=None, offset=0, address=4096, item=4, device="cpu"):
    if stride is None:
        stride = [1] * len(shape)
        for index in range(len(shape) - 2, -1, -1):
            stride[index] = stride[index + 1] * shape[index + 1]
    return Tensor(Storage(address, 1 << 20), offset, tuple(shape), tuple(stride), item, device)


class Places(unittest.TestCase):
    def test_blocks_first(self):
        """The CPU backend's (blocks, heads, slots, 2 * size)."""
        self.assertEqual(places("a", tensor((16, 2, 32, 64), offset=64), 16), [Place(4160, 16384, 16384)])

    def test_order_inside_a_block_does_not_matter(self):
        permuted = tensor((16, 2, 32, 64), (4096, 64, 128, 1))
        self.assertEqual(places("a", permuted, 16), [Place(4096, 16384, 16384)])

    def test_blocks_of_all_layers_side_by_side(self):
        packed = tensor((16, 2, 32, 64), (8192, 2048, 64, 1), offset=16384)
        self.assertEqual(places("a", packed, 16), [Place(20480, 32768, 16384)])

    def test_keys_and_values_apart(self):
        self.assertEqual(places("a", tensor((2, 16, 32, 2, 8)), 16),
                         [Place(4096, 2048, 2048), Place(4096 + 16 * 2048, 2048, 2048)])

    def test_two_blocks_are_no_keys_and_values(self):
        self.assertEqual(places("a", tensor((2, 2, 4)), 2), [Place(4096, 32, 32)])

    def test_several_kernel_blocks_a_block(self):
        self.assertEqual(places("a", tensor((64, 2, 8, 64)), 16), [Place(4096, 16384, 16384)])

    def test_what_cannot_be_moved_is_refused(self):
        for wrong, why in ((tensor((16, 8), device="cuda"), "in cuda memory, and only host memory is moved; use NixlConnector"), ([tensor((16, 8))], "several tensors"),
                           (tensor((15, 8)), "no dimension of 16 blocks"),
                           (tensor((16, 4, 8), (64, 16, 1)), "not in one piece"),
                           (tensor((32, 8), (16, 1)), "not in one piece")):
            with self.assertRaisesRegex(ValueError, why):
                places("model.layers.0", wrong, 16)

    def test_layers_come_in_the_same_order_everywhere(self):
        caches = {f"model.layers.{layer}.attn": tensor((16, 8)) for layer in (10, 2, 1)}
        self.assertEqual([name.split(".")[2] for name in places_by_layer(caches, 16)], ["1", "2", "10"])


class Formats(unittest.TestCase):
    def words(self, caches, num_blocks=16, **more):
        told = kv_format(caches, num_blocks, Model(block_size=32, **more))
        self.assertLessEqual(len(told), 240, "what the library takes")
        return dict(word.split("=") for word in told.split(" "))

    def test_what_both_sides_must_say_alike(self):
        words = self.words({f"l.{layer}": tensor((16, 2, 32, 64)) for layer in range(61)}, heads=8, ranks=4, isa="amx")
        self.assertEqual(words, {"memory": "host", "dtype": "float32", "block_size": "32", "kv_heads": "8", "head": "32x64",
                                 "layers": "61", "stages": "1", "kv_cache_dtype": "none", "isa": "amx"})

    def test_ranks_may_differ(self):
        one = self.words({"a": tensor((16, 8, 32, 64))}, heads=8, ranks=1, rank=0)
        other = self.words({"a": tensor((40, 2, 32, 64))}, 40, heads=8, ranks=4, rank=3)
        self.assertEqual(one, other)

    def test_heads_first_and_tokens_first_are_not_the_same(self):
        for heads in (1, 2):
            first = tensor((16, heads, 32, 64))
            tokens = tensor((16, heads, 32, 64), (heads * 2048, 64, heads * 64, 1))
            self.assertEqual(self.words({"a": first})["head"], "32x64")
            self.assertEqual(self.words({"a": tokens})["head"], "32x64xtokens-first")

    def test_layers_of_several_shapes(self):
        words = self.words({"a": tensor((16, 32, 576)), "b": tensor((16, 32, 132))}, heads=1)
        self.assertEqual(words["head"], "32x132+32x576")

    def test_layers_of_very_many_shapes(self):
        shapes = [{f"l.{layer}": tensor((16, 1, 32, 100 + layer + more)) for layer in range(60)} for more in (0, 0, 1)]
        first, same, other = (self.words(caches, heads=1)["head"] for caches in shapes)
        self.assertRegex(first, "^60-shapes-")
        self.assertEqual(first, same)
        self.assertNotEqual(first, other)

    def test_keys_and_values_apart_whatever_the_number_of_blocks(self):
        self.assertEqual(self.words({"a": tensor((2, 16, 32, 2, 8))})["head"], "2x32x2x8")
        self.assertEqual(self.words({"a": tensor((2, 48, 32, 2, 8))}, 48)["head"], "2x32x2x8")


class Cut(unittest.TestCase):
    def test_heads_first(self):
        caches = {"a": tensor((16, 2, 32, 64)), "b": tensor((16, 2, 32, 64))}
        self.assertEqual(cut(caches, 16, Model(heads=8, ranks=4)), ((8, 1), None))

    def test_a_row_a_token_where_tokens_are_first(self):
        caches = {"a": tensor((16, 2, 32, 64), (4096, 64, 128, 1))}
        self.assertEqual(cut(caches, 16, Model(heads=8, ranks=4)), ((8, 32), None))

    def test_a_row_a_kernel_block(self):
        self.assertEqual(cut({"a": tensor((64, 2, 8, 64))}, 16, Model(heads=8, ranks=4)), ((8, 4), None))

    def test_more_ranks_than_heads(self):
        self.assertEqual(cut({"a": tensor((16, 1, 32, 64))}, 16, Model(heads=2, ranks=8)), ((2, 1), None))

    def test_latents_of_several_shapes(self):
        """MLA's backends have (blocks, tokens, values); its indexer's cache likewise."""
        for latent, index in ((tensor((16, 32, 576)), tensor((16, 32, 132))), (tensor((16, 1, 32, 576)), tensor((16, 1, 32, 132))),
                              (tensor((16, 32, 576), (2 * 18432, 576, 1)), tensor((16, 32, 132), (2 * 4224, 132, 1)))):
            self.assertEqual(cut({"a": latent, "b": index}, 16, Model(heads=1, ranks=8)), ((1, 1), None))

    def test_latents_of_several_kernel_blocks_a_block(self):
        self.assertEqual(cut({"a": tensor((32, 16, 576))}, 16, Model(heads=1, ranks=8)), ((1, 2), None))

    def test_why_not(self):
        for caches, model, why in (
                ({"a": tensor((16, 2, 32, 64))}, Model(heads=8, ranks=4, stages=2), "2 pipeline stages"),
                ({"draft": tensor((16, 4, 32, 64))}, Model(heads=8, ranks=4), r"draft's .* does not have 2 heads, .* model's 8"),
                ({"a": tensor((2, 16, 32, 2, 8))}, Model(heads=8, ranks=4), "does not have 2 heads"),
                ({"a": tensor((16, 32, 576))}, Model(heads=8, ranks=4), "does not have 2 heads"),
                ({"a": tensor((16, 32, 576), (18432, 1, 32))}, Model(heads=1, ranks=4), "neither heads first nor tokens first"),
                ({"a": tensor((16, 2, 32, 64), (4096, 1, 2, 64))}, Model(heads=8, ranks=4), "neither heads first nor tokens first"),
                ({"a": tensor((16, 2, 32, 64), (4096, 2048, 1, 32))}, Model(heads=8, ranks=4), "neither heads first nor"),
                ({"a": tensor((16, 2, 32, 64)), "b": tensor((16, 2, 32, 64), (4096, 64, 128, 1))}, Model(heads=8, ranks=4),
                 "laid out in 2 ways")):
            heads, told = cut(caches, 16, model)
            self.assertIsNone(heads)
            self.assertRegex(told, why)


class FakeAgent:
    def __init__(self):
        self.regions, self.buffers = [], None

    def add_region(self, address, size):
        self.regions.append((address, size))
        return len(self.regions)

    def add_layout(self, buffers, pages):
        self.buffers = buffers
        return pages


class Layouts(unittest.TestCase):
    def test_one_region_an_allocation_one_buffer_a_cache(self):
        agent = FakeAgent()
        caches = {"l.0": tensor((16, 8), offset=64), "l.1": tensor((16, 8), offset=1024),
                  "l.2": tensor((16, 8), offset=64),  # shares the first one's cache
                  "l.3": tensor((16, 8), address=1 << 30)}
        layout, by_layer, count = add_layout(agent, caches, 16)
        self.assertEqual((layout, count), (16, 3))
        self.assertEqual(agent.regions, [(4096, 1 << 20), (1 << 30, 1 << 20)])
        self.assertEqual(agent.buffers, [(1, 64, 32, 32), (1, 1024, 32, 32), (2, 0, 32, 32)])
        self.assertEqual(by_layer, {"l.0": [0], "l.1": [1], "l.2": [0], "l.3": [2]})


if __name__ == "__main__":
    unittest.main()

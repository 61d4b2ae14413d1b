"""Where the pages of vLLM's KV tensors lie, as regions and buffers of libbaton_kv.

A block is moved whole, or by heads where the other side has another tensor-parallel size; how a head is laid out inside (K and V,
an ISA's packing) only has to be the same on both sides, which their formats say. Pointers need no alignment. Tensors that share
memory are one region; layers that share a cache are one buffer.
"""
import math
import re
import zlib
from dataclasses import dataclass

SHAPES_SHOWN = 4  # in a format, which is short


@dataclass
class Place:
    address: int  # of page 0
    stride: int  # bytes, from page to page
    size: int  # bytes of a page


def places_by_layer(kv_caches, num_blocks):
    """{layer: [Place, ...]}, layers in an order that is the same in every process: layers.2 before layers.10."""
    return {name: places(name, kv_caches[name], num_blocks) for name in sorted(kv_caches, key=natural)}


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def places(name, tensor, num_blocks):
    if isinstance(tensor, (list, tuple)):
        raise ValueError(f"BatonConnector: {name} has a state of several tensors; only attention's KV caches are moved")
    if tensor.device.type != "cpu":
        raise ValueError(f"BatonConnector: {name}'s KV cache is in {tensor.device.type} memory, and only host memory is moved; "
                         "use NixlConnector on this device")
    shape, strides, item = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    if shape[0] % num_blocks == 0:
        return [place(name, tensor.data_ptr(), shape, strides, item, num_blocks)]
    if shape[0] == 2 and len(shape) > 1 and shape[1] % num_blocks == 0:  # K and V apart
        return [place(name, tensor.data_ptr() + half * strides[0] * item, shape[1:], strides[1:], item, num_blocks)
                for half in range(2)]
    raise ValueError(f"BatonConnector: {name}'s KV cache of shape {shape} has no dimension of {num_blocks} blocks")


def place(name, address, shape, strides, item, num_blocks):
    """Blocks are the first dimension; several kernel blocks may make one of the scheduler's."""
    ratio = shape[0] // num_blocks
    size = math.prod(shape[1:]) * item
    reach = (sum((count - 1) * step for count, step in zip(shape[1:], strides[1:])) + 1) * item
    stride = strides[0] * item
    if reach != size or stride < size or (ratio > 1 and stride != size):
        raise ValueError(f"BatonConnector: the blocks of {name} (shape {shape}, strides {strides}) are not in one piece each")
    return Place(address, stride * ratio, size * ratio)


def kv_format(kv_caches, num_blocks, model):
    """What both sides must say alike, as words: whose differs is refused by that word. Without what may differ, the heads of a rank."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in kv_caches.values()}
    shapes = sorted({"x".join(map(str, shape_of_head(tensor, num_blocks))) for tensor in kv_caches.values()})
    head = "+".join(shapes) if len(shapes) <= SHAPES_SHOWN else f"{len(shapes)}-shapes-{zlib.crc32(' '.join(shapes).encode()):08x}"
    words = {"memory": "host", "dtype": "+".join(sorted(dtypes)), "block_size": model.block_size, "kv_heads": model.heads,
             "head": head, "layers": len(kv_caches), "stages": model.stages,
             "kv_cache_dtype": model.quantization, "isa": model.isa}
    return " ".join(f"{key}={value}" for key, value in words.items())


def shape_of_head(tensor, num_blocks):
    """Tokens and values: 32x64. Where heads are no dimension of their own: all of a block."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if len(shape) != 4 or shape[0] % num_blocks != 0:
        return shape[1:] if shape[0] % num_blocks == 0 else (shape[0], *shape[2:])
    return shape[2:] if is_heads_first(shape, strides) else (*shape[2:], "tokens-first")


def with_heads(tensor, heads):
    """(shape, strides) with heads as the second dimension: the one latent of MLA has none of its own, (blocks, tokens, values)."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if heads == 1 and len(shape) == 3:
        return (shape[0], 1, *shape[1:]), (strides[0], *strides)
    return shape, strides


def is_heads_first(shape, strides):
    """By the strides, which tell it of a single head too."""
    return strides[1] >= shape[2] * strides[2]


def is_row_by_row(shape, strides):
    """Head after head, or token after token, and in each the values: what cutting by heads relies on."""
    expected = 1
    for dimension in (3, 2, 1) if is_heads_first(shape, strides) else (3, 1, 2):
        if shape[dimension] > 1 and strides[dimension] != expected:
            return False
        expected *= shape[dimension]
    return True


def cut(kv_caches, num_blocks, model):
    """((heads, rows), None) where pages can be cut by heads (see bt_kv_heads_t), or (None, why not). A tensor is (blocks, heads of this
    rank, tokens, values), whatever its strides are, or with_heads makes it one."""
    if model.stages > 1:
        return None, f"its layers are on {model.stages} pipeline stages"
    own = max(1, model.heads // model.ranks)
    rows = set()
    for name, tensor in kv_caches.items():
        shape, strides = with_heads(tensor, model.heads)
        if len(shape) != 4 or shape[1] != own:
            return None, (f"{name}'s KV cache of shape {tuple(tensor.shape)} does not have {own} heads, this rank's part of the "
                          f"model's {model.heads}")
        if not is_row_by_row(shape, strides):
            return None, f"{name}'s KV cache of strides {tuple(tensor.stride())} is neither heads first nor tokens first"
        rows.add(shape[0] // num_blocks * (1 if is_heads_first(shape, strides) else shape[2]))
    if len(rows) > 1 and model.heads > 1:
        return None, f"its layers' pages are laid out in {len(rows)} ways"
    return (model.heads, max(rows)), None


def storage(tensor):
    """(address, bytes) of the allocation that the tensor is a view of."""
    whole = tensor.untyped_storage()
    return whole.data_ptr(), whole.nbytes()


def add_layout(agent, kv_caches, num_blocks):
    """(layout, {layer: its buffers' numbers}, how many buffers) at the agent."""
    regions = {}
    for tensor in kv_caches.values():
        address, size = storage(tensor[0] if isinstance(tensor, (list, tuple)) else tensor)
        if address not in regions:
            regions[address] = (agent.add_region(address, size), size)
    buffers, numbers, by_layer = [], {}, {}
    for name, found in places_by_layer(kv_caches, num_blocks).items():
        for one in found:
            if one.address not in numbers:
                numbers[one.address] = len(buffers)
                buffers.append(buffer_of(one, regions))
            by_layer.setdefault(name, []).append(numbers[one.address])
    return agent.add_layout(buffers, num_blocks), by_layer, len(buffers)


def buffer_of(one, regions):
    for begin, (region, size) in regions.items():
        if begin <= one.address < begin + size:
            return region, one.address - begin, one.stride, one.size
    raise ValueError("BatonConnector: a KV cache lies outside its own storage")

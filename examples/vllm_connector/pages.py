"""Where the pages of vLLM's KV tensors lie, as regions and buffers of libbaton_kv.

A block is moved whole, so how it is laid out inside (heads, K and V, an ISA's packing) only has to be the same on both sides.
Pointers need no alignment. Tensors that share memory are one region; layers that share a cache are one buffer.
"""
import math
import re
from dataclasses import dataclass


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
        raise ValueError(f"BatonConnector: {name}'s KV cache is on {tensor.device.type}; only KV in host memory is moved")
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

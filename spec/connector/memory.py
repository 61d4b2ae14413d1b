"""KV memory of a fake engine: tensors as vLLM's CPU worker has them, with nothing of torch but what a connector asks."""
import ctypes
import hashlib
import mmap

POISON = 0xEE
SKEW = 64  # the first byte of the cache lies on no page's beginning, as torch's does


class Device:
    def __init__(self, kind):
        self.type = kind


class Storage:
    def __init__(self, address, size):
        self.address, self.size = address, size

    def data_ptr(self):
        return self.address

    def nbytes(self):
        return self.size


class Tensor:
    def __init__(self, storage, offset, shape, stride, item=4, device="cpu"):
        self.storage, self.offset, self.shape, self.strides, self.item = storage, offset, shape, stride, item
        self.device = Device(device)

    def data_ptr(self):
        return self.storage.address + self.offset

    def stride(self):
        return self.strides

    def element_size(self):
        return self.item

    def untyped_storage(self):
        return self.storage


class Memory:
    """`layers` caches of `blocks` blocks of `tokens` slots in one allocation, block after block (see vllm-on-cpu: layer_stride)."""

    def __init__(self, blocks, layers, tokens, slot_bytes):
        self.blocks, self.layers, self.tokens, self.slot_bytes = blocks, layers, tokens, slot_bytes
        self.page = tokens * slot_bytes
        size = blocks * layers * self.page
        self.map = mmap.mmap(-1, size + SKEW)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + SKEW
        self.storage = Storage(self.address, size)
        for block in range(blocks):
            self.poison(block)

    def caches(self):
        shape = (self.blocks, 1, self.tokens, self.slot_bytes // 4)
        strides = (self.page // 4, self.page // 4, self.slot_bytes // 4, 1)
        return {f"model.layers.{layer}.attn": Tensor(self.storage, layer * self.blocks * self.page, shape, strides)
                for layer in range(self.layers)}

    def place(self, layer, block):
        return SKEW + (layer * self.blocks + block) * self.page

    def poison(self, block):
        for layer in range(self.layers):
            at = self.place(layer, block)
            self.map[at:at + self.page] = bytes([POISON]) * self.page

    def is_poisoned(self, block):
        return all(self.map[self.place(layer, block):self.place(layer, block) + self.page] == bytes([POISON]) * self.page
                   for layer in range(self.layers))

    def write(self, layer, block, slot, value):
        at = self.place(layer, block) + slot * self.slot_bytes
        self.map[at:at + self.slot_bytes] = value

    def read(self, layer, block, slot):
        at = self.place(layer, block) + slot * self.slot_bytes
        return self.map[at:at + self.slot_bytes]

    def close(self):
        try:
            self.map.close()
        except BufferError:  # address() still counts as a use
            pass


def kv_of(tokens, position, layer, size):
    """What a layer has for a token: it depends on all tokens before it."""
    seed = hashlib.sha256(f"{layer}:{tokens[:position + 1]}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]

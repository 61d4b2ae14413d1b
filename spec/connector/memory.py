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
    def __init__(self, storage, offset, shape, stride, item=4, device="cpu", dtype="torch.float32"):
        self.storage, self.offset, self.shape, self.strides, self.item = storage, offset, shape, stride, item
        self.dtype = dtype
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
    """`layers` caches of `blocks` blocks of `tokens` slots in one allocation, block after block, as vLLM's LBHNC: a block is its
    heads, a head its slots. heads: the numbers, in the model, of those that this rank has. is_mla: a latent has no dimension of heads."""

    def __init__(self, blocks, layers, tokens, slot_bytes, heads=(0,), dtype="torch.float32", is_mla=False):
        self.is_mla = is_mla
        self.blocks, self.layers, self.tokens, self.slot_bytes = blocks, layers, tokens, slot_bytes
        self.heads, self.dtype = tuple(heads), dtype
        self.page = len(self.heads) * tokens * slot_bytes
        size = blocks * layers * self.page
        self.map = mmap.mmap(-1, size + SKEW)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + SKEW
        self.storage = Storage(self.address, size)
        for block in range(blocks):
            self.poison(block)

    def caches(self):
        shape = (self.blocks, len(self.heads), self.tokens, self.slot_bytes // 4)
        strides = (self.page // 4, self.tokens * self.slot_bytes // 4, self.slot_bytes // 4, 1)
        if self.is_mla:
            shape, strides = shape[:1] + shape[2:], strides[:1] + strides[2:]
        return {f"model.layers.{layer}.attn": Tensor(self.storage, layer * self.blocks * self.page, shape, strides,
                                                     dtype=self.dtype)
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

    def slot(self, layer, block, index, slot):
        """Of the rank's head number `index`."""
        at = self.place(layer, block) + (index * self.tokens + slot) * self.slot_bytes
        return slice(at, at + self.slot_bytes)

    def write(self, layer, block, slot, prompt, position):
        """What every head of this rank has for the token."""
        for index, head in enumerate(self.heads):
            self.map[self.slot(layer, block, index, slot)] = kv_of(prompt, position, layer, head, self.slot_bytes)

    def wrong_heads(self, layer, block, slot, prompt, position):
        return [head for index, head in enumerate(self.heads)
                if self.map[self.slot(layer, block, index, slot)] != kv_of(prompt, position, layer, head, self.slot_bytes)]

    def close(self):
        try:
            self.map.close()
        except BufferError:  # address() still counts as a use
            pass


def heads_of(total, rank, ranks):
    """As vLLM shares them out: a range each, or, with more ranks than heads, several ranks in a row with the same one."""
    count = max(1, total // ranks)
    first = rank // (ranks // total) if ranks > total else rank * count
    return range(first, first + count)


def kv_of(tokens, position, layer, head, size):
    """What a layer's head has for a token: it depends on all tokens before it."""
    seed = hashlib.sha256(f"{layer}:{head}:{tokens[:position + 1]}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]

"""libbaton_kv from Python: transport/baton_kv.h by ctypes, and nothing more. The header is the manual.

A call lets go of the interpreter's lock while it runs; none of them waits. Rooms, regions and layouts are plain numbers. Bad
return codes become KvError (`.code`), "try again" becomes KvAgain. spec/connector/binding_test.py compares every struct with
the header's.
"""
import ctypes
import ctypes.util
import os
import select
from ctypes import (POINTER, Structure, byref, c_bool, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p)

FAILED, BOOTSTRAPPING, WAITING_FOR_INPUT, TRANSFERRING, SUCCESS = range(5)
BACKENDS = {"fake": 1, "mem": 2, "shm": 4, "tcp": 8, "verbs": 16}
PIECES_MAX = 8
RECEIVERS_OF_GATEWAY = 0xFFFFFFFF
AGAIN = -20004
TEXT_BYTES = 512


class KvError(Exception):
    """What the library refused: `code` is its number, the text says what was asked and why not."""

    def __init__(self, what, code, text):
        super().__init__(f"{what}: {text}")
        self.code = code


class KvAgain(KvError):
    """Nothing was taken; the same call may do later."""


class Config(Structure):
    _fields_ = [("name", c_char_p), ("host", c_char_p), ("port", c_uint16), ("progress", c_int), ("backends", c_uint32),
                ("token", c_char_p), ("heartbeat_ms", c_uint32), ("dead_ms", c_uint32), ("bootstrap_ms", c_uint32),
                ("stall_ms", c_uint32), ("release_ms", c_uint32), ("max_rooms", c_uint32), ("lane_depth", c_uint32),
                ("tcp_streams", c_uint32), ("spin_us", c_uint32), ("crc", c_bool), ("allow_remote", c_bool), ("rdma_devices", c_char_p),
                ("gid_index", c_int), ("kv_format", c_char_p)]


class Buffer(Structure):
    _fields_ = [("region", c_uint32), ("offset", c_uint64), ("stride", c_uint64), ("bytes", c_uint64)]


class Slice(Structure):
    _fields_ = [(name, c_uint32) for name in ("rows", "src_row", "dst_row", "src_offset", "dst_offset", "bytes")]


class Source(Structure):
    _fields_ = [("host", c_char_p), ("port", c_uint16), ("dummy", c_bool), ("slice", Slice)]


class Piece(Structure):
    _fields_ = [("region", c_uint32), ("offset", c_uint64), ("bytes", c_uint64)]


class Recv(Structure):
    _fields_ = [("room", c_uint64), ("layout", c_uint32), ("pages", POINTER(c_uint32)), ("page_count", c_uint32),
                ("prefix_pages", c_uint32), ("sources", POINTER(Source)), ("source_count", c_uint32),
                ("pieces", Piece * PIECES_MAX), ("piece_count", c_uint32)]


class SendSpec(Structure):
    _fields_ = [("room", c_uint64), ("layout", c_uint32), ("receivers", c_uint32), ("dummy", c_bool)]


class Chunk(Structure):
    _fields_ = [("first", c_uint32), ("pages", POINTER(c_uint32)), ("page_count", c_uint32), ("buffer_first", c_uint32),
                ("buffer_count", c_uint32), ("last", c_bool), ("pieces", Piece * PIECES_MAX), ("piece_count", c_uint32)]


class Heads(Structure):
    _fields_ = [("total", c_uint32), ("rows", c_uint32)]


class Gateway(Structure):
    _fields_ = [("host", c_char_p), ("port", c_uint16), ("worker", c_char_p), ("rank", c_uint32), ("ranks", c_uint32),
                ("token", c_char_p), ("heads", Heads)]


class RoomStats(Structure):
    _fields_ = [("bytes", c_uint64), ("pages", c_uint64), ("descriptors", c_uint64), ("bootstrap_us", c_uint64),
                ("wait_us", c_uint64), ("transfer_us", c_uint64), ("backend", c_uint32)]


class CopyWay(Structure):
    _fields_ = [("store_bytes", c_uint32), ("lanes", c_uint32), ("ahead_bytes", c_uint32)]


class AgentStats(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "rooms_open", "rooms_success", "rooms_failed", "bytes_sent", "bytes_received", "chunks", "pages", "descriptors",
        "links", "links_lost", "heartbeats_missed", "crc_errors", "refused_frames")] + [
        ("links_by_backend", c_uint64 * 5), ("copy_small", CopyWay), ("copy_pages", CopyWay), ("copy_runs", CopyWay),
        ("copy_bytes_per_s", c_uint64), ("memcpy_bytes_per_s", c_uint64), ("copy_measured_us", c_uint64)]


# The header's names, for the spec that compares them.
STRUCTS = {"bt_kv_config_t": Config, "bt_kv_buffer_t": Buffer, "bt_kv_slice_t": Slice, "bt_kv_source_t": Source,
           "bt_kv_piece_t": Piece, "bt_kv_recv_t": Recv, "bt_kv_send_spec_t": SendSpec, "bt_kv_chunk_t": Chunk,
           "bt_kv_heads_t": Heads, "bt_kv_gateway_t": Gateway, "bt_kv_room_stats_t": RoomStats, "bt_kv_agent_stats_t": AgentStats,
           "bt_kv_copy_way_t": CopyWay}

FUNCTIONS = {
    "bt_kv_agent_open": (c_int, POINTER(c_void_p), POINTER(Config), c_char_p, c_size_t),
    "bt_kv_agent_close": (None, c_void_p),
    "bt_kv_agent_port": (c_uint16, c_void_p),
    "bt_kv_agent_fd": (c_int, c_void_p),
    "bt_kv_error_text": (c_char_p, c_int),
    "bt_kv_region_add": (c_int, c_void_p, c_void_p, c_size_t, POINTER(c_uint32)),
    "bt_kv_layout_add": (c_int, c_void_p, POINTER(Buffer), c_uint32, c_uint32, POINTER(c_uint32)),
    "bt_kv_recv_open": (c_int, c_void_p, POINTER(Recv), POINTER(c_uint64)),
    "bt_kv_send_open": (c_int, c_void_p, POINTER(SendSpec), POINTER(c_uint64)),
    "bt_kv_send": (c_int, c_void_p, c_uint64, POINTER(Chunk)),
    "bt_kv_poll_many": (None, c_void_p, POINTER(c_uint64), c_uint32, POINTER(c_uint8)),
    "bt_kv_abort": (c_int, c_void_p, c_uint64, c_char_p),
    "bt_kv_room_error": (c_int, c_void_p, c_uint64, c_char_p, c_size_t),
    "bt_kv_room_release": (c_int, c_void_p, c_uint64),
    "bt_kv_gateway_add": (c_int, c_void_p, POINTER(Gateway), POINTER(c_uint32)),
    "bt_kv_gateway_state": (c_int, c_void_p, c_uint32, c_char_p, c_size_t),
    "bt_kv_room_stats": (c_int, c_void_p, c_uint64, POINTER(RoomStats)),
    "bt_kv_agent_stats": (None, c_void_p, POINTER(AgentStats)),
    "bt_kv_agent_describe": (c_int, c_void_p, c_char_p, c_size_t),
}


def find_library(path=None):
    """The first of: what is asked for, BATON_KV_LIBRARY, this checkout's build, the system's."""
    named = path or os.environ.get("BATON_KV_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise FileNotFoundError(f"libbaton_kv is not at {named}: correct BATON_KV_LIBRARY or the connector's \"library\"")
        return named
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    built = os.path.join(root, "build", "release", "libbaton_kv.so")
    if os.path.exists(built):
        return built
    installed = ctypes.util.find_library("baton_kv")
    if installed:
        return installed
    raise FileNotFoundError(f"libbaton_kv.so is neither at {built} nor known to ldconfig: run `make build`, or name it with "
                            "BATON_KV_LIBRARY or the connector's \"library\"")


def load_library(path=None):
    found = find_library(path)
    library = ctypes.CDLL(found)
    for name, (result, *arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{found} has no {name}: it is older than this binding; build both from one checkout") from None
        function.restype, function.argtypes = result, arguments
    return library


def numbers(values):
    return (c_uint32 * len(values))(*values)


def text_of(value):
    return None if value is None else str(value).encode()


class Agent:
    """One agent of this process. `backends` is a list of names; other settings as in bt_kv_config_t, left out = its default."""

    def __init__(self, name, library=None, backends=(), **settings):
        self.lib = load_library(library)
        self.handle = c_void_p()
        config = Config(name=text_of(name), backends=sum(BACKENDS[one] for one in set(backends)))
        for key, value in settings.items():
            setattr(config, key, text_of(value) if isinstance(value, str) else value)
        why = ctypes.create_string_buffer(TEXT_BYTES)
        rc = self.lib.bt_kv_agent_open(byref(self.handle), byref(config), why, TEXT_BYTES)
        if rc != 0:
            raise KvError("libbaton_kv", rc, why.value.decode() or self.error_text(rc))
        self.port = self.lib.bt_kv_agent_port(self.handle)
        self.fd = self.lib.bt_kv_agent_fd(self.handle)
        self.poller = select.poll()
        self.poller.register(self.fd, select.POLLIN)

    def close(self):
        """Fails all rooms; the memory of all regions is nobody's but the engine's afterwards."""
        handle, self.handle = self.handle, c_void_p()
        if handle:
            self.lib.bt_kv_agent_close(handle)

    def error_text(self, rc):
        return self.lib.bt_kv_error_text(rc).decode()

    def check(self, what, rc):
        if rc == AGAIN:
            raise KvAgain(what, rc, self.error_text(rc))
        if rc < 0:
            raise KvError(what, rc, self.error_text(rc))
        return rc

    # ---- memory ----
    def add_region(self, address, size):
        region = c_uint32()
        self.check(f"region of {size} bytes", self.lib.bt_kv_region_add(self.handle, address, size, byref(region)))
        return region.value

    def add_layout(self, buffers, pages):
        """buffers: (region, offset, stride, bytes) each."""
        layout, table = c_uint32(), (Buffer * len(buffers))(*buffers)
        self.check(f"layout of {len(buffers)} buffers, {pages} pages",
                   self.lib.bt_kv_layout_add(self.handle, table, len(buffers), pages, byref(layout)))
        return layout.value

    # ---- rooms ----
    def open_receiver(self, room, layout, pages, prefix_pages=0, sources=()):
        """sources: (host, port) each; none = a gateway says who sends."""
        handle = c_uint64()
        table = (Source * len(sources))(*[Source(host=text_of(host), port=port) for host, port in sources])
        recv = Recv(room=room, layout=layout, pages=numbers(pages), page_count=len(pages), prefix_pages=prefix_pages,
                    sources=table if sources else None, source_count=len(sources))
        self.check(f"receiver of room {room}", self.lib.bt_kv_recv_open(self.handle, byref(recv), byref(handle)))
        return handle.value

    def open_sender(self, room, layout, receivers=1):
        handle, spec = c_uint64(), SendSpec(room=room, layout=layout, receivers=receivers)
        self.check(f"sender of room {room}", self.lib.bt_kv_send_open(self.handle, byref(spec), byref(handle)))
        return handle.value

    def send(self, handle, first, pages, last=False, buffer_first=0, buffer_count=0):
        chunk = Chunk(first=first, pages=numbers(pages), page_count=len(pages), buffer_first=buffer_first,
                      buffer_count=buffer_count, last=last)
        self.check("chunk", self.lib.bt_kv_send(self.handle, handle, byref(chunk)))

    def states(self, handles):
        """The state of each room, in one call."""
        count = len(handles)
        states = (c_uint8 * count)()
        self.lib.bt_kv_poll_many(self.handle, (c_uint64 * count)(*handles), count, states)
        return list(states)

    def abort(self, handle, reason):
        self.lib.bt_kv_abort(self.handle, handle, text_of(reason))

    def reason(self, handle):
        """Why a room has failed, in a sentence."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self.lib.bt_kv_room_error(self.handle, handle, text, TEXT_BYTES)
        return text.value.decode(errors="replace")

    def release(self, handle):
        """True: nobody touches its pages any more, and the handle is gone."""
        return self.lib.bt_kv_room_release(self.handle, handle) == 1

    def wait(self, timeout_ms):
        """Until a room has ended or may be sent to, at most timeout_ms."""
        if self.poller.poll(timeout_ms):
            try:
                os.read(self.fd, 8)
            except BlockingIOError:
                pass

    # ---- gateways ----
    def add_gateway(self, host, port, worker, rank=0, ranks=1, token=None, heads=(0, 0)):
        """heads: (of the model, rows of a page), for workers with another number of ranks; (0, 0) = none."""
        gateway = Gateway(host=text_of(host), port=port, worker=text_of(worker), rank=rank, ranks=ranks, token=text_of(token),
                          heads=Heads(*heads))
        number = c_uint32()
        self.check(f"gateway {host}:{port}", self.lib.bt_kv_gateway_add(self.handle, byref(gateway), byref(number)))
        return number.value

    def gateway_state(self, number):
        """(registered, why not)"""
        why = ctypes.create_string_buffer(TEXT_BYTES)
        rc = self.check("gateway", self.lib.bt_kv_gateway_state(self.handle, number, why, TEXT_BYTES))
        return rc == 1, why.value.decode(errors="replace")

    # ---- figures ----
    def room_stats(self, handle):
        stats = RoomStats()
        self.check("room", self.lib.bt_kv_room_stats(self.handle, handle, byref(stats)))
        return stats

    def stats(self):
        stats = AgentStats()
        self.lib.bt_kv_agent_stats(self.handle, byref(stats))
        return stats

    def describe(self):
        text = ctypes.create_string_buffer(65536)
        self.lib.bt_kv_agent_describe(self.handle, text, len(text))
        return text.value.decode(errors="replace")

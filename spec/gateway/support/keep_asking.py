"""Clients that ask until they are told to stop, and take no failure.

    keep_asking.py PORT STOP_FILE [tls=CA_FILE] [key=API_KEY] [plain=2] [streams=2] [http2=2] [text=TEXT] [tokens=20]

plain clients ask for a short answer over HTTP/1.1, over and over; streams for one of server-sent events, whose text and end are compared; http2 clients
for both, six at once on a connection. A connection is given up only where the gateway says so: by an answer, or by GOAWAY. Only what it then says it
has not begun (RFC 9113 6.8) may be asked again. Ends once STOP_FILE is there, each client after its answers. Prints "right N connections N", and a line
for each failure; on stderr a dot for each answer as it comes, "2" where it came by HTTP/2.
"""
import http.client
import json
import os
import socket
import ssl
import struct
import sys
import threading

OPTIONS = {"tls": "", "key": "", "plain": "2", "streams": "2", "http2": "2", "text": "", "tokens": "20"}
AT_ONCE = 6
SECONDS = 60
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
REFUSED_STREAM = 7
lock = threading.Lock()
right, connections, failures = 0, 0, []


def body_of(is_stream):
    return json.dumps({"model": "sim", "prompt": "hello there", "max_tokens": int(OPTIONS["tokens"]) if is_stream else 1, "stream": is_stream})


def text_of(stream):
    """What its events say, and whether the last one is the end."""
    events = [event[len("data: "):] for event in stream.split("\n\n") if event.startswith("data: ")]
    text = "".join(choice.get("text", "") for event in events[:-1] for choice in json.loads(event)["choices"])
    return text, bool(events) and events[-1] == "[DONE]"


def why_wrong(status, answer, is_stream):
    if status != 200:
        return f"{status}: {answer[:300]}"
    if not is_stream:
        return None if '"choices"' in answer else f"no answer: {answer[:300]}"
    text, is_whole = text_of(answer)
    return None if is_whole and text == OPTIONS["text"] else f"a stream of {len(answer)} bytes: {text!r}"


def note(what, why):
    global right
    with lock:
        if why is None:
            right += 1
            print("2" if what == "http2" else ".", end="", file=sys.stderr, flush=True)
        else:
            failures.append(f"{what}: {why}")


def note_connection():
    global connections
    with lock:
        connections += 1


def context_of(protocol):
    context = ssl.create_default_context(cafile=OPTIONS["tls"]) if OPTIONS["tls"] else None
    if context:
        context.set_alpn_protocols([protocol])
    return context


def by_http1(port, stop, is_stream):
    headers = {"Content-Type": "application/json", "Connection": "keep-alive"}
    if OPTIONS["key"]:
        headers["Authorization"] = "Bearer " + OPTIONS["key"]
    context, connection = context_of("http/1.1"), None
    while not os.path.exists(stop):
        try:
            if connection is None:
                connection = (http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context) if context
                              else http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS))
                note_connection()
            connection.request("POST", "/v1/completions", body_of(is_stream), headers)
            answer = connection.getresponse()
            is_last = answer.will_close
            why = why_wrong(answer.status, answer.read().decode(), is_stream)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why, is_last = f"{type(error).__name__}: {error}", True
        note("stream" if is_stream else "plain", why)
        if is_last:
            connection.close()
            connection = None


class Http2:
    """A connection. Heads are sent without a table; of an answer's head only :status is read, which comes first and is in the static one."""

    def __init__(self, port):
        context = context_of("h2")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.head = b"\x83" + (b"\x87" if context else b"\x86") + self.literal(4, "/v1/completions") + self.literal(1, f"127.0.0.1:{port}")
        self.head += self.literal(31, "application/json") + (self.literal(23, "Bearer " + OPTIONS["key"]) if OPTIONS["key"] else b"")
        self.next_id, self.is_leaving, self.live = 1, False, {}  # live: id -> [is_stream, status, bytes]
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)) +
                            self.frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        note_connection()

    @staticmethod
    def literal(index, value):
        name = bytes([index]) if index < 15 else bytes([15, index - 15])
        return name + bytes([len(value)]) + value.encode()  # shorter than 127

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            if not more:
                raise ConnectionError("the connection was closed")
            data += more
        return data

    def ask(self, is_stream):
        self.live[self.next_id] = [is_stream, 0, b""]
        self.socket.sendall(self.frame(HEADERS, END_HEADERS, self.next_id, self.head) +
                            self.frame(DATA, END_STREAM, self.next_id, body_of(is_stream).encode()))
        self.next_id += 2

    def take(self):
        """The next frame."""
        head = self.read(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        payload = self.read(int.from_bytes(head[:3], "big"))
        request = self.live.get(stream)
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(self.frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(self.frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            if code != 0:
                raise ConnectionError(f"GOAWAY {code}")
            self.is_leaving = True
            self.live = {stream: request for stream, request in self.live.items() if stream <= last}
        elif kind == RST_STREAM and request:
            del self.live[stream]
            if struct.unpack(">I", payload)[0] != REFUSED_STREAM:
                note("http2", f"reset with {struct.unpack('>I', payload)[0]}")
        elif kind == HEADERS and request:
            block = payload.lstrip(bytes(range(0x20, 0x40)))  # sizes of its table
            request[1] = 200 if block[0] == 0x88 else block[:8]
        elif kind == DATA and request:
            request[2] += payload
        if kind in (HEADERS, DATA) and request and flags & END_STREAM:
            del self.live[stream]
            note("http2", why_wrong(request[1], request[2].decode(), request[0]))


def by_http2(port, stop, _):
    connection, asked = None, 0
    while not os.path.exists(stop) or connection:
        try:
            connection = connection or Http2(port)
            while len(connection.live) < AT_ONCE and not connection.is_leaving and not os.path.exists(stop):
                asked += 1
                connection.ask(asked % 3 == 0)
            if connection.live:
                connection.take()
                continue
        except (OSError, ValueError) as error:
            for _ in connection.live if connection else [0]:
                note("http2", f"{type(error).__name__}: {error}")
        if connection:
            connection.socket.close()
        connection = None


def main():
    for word in sys.argv[3:]:
        name, _, value = word.partition("=")
        OPTIONS[name] = value
    kinds = ((by_http1, False, OPTIONS["plain"]), (by_http1, True, OPTIONS["streams"]), (by_http2, None, OPTIONS["http2"]))
    clients = [threading.Thread(target=ask, args=(int(sys.argv[1]), sys.argv[2], is_stream)) for ask, is_stream, count in kinds
               for _ in range(int(count))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    print(f"right {right} connections {connections}")
    for why in failures:
        print(why)


main()

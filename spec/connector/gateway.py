"""A fake gateway in threads: agents register, rooms are opened at them, what they tell is kept. transport/wire/control.h in little.

Bytes are written from the header, not with the library's own encoder, so that a change of the wire is seen here.
"""
import hmac
import os
import socket
import struct
import threading

HELLO, ROOM, PING, WELCOME, REFUSE, OPEN, SOURCE, ABORT = 64, 65, 72, 80, 81, 82, 83, 84
GREET, CHALLENGE, PROOF, ANSWER = 112, 113, 114, 115
SENDER, RECEIVER = 1, 2
MAGIC = 0x474B5442


def text(value):
    data = value.encode()
    return struct.pack("<I", len(data)) + data


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        size, = self.take("I")
        self.at += size
        return self.data[self.at - size:self.at].decode()


class Agent:
    def __init__(self, connection, hello):
        self.connection = connection
        magic, version, self.rank, self.ranks, self.kinds, self.pid, self.incarnation = hello.take("IIIIIIQ")
        assert (magic, version) == (MAGIC, 1), (magic, version)
        self.name, self.worker, self.host = hello.text(), hello.text(), hello.text()
        self.port, = hello.take("H")

    def say(self, kind, payload):
        self.connection.say(kind, payload)


class Connection:
    """What a connection says and hears; with a token it is proved first, and each message has a seal behind it (transport/wire/auth.h)."""

    def __init__(self, connection, token):
        self.connection, self.token, self.keys = connection, token, None
        self.counts = {"a": 0, "d": 0}
        self.close = connection.close

    def seal(self, label, message):
        self.counts[label] += 1
        return hmac.digest(self.keys[label], struct.pack("<Q", self.counts[label] - 1) + message, "sha256")[:16]

    def say(self, kind, payload):
        message = struct.pack("<IBBH", len(payload), kind, 0, 0) + payload
        self.connection.sendall(message + (self.seal("a", message) if self.keys else b""))

    def hear(self):
        head = self.exactly(8)
        size, kind, _, _ = struct.unpack("<IBBH", head)
        payload = self.exactly(size)
        if self.keys:
            assert self.exactly(16) == self.seal("d", head + payload)
        return kind, payload

    def exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def prove(self):
        """False: refused."""
        if not self.token:
            return True
        kind, greeting = self.hear()
        assert (kind, greeting[:6]) == (GREET, b"BTKA\1G"), (kind, greeting)
        nonces = greeting[6:], os.urandom(32)

        def derive(label):
            said = b"baton-kv auth 1" + label.encode() + b"G" + b"".join(nonces)
            return hmac.digest(self.token.encode(), said, "sha256")
        self.say(CHALLENGE, nonces[1])
        kind, proof = self.hear()
        if (kind, proof) != (PROOF, derive("D")):
            self.say(REFUSE, struct.pack("<I", 60000) + text("the token is another one"))
            return False
        self.say(ANSWER, derive("A"))
        self.keys = {label: derive(label) for label in "da"}
        return True


class Gateway:
    def __init__(self, token=""):
        self.token = token
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.agents, self.told = {}, {}  # by worker and rank; (room, side) -> last state
        self.reasons = {}
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()
        for agent in list(self.agents.values()):
            agent.connection.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            with connection:
                connection = Connection(connection, self.token)
                if not connection.prove():
                    return
                kind, hello = self.message(connection)
                assert kind == HELLO, kind
                agent = Agent(connection, hello)
                agent.say(WELCOME, struct.pack("<IIIQ", 1, 1000, 60000, 77))
                self.agents[agent.worker, agent.rank] = agent
                while True:
                    kind, payload = self.message(connection)
                    if kind == ROOM:
                        self.note(payload)
        except (OSError, EOFError):
            pass

    def message(self, connection):
        kind, payload = connection.hear()
        return kind, Reader(payload)

    def note(self, payload):
        room, side, state, is_orphan = payload.take("QBBB")
        payload.take("II6Q")
        self.told[room, side] = "orphan" if is_orphan else state
        self.reasons[room, side] = payload.text()

    def open(self, room, sender, receiver, repair_ms=0):
        """At the agents of two workers, by rank."""
        for worker, peer, side in ((sender, receiver, SENDER), (receiver, sender, RECEIVER)):
            for agent in self.of(worker):
                agent.say(OPEN, self.room_command(room, room, side, self.of(peer), repair_ms))

    def repair(self, room, source_room, sender, receiver):
        for agent in self.of(sender):
            agent.say(OPEN, self.room_command(source_room, source_room, SENDER, self.of(receiver), 0))
        for agent in self.of(receiver):
            agent.say(SOURCE, self.room_command(room, source_room, RECEIVER, self.of(sender), 0))

    def abort(self, room, worker, reason):
        for agent in self.of(worker):
            agent.say(ABORT, struct.pack("<Q", room) + text(reason))

    def of(self, worker):
        return [agent for (name, _), agent in sorted(self.agents.items()) if name == worker]

    def room_command(self, room, source_room, side, peers, repair_ms):
        head = struct.pack("<QQBIII", room, source_room, side, 10000, repair_ms, len(peers))
        return head + b"".join(struct.pack("<IH", peer.rank, peer.port) + text(peer.host) for peer in peers)

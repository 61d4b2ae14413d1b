"""A relay before the decode server that can hold requests back: the moment "between the two legs", made long enough."""
import socket
import threading


class Gate:
    """Passes bytes both ways. arm(n, act): the next n POSTs wait for each other, then act() runs once, then they go on."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.barrier = None
        self.left = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, count, act):
        self.barrier = threading.Barrier(count, action=act, timeout=60)
        self.left = count

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self.pass_on, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(server, client, False), daemon=True).start()

    def pass_on(self, source, sink, is_request):
        try:
            while data := source.recv(65536):
                if is_request and self.left > 0 and data.startswith(b"POST "):
                    self.left -= 1
                    self.barrier.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except (OSError, threading.BrokenBarrierError):
            source.close()
            sink.close()

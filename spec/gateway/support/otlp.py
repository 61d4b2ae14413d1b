"""otlp.py READY [CERT KEY]: an OpenTelemetry collector's /v1/traces (OTLP over HTTP, JSON), which keeps what it gets.

A second, plain port takes orders: POST /control {"op": ...}. READY gets "otlp PORT control PORT".
"""

import http.server
import json
import os
import ssl
import sys
import threading


class State:
    def __init__(self):
        self.lock = threading.Lock()
        self.calls = []  # {path, headers, body} of those that were taken
        self.answers = []  # [status, headers, body] of the next calls
        self.refused = 0


state = State()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers, body):
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()


class Collector(Handler):
    def do_POST(self):
        body = self.read()
        with state.lock:
            answer = state.answers.pop(0) if state.answers else [200, {}, "{}"]
            if answer[0] == 200:
                headers = {name.lower(): value for name, value in self.headers.items()}
                state.calls.append({"path": self.path, "headers": headers, "body": body})
            else:
                state.refused += 1
        self.answer(*answer)


class Control(Handler):
    def do_POST(self):
        order = json.loads(self.read())
        with state.lock:
            if order["op"] == "answer":
                state.answers += order["answers"]
            result = {"calls": state.calls, "refused": state.refused}
            if order["op"] == "take":
                state.calls = []
        self.answer(200, {}, json.dumps(result))


def serve(handler, cert=None, port=0):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    if cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*cert)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def main():
    ready, cert = sys.argv[1], sys.argv[2:4]
    port, control = serve(Collector, cert), serve(Control)
    with open(ready + ".new", "w", encoding="ascii") as out:
        out.write(f"otlp {port} control {control}\n")
    os.rename(ready + ".new", ready)
    threading.Event().wait()


main()

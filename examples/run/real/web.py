"""Just enough of an HTTP client: one request per connection, the whole answer, SSE events."""
import http.client
import json
from dataclasses import dataclass


@dataclass
class Reply:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)

    def is_stream(self):
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def events(self):
        """The data of each SSE event, [DONE] included, as text."""
        for block in self.body.decode().replace("\r\n", "\n").split("\n\n"):
            lines = [line[5:].strip() for line in block.split("\n") if line.startswith("data:")]
            if lines:
                yield "\n".join(lines)


class Server:
    """An HTTP server on a port of this machine."""

    def __init__(self, port):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, method, path, body=None, headers=None, timeout=90):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path, timeout=10):
        return self.ask("GET", path, timeout=timeout)

    def post(self, path, body, headers=None, timeout=90):
        return self.ask("POST", path, body, headers, timeout)

    def is_healthy(self, path="/health"):
        try:
            return self.get(path, timeout=5).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def metric(self, name, **labels):
        """Sum of a Prometheus metric over the lines that carry these labels; 0 when there is none yet."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == name and all(one in head for one in wanted):
                total += float(value)
        return total

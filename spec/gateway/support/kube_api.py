"""kube_api.py READY [CERT KEY]: the part of a Kubernetes API server that lists and watches pods, in memory, over HTTP or HTTPS.

As the real one it pages lists by limit and continue, gives every change a resourceVersion, answers a version that it has compacted by
410 (as a status or as an ERROR event), sends bookmarks, ends a watch after timeoutSeconds, and asks for a bearer token. A second, plain
port takes orders: POST /control {"op": ...}, answered when they are done. READY gets "api PORT control PORT".
"""

import base64
import http.server
import json
import os
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
import urllib.parse


class Cluster:
    """The pods, their history, and what goes wrong."""

    def __init__(self):
        self.lock = threading.Condition()
        self.version = 1000
        self.compacted = 0
        self.pods = {}  # "namespace/name": pod
        self.history = []  # (version, type, pod as it is then, labels before)
        self.snapshots = {}  # version: list of pods
        self.tokens = None  # None: everybody may
        self.gone_as = "event"
        self.bookmark_s = 60
        self.refusals = []  # statuses of the next calls
        self.faults = []  # of watches: ("garbage"|"half"|"cut"|"end"|"error", ...), each for all that are open
        self.seen = []  # requests
        self.watching = 0
        self.list_delay_s = 0

    def commit(self, kind, pod, before=None):
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(pod)), before))
        self.lock.notify_all()

    def put(self, pod):
        meta = pod["metadata"]
        key = meta["namespace"] + "/" + meta["name"]
        before = self.pods.get(key)
        self.pods[key] = pod
        self.commit("MODIFIED" if before else "ADDED", pod,
                    dict(before["metadata"].get("labels") or {}) if before else None)

    def delete(self, key):
        pod = self.pods.pop(key, None)
        if pod:
            self.commit("DELETED", pod, dict(pod["metadata"].get("labels") or {}))

    def compact(self):
        self.compacted = self.version
        self.history.clear()
        self.snapshots.clear()
        self.lock.notify_all()


cluster = Cluster()


def split_selector(text):
    part, depth = "", 0
    for c in text:
        depth += c == "("
        depth -= c == ")"
        if c == "," and depth == 0:
            yield part
            part = ""
        else:
            part += c
    if part:
        yield part


def selects(selector, labels):
    for part in split_selector(selector):
        if " in (" in part:
            key, values = part.rstrip(")").split(" in (")
            if labels.get(key.strip()) not in [v.strip() for v in values.split(",")]:
                return False
        elif "=" in part:
            key, value = part.split("=", 1)
            if labels.get(key) != value.lstrip("="):
                return False
        elif part not in labels:
            return False
    return True


def status(code, message, reason=""):
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code}


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, body):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if code == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        ask = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        with cluster.lock:
            cluster.seen.append({"path": url.path, "token": token, **ask})
            refusal = cluster.refusals.pop(0) if cluster.refusals else None
            is_allowed = cluster.tokens is None or token in cluster.tokens
        parts = url.path.strip("/").split("/")
        if not is_allowed:
            return self.answer(401, status(401, "Unauthorized", "Unauthorized"))
        if refusal:
            return self.answer(refusal, status(refusal, "as it was ordered"))
        if parts == ["api", "v1", "pods"]:
            namespace = None
        elif len(parts) == 5 and parts[:3] == ["api", "v1", "namespaces"] and parts[4] == "pods":
            namespace = parts[3]
        else:
            return self.answer(404, status(404, "the server could not find the requested resource", "NotFound"))
        if ask.get("watch") in ("1", "true"):
            return self.watch(namespace, ask)
        return self.list(namespace, ask)

    # ---- lists ----

    def chosen(self, namespace, ask, pods):
        return [p for p in pods if namespace in (None, p["metadata"]["namespace"])
                and selects(ask.get("labelSelector", ""), p["metadata"].get("labels") or {})]

    def list(self, namespace, ask):
        time.sleep(cluster.list_delay_s)
        limit = int(ask.get("limit", "0"))
        with cluster.lock:
            begin = 0
            if "continue" in ask:
                at = json.loads(base64.b64decode(ask["continue"]))
                version, begin = at["rv"], at["begin"]
                if version not in cluster.snapshots:
                    return self.answer(410, status(410, "The provided continue parameter is too old", "Expired"))
            else:
                version = cluster.version
                cluster.snapshots[version] = self.chosen(
                    namespace, ask, [json.loads(json.dumps(cluster.pods[k])) for k in sorted(cluster.pods)])
            pods = cluster.snapshots[version]
        end = begin + limit if limit else len(pods)
        meta = {"resourceVersion": str(version)}
        if end < len(pods):
            meta["continue"] = base64.b64encode(json.dumps({"rv": version, "begin": end}).encode()).decode()
            meta["remainingItemCount"] = len(pods) - end
        self.answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": pods[begin:end]})

    # ---- watches ----

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, kind, obj):
        if kind != "ERROR":
            obj = {"kind": "Pod", "apiVersion": "v1", **obj}
        return json.dumps({"type": kind, "object": obj}).encode() + b"\n"

    def watch(self, namespace, ask):
        version = int(ask.get("resourceVersion") or 0)
        selector = ask.get("labelSelector", "")
        is_gone = version < cluster.compacted
        if is_gone and cluster.gone_as == "status":
            return self.answer(410, status(410, "too old resource version: %d" % version, "Expired"))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if is_gone:
            self.chunk(self.event("ERROR", status(410, "too old resource version: %d" % version, "Expired")))
            self.wfile.write(b"0\r\n\r\n")
            return
        cluster.watching += 1
        try:
            self.follow(namespace, selector, version, ask)
        except (OSError, ValueError):
            self.close_connection = True
        finally:
            cluster.watching -= 1

    def seen_as(self, namespace, selector, change):
        """As who has this selector sees the change: a pod that leaves it is deleted."""
        _, kind, pod, before = change
        if namespace not in (None, pod["metadata"]["namespace"]):
            return None
        is_in = selects(selector, pod["metadata"].get("labels") or {})
        was_in = before is not None and selects(selector, before)
        if kind == "MODIFIED" and is_in != was_in:
            kind = "ADDED" if is_in else "DELETED"
        return kind if is_in or was_in else None

    def follow(self, namespace, selector, version, ask):
        end = time.monotonic() + float(ask.get("timeoutSeconds", "1800"))
        fault_at = len(cluster.faults)
        bookmark = time.monotonic() + cluster.bookmark_s
        while time.monotonic() < end:
            with cluster.lock:
                news = []
                for change in reversed(cluster.history):
                    if change[0] <= version:
                        break
                    news.append(change)
                news.reverse()
                faults = cluster.faults[fault_at:]
                if not news and not faults:
                    cluster.lock.wait(0.05)
                at = cluster.version
            for change in news:
                kind = self.seen_as(namespace, selector, change)
                if kind:
                    self.chunk(self.event(kind, change[2]))
                version = change[0]
            for fault in faults:
                fault_at += 1
                if self.go_wrong(fault):
                    return
            if not news and time.monotonic() >= bookmark and ask.get("allowWatchBookmarks") in ("1", "true"):
                version = max(version, at)
                self.chunk(self.event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}}))
                bookmark = time.monotonic() + cluster.bookmark_s
        self.wfile.write(b"0\r\n\r\n")

    def go_wrong(self, fault):
        if fault == "garbage":
            self.chunk(b'{"type":"MODIFIED","object":{"metadata":\n')
        elif fault == "nonsense":
            self.chunk(b"\x00\xffno JSON at all\n")
        elif fault in ("half", "cut"):
            self.chunk(b'{"type":"ADDED","object":{"kind":"Pod","meta')
            if fault == "cut":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise OSError("cut")
            time.sleep(3600)
        elif fault == "slow":
            for byte in self.event("BOOKMARK", {"metadata": {"resourceVersion": str(cluster.version)}}):
                self.chunk(bytes([byte]))
                time.sleep(0.005)
        elif fault == "end":
            self.wfile.write(b"0\r\n\r\n")
            return True
        elif fault == "error":
            self.chunk(self.event("ERROR", status(500, "etcd has no leader")))
            self.wfile.write(b"0\r\n\r\n")
            return True
        return False


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Knows its connections, so that it can be away as a machine is."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, port, handler, tls):
        super().__init__(("127.0.0.1", port), handler)
        self.tls, self.open, self.guard = tls, set(), threading.Lock()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def finish_request(self, request, address):
        request.settimeout(3600)
        if self.tls:
            request = self.tls.wrap_socket(request, server_side=True)
        with self.guard:
            self.open.add(request)
        try:
            self.RequestHandlerClass(request, address, self)
        finally:
            with self.guard:
                self.open.discard(request)

    def handle_error(self, request, address):
        pass

    def end(self):
        self.shutdown()
        self.server_close()
        with self.guard:
            for s in self.open:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


class Control(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(run(order) or {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


api = None
make_api = None


def many(order):
    """Pods n0, n1, ... whose address is one of 10.0.0.0/8, as large as real ones."""
    pad = [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:%d" % i: {".": {}} for i in range(order.get("pad", 0))}}}]
    for i in range(order.get("first", 0), order["count"]):
        yield {
            "metadata": {"name": "n%d" % i, "namespace": order["namespace"], "labels": order["labels"],
                         "managedFields": pad},
            "spec": {"nodeName": "node", "containers": [{"name": "c", "ports": [{"containerPort": 8000}]}]},
            "status": {"phase": "Running", "podIP": "127.%d.%d.%d" % (1 + i // 62500, i // 250 % 250, 1 + i % 250),
                       "conditions": [{"type": "Ready", "status": "True"}]}}


def churn(order):
    """So many changes a second for so long: pods get ready and unready, go and come. restore: all are there and ready in the end."""
    pods = list(many(order))
    begin = time.monotonic()
    total = int(order["rate"] * order["seconds"])
    for i in range(total):
        pod = json.loads(json.dumps(pods[i * 7 % len(pods)]))
        with cluster.lock:
            if i % 4 == 0:
                cluster.delete(pod["metadata"]["namespace"] + "/" + pod["metadata"]["name"])
            else:
                pod["status"]["conditions"][0]["status"] = "True" if i % 4 in (1, 3) else "False"
                cluster.put(pod)
        time.sleep(max(0, begin + (i + 1) / order["rate"] - time.monotonic()))
    with cluster.lock:
        for pod in pods if order.get("restore") else []:
            cluster.put(pod)


def run(order):
    global api
    op = order["op"]
    if op == "away":
        api.end()
        return None
    if op == "back":
        api = make_api(api.server_address[1])
        return None
    if op == "churn":
        churn(order)
        return None
    with cluster.lock:
        if op == "put":
            for pod in order["pods"]:
                cluster.put(pod)
        elif op == "many":
            for pod in many(order):
                cluster.put(pod)
        elif op == "delete":
            for key in order["pods"]:
                cluster.delete(key)
        elif op == "compact":
            cluster.compact()
        elif op == "set":
            for key, value in order["values"].items():
                setattr(cluster, key, value)
        elif op == "fault":
            cluster.faults.append(order["fault"])
            cluster.lock.notify_all()
        elif op == "seen":
            seen, cluster.seen = cluster.seen, []
            return {"seen": seen, "watching": cluster.watching, "version": str(cluster.version)}
        else:
            raise ValueError(op)
    return None


def main():
    global api, make_api
    tls = None
    if len(sys.argv) > 2:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[2], sys.argv[3])

    def make(port):
        return Server(port, Api, tls)

    make_api = make
    api = make(0)
    control = Server(0, Control, None)
    with open(sys.argv[1] + ".tmp", "w", encoding="ascii") as ready:
        ready.write("api %d control %d\n" % (api.server_address[1], control.server_address[1]))
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    threading.Event().wait()


if __name__ == "__main__":
    main()

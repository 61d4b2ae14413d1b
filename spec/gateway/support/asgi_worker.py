"""asgi_worker.py READY_FILE - what an engine's HTTP server makes of a request: a worker under real uvicorn.

Two listeners of one process, one parsed by h11 and one by httptools, write their ports to READY_FILE ("h11 PORT\nhttptools PORT\n").
Every request that the application gets is kept as it was handed to it (path decoded by uvicorn, body read by Python's json) and
told by GET /seen, which empties the list. Answers are good enough for a gateway to pass on.
"""

import asyncio
import json
import socket
import sys

import uvicorn

seen = []


def parsed(body):
    """As engines do: json.loads of the bytes, which also reads a BOM, UTF-16 and UTF-32."""
    try:
        return {"json": json.loads(body)}
    except ValueError:
        return {"text": body.decode("latin-1")}


async def read_body(receive):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def respond(send, status, body, kind=b"application/json"):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


def answer_to(path):
    """The least that its route's caller looks at."""
    if path == "/generate":
        return {"text": "a", "meta_info": {"id": "x", "prompt_tokens": 1, "completion_tokens": 1, "finish_reason": {"type": "length"}}}
    choice = {"index": 0, "text": "a", "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
    return {"id": "x", "object": "x", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = scope["path"]
    body = await read_body(receive)
    if path == "/health":
        await respond(send, 200, b"")
    elif path == "/seen":
        told = json.dumps(seen).encode()
        seen.clear()
        await respond(send, 200, told)
    else:
        entry = {"parser": scope["baton"], "method": scope["method"], "path": path, "query": scope["query_string"].decode("latin-1")}
        entry["headers"] = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        entry.update(parsed(body))
        seen.append(entry)
        await respond(send, 200, json.dumps(answer_to(path)).encode())


def named(parser):
    async def inner(scope, receive, send):
        await app({**scope, "baton": parser}, receive, send)

    return inner


async def main(ready_file):
    sockets, servers = {}, []
    for parser in ("h11", "httptools"):
        # asyncio sets TCP_NODELAY only where the protocol is named.
        sockets[parser] = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sockets[parser].bind(("127.0.0.1", 0))
        # A kept connection that uvicorn ends after a pause would cost a leg that is never sent twice.
        config = uvicorn.Config(
            named(parser), http=parser, lifespan="off", log_level="warning", access_log=False, timeout_keep_alive=600
        )
        servers.append(uvicorn.Server(config).serve(sockets=[sockets[parser]]))
    with open(ready_file, "w") as out:
        out.write("".join(f"{parser} {s.getsockname()[1]}\n" for parser, s in sockets.items()))
    await asyncio.gather(*servers)


asyncio.run(main(sys.argv[1]))

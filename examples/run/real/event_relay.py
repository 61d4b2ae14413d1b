"""python event_relay.py EVENTS_URL PORT EVERY - passes an engine's KV events on, but every EVERY-th message (0: all).

Needs pyzmq, which the engines' environments have.
"""
import sys

import zmq


def main(source, port, every):
    context = zmq.Context()
    events, sink = context.socket(zmq.SUB), context.socket(zmq.PUB)
    events.connect(source)
    events.subscribe(b"")
    sink.bind(f"tcp://127.0.0.1:{port}")
    count = 0
    while True:
        frames = events.recv_multipart()
        count += 1
        if every == 0 or count % every != 0:
            sink.send_multipart(frames)
        else:
            print("dropped", count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

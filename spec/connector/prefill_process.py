"""A fake prefill engine in a process of its own: python prefill_process.py EXTRA-AS-JSON

It prints its agent's port, then obeys lines on stdin and answers each by a line:
add NAME TOKENS ROOM | step | run (until it has no work) | leaks
"""
import json
import sys

import paths  # noqa: F401
from engine import Engine, Request, run

BLOCKS = 64


def main(extra):
    engine = Engine("p", extra, blocks=BLOCKS, budget=4)
    print(engine.agent.port, flush=True)
    for line in sys.stdin:
        print(obey(engine, *line.split()), flush=True)


def obey(engine, command, *arguments):
    if command == "add":
        name, tokens, room = arguments
        params = {"do_remote_decode": True, "do_remote_prefill": False, "baton_room": int(room)}
        engine.add(Request("p-" + name, [f"{name}{place}" for place in range(int(tokens))], params))
    elif command == "step":
        engine.step()
    elif command == "run":
        return "ok" if run([engine], lambda: not engine.has_work()) else "something never ends"
    elif command == "leaks":
        return engine.leaks(BLOCKS) or "none"
    return "ok"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

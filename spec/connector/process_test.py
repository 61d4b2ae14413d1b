"""Prefill in another process that is killed or stopped: decode's request ends in time, decode goes on."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import paths
from engine import Engine, Request, Status, run

BLOCKS = 64
EXTRA = {"allow_sources": True, "dead_ms": 2000, "heartbeat_ms": 200, "bootstrap_ms": 20000, "stall_ms": 20000, "release_ms": 1000}


class Prefill:
    def __init__(self, extra):
        script = os.path.join(paths.HERE, "prefill_process.py")
        self.child = subprocess.Popen([sys.executable, "-B", script, json.dumps(extra)], text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(self.child.stdout.readline())

    def tell(self, command):
        self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def signal(self, number):
        self.child.send_signal(number)

    def end(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


class Processes(unittest.TestCase):
    backend = "tcp"

    def setUp(self):
        self.room = 500
        self.extra = {**EXTRA, "backends": [self.backend]}
        self.d = Engine("d", self.extra, blocks=BLOCKS)
        self.addCleanup(self.d.close)
        self.p = self.prefill()

    def prefill(self):
        prefill = Prefill(self.extra)
        self.addCleanup(prefill.end)
        return prefill

    def decode(self, name, tokens, prefill):
        self.room += 1
        request = Request("d-" + name, [f"{name}{place}" for place in range(tokens)], {
            "do_remote_prefill": True, "baton_room": self.room, "baton_source": f"127.0.0.1:{prefill.port}"}, max_tokens=3)
        return self.d.add(request)

    def serve(self, name, prefill):
        """A whole request, through and right."""
        decode = self.decode(name, 18, prefill)
        self.d.step()
        prefill.tell(f"add {name} 18 {self.room}")
        for _ in range(5):
            prefill.tell("step")
        self.assertTrue(run([self.d], lambda: decode.outputs == 1))
        self.assertEqual((self.d.wrong_slots(decode), decode.computed_here), ([], 0))
        self.assertEqual(prefill.tell("run"), "ok")
        self.assertTrue(run([self.d], lambda: not self.d.has_work()))

    def half(self, name):
        """A request of which some pages have come."""
        decode = self.decode(name, 30, self.p)
        self.d.step()
        self.p.tell(f"add {name} 30 {self.room}")
        for _ in range(3):
            self.p.tell("step")
        handle = self.d.worker.worker.receivings[decode.request_id].handle
        self.assertTrue(run([self.d], lambda: self.d.agent.room_stats(handle).pages >= 4))
        self.assertFalse(decode.is_finished())
        return decode

    def fails(self, decode, seconds=10):
        began = time.monotonic()
        with self.assertLogs("vllm.baton_connector", "WARNING") as log:
            self.assertTrue(run([self.d], lambda: decode.is_finished(), seconds), "the request does not end")
        self.assertEqual(decode.status, Status.FINISHED_ERROR)
        self.assertIn("p/0", "\n".join(log.output), "the log names the peer")
        self.assertTrue(run([self.d], lambda: not self.d.has_work()))
        self.assertEqual(self.d.leaks(BLOCKS), [])
        return time.monotonic() - began

    def test_killed_in_the_middle(self):
        decode = self.half("killed")
        self.p.end()
        self.fails(decode)
        self.serve("after", self.prefill())
        self.assertEqual(self.d.leaks(BLOCKS), [])

    def test_killed_before_anything_came(self):
        self.serve("first", self.p)
        decode = self.decode("early", 30, self.p)
        self.d.step()
        self.p.end()
        self.fails(decode)
        self.serve("after", self.prefill())

    def test_stopped_in_the_middle(self):
        decode = self.half("stopped")
        self.p.signal(signal.SIGSTOP)
        self.fails(decode)
        self.p.signal(signal.SIGCONT)
        self.assertEqual(self.p.tell("run"), "ok")
        self.assertEqual(self.p.tell("leaks"), "none")
        self.serve("after", self.p)
        self.assertEqual(self.d.leaks(BLOCKS), [])


class ProcessesOverShm(Processes):
    backend = "shm"


if __name__ == "__main__":
    unittest.main()

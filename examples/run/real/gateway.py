"""The gateway under test: build/release/baton in front of a prefill and a decode server."""
import json
import os
import signal

from process import Process, StartError
from web import Server

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
BUILD = os.path.join(ROOT, os.environ.get("BATON_BUILD_DIR") or "build/release")


class Gateway(Server):
    """flags: what makes it speak to these engines. The deadlines are short: a hang shows as an error, not as a wait."""

    def __init__(self, name, folder, core, flags):
        ready = os.path.join(folder, name + ".ready")
        command = [os.path.join(BUILD, "baton"), "run", "--host", "127.0.0.1", "--port", "0", "--prometheus-port", "0",
                   "--first-event-timeout-secs", "30", "--answer-timeout-secs", "30", "--request-timeout-secs", "60",
                   "--ready-file", ready, *flags]
        self.process = Process(name, command, os.path.join(folder, name + ".log"), core)
        self.process.wait_until(lambda: os.path.exists(ready) and os.path.getsize(ready) > 0, 10, "ready file")
        with open(ready, encoding="utf-8") as file:
            told = json.load(file)
        super().__init__(told["port"])
        self.admin = Server(told["admin_port"])
        self.pid = told["pid"]
        self.process.wait_until(lambda: self.is_healthy("/readiness"), 30, "usable pair at /readiness")

    def stop(self):
        """Ends it as a service manager would; a gateway that ended by itself, or does not end, is a fault of its own."""
        if not self.process.is_alive():
            raise StartError(f"the gateway ended by itself; see {self.process.log}")
        os.kill(self.pid, signal.SIGTERM)
        self.process.child.wait(20)

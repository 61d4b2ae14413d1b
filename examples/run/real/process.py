"""Processes of the demonstration: started on a core, waited for, ended; and free ports for them."""
import os
import signal
import socket
import subprocess
import sys
import time

KEEPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")


class StartError(Exception):
    """A process ended or stayed silent; the message says where to look."""


class Process:
    """A command in a process group of its own, output in a log file."""

    def __init__(self, name, command, log, core, env=None):
        self.name = name
        self.log = log
        self.command = [sys.executable, "-B", KEEPER, str(core), *command]
        self.env = {**os.environ, **(env or {})}
        self.start()

    def start(self):
        """Once more, when it has ended."""
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env)

    def is_alive(self):
        return self.child.poll() is None

    def kill(self):
        """SIGKILL to the tree. The keeper's group carries its pid, once it leads one."""
        if self.is_alive():
            try:
                os.killpg(self.child.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.child.kill()
        self.child.wait()

    def stop(self):
        """SIGSTOP to the tree: it answers nothing, its connections stay open."""
        os.killpg(self.child.pid, signal.SIGSTOP)

    def resume(self):
        os.killpg(self.child.pid, signal.SIGCONT)

    def wait_until(self, is_ready, seconds, what):
        """Polls is_ready() until it is true; a process that ends first, or takes too long, is a StartError."""
        end = time.monotonic() + seconds
        while not is_ready():
            if not self.is_alive():
                raise StartError(f"{self.name} ended before {what}; {self.log} ends with\n{log_end(self.log)}")
            if time.monotonic() > end:
                raise StartError(f"{self.name}: no {what} within {seconds} s; see {self.log}")
            time.sleep(0.25)


def log_end(path, lines=12):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-lines:])


def cores():
    """Two cores to bind engines to; the same one twice where there is one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


def free_ports(count):
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

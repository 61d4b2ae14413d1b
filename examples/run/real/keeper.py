"""python keeper.py CORE COMMAND... - runs a command bound to one core and ends its whole process tree.

Engines are trees of processes, and one of them may outlive the others. The keeper leads a process group of its own; when
the command ends, when it is told to stop or when its parent dies (however), it kills the group, itself included.
"""
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def end_group(*_):
    os.killpg(0, signal.SIGKILL)


def main(core, command):
    parent = os.getppid()
    os.setsid()
    signal.signal(signal.SIGTERM, end_group)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked to be told
        return
    os.sched_setaffinity(0, {core})
    try:
        subprocess.Popen(command).wait()
    finally:
        end_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""A virtual environment that is made once and found again: disk check, pip steps, a stamp at the end.

The engines are installed without their dependency lists (--no-deps), because those lists pin CPU-less or CUDA-only
builds; what they really need is read from the wheel's own metadata, less the names given to `wanted_by`.
"""
import json
import os
import shutil
import subprocess
import sys
import time

LIST_REQUIREMENTS = """
import json, sys
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
found = {}
for line in metadata.requires(sys.argv[1]) or []:
    need = Requirement(line)
    if need.marker and not need.marker.evaluate({"extra": ""}):
        continue
    need.marker = None
    found.setdefault(canonicalize_name(need.name), []).append(str(need))
print(json.dumps(found))
"""


class Venv:
    """One folder with one engine in it. `recipe` is any text that changes when the steps below it change."""

    def __init__(self, name, size_gb, recipe):
        root = os.path.abspath(os.environ.get("BATON_VENV_DIR") or os.path.expanduser("~/.cache/baton"))
        self.dir = os.path.join(root, name)
        self.size_gb = size_gb
        self.recipe = recipe
        self.python = os.path.join(self.dir, "bin", "python")
        self.stamp = os.path.join(self.dir, "baton-ready")
        self.log = os.path.join(self.dir, "baton-install.log")

    def is_ready(self):
        try:
            with open(self.stamp, encoding="utf-8") as file:
                return file.read() == self.recipe
        except OSError:
            return False

    def check_disk(self):
        """Half-made environments count as done work: only what is still missing has to fit."""
        os.makedirs(self.dir, exist_ok=True)
        free_gb = shutil.disk_usage(self.dir).free / 1e9
        missing_gb = max(0.0, self.size_gb - folder_bytes(self.dir) / 1e9)
        if free_gb < missing_gb:
            sys.exit(f"error: {self.dir} needs {missing_gb:.1f} GB more, the disk has {free_gb:.1f} GB free; "
                     "free some or set BATON_VENV_DIR to a folder on a larger disk")

    def create(self):
        if os.path.exists(self.python):
            return
        step("make the virtual environment " + self.dir)
        done = subprocess.run([sys.executable, "-m", "venv", self.dir], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit("error: python3 -m venv failed; on Debian: apt-get install python3-venv\n" + done.stdout)

    def pip(self, what, *arguments):
        """One `pip install`; its output goes to the log, the log's end is shown when it fails."""
        began = step(what)
        with open(self.log, "a", encoding="utf-8") as log:
            done = subprocess.run([self.python, "-m", "pip", "install", "--no-input", "--progress-bar", "off", *arguments],
                                  stdout=log, stderr=log, check=False)
        if done.returncode != 0:
            sys.exit(f"error: {what}: pip failed, see {self.log}\n{tail(self.log)}")
        finish(began)

    def wanted_by(self, package, without):
        """What the installed package asks for on this machine, less the names in `without`."""
        text = subprocess.check_output([self.python, "-c", LIST_REQUIREMENTS, package], text=True)
        found = json.loads(text)
        return sorted(need for name, needs in found.items() if name not in without for need in needs)

    def site_packages(self):
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return subprocess.check_output([self.python, "-c", code], text=True).strip()

    def mark_ready(self):
        with open(self.stamp, "w", encoding="utf-8") as file:
            file.write(self.recipe)


def folder_bytes(path):
    return sum(os.lstat(os.path.join(base, name)).st_size for base, _, names in os.walk(path) for name in names)


def tail(path, lines=15):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-lines:])


def step(what):
    print(f"  {what} ...", end="", flush=True)
    return time.monotonic()


def finish(began, note="done"):
    print(f" {note} ({time.monotonic() - began:.0f} s)", flush=True)

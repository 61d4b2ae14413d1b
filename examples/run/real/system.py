"""Libraries of the system that a wheel expects: installed by apt as root or by sudo, else named."""
import os
import shutil
import subprocess
import sys

from environment import finish, step


def need_library(soname, package):
    if loads(soname):
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", package]
    if os.geteuid() != 0:
        command = ["sudo", "-n", *command]
    if shutil.which("apt-get") is None or shutil.which(command[0]) is None:
        sys.exit(f"error: {soname} is missing: install the package that holds it ({package} on Debian)")
    began = step(f"the system's {package}")
    for one in (command, [*command[:-4], "update"], command):
        done = subprocess.run(one, capture_output=True, text=True, check=False)
        if loads(soname):
            finish(began)
            return
    sys.exit(f"error: {soname} is missing, and {' '.join(command)} failed:\n{done.stdout[-500:]}{done.stderr[-500:]}")


def loads(soname):
    """A fresh process asks: the loader of this one remembers what was not there."""
    code = f"import ctypes; ctypes.CDLL({soname!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0

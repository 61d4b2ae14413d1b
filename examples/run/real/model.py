"""The tiny model, made once and kept beside the virtual environment."""
import os
import subprocess
import sys

from environment import finish, step

MAKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny_model.py")


def ready_model(venv):
    """Its folder. The maker's text is part of the name: a changed maker makes a new model."""
    with open(MAKER, "rb") as file:
        version = sum(byte * (place % 9973 + 1) for place, byte in enumerate(file.read())) % 10**8
    folder = os.path.join(venv.dir, f"tiny-{version}")
    if not os.path.isdir(folder):
        began = step("make the tiny model")
        done = subprocess.run([venv.python, "-B", MAKER, folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit("error: the model could not be made\n" + done.stderr)
        finish(began)
    return folder

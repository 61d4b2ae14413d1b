"""SGLang for this CPU from the package index.

SGLang's own list pins a CUDA build of torch and a dozen kernel packages that nothing on a CPU calls; the parts that
import them get a stub (sglang_path/). torch 2.13.0 is enough and is what the torchvision beside it was built for.
"""
from environment import Venv
from system import need_library

VERSION = "0.5.23"
TORCH = ("torch==2.13.0", "torchvision==0.28.0")
TRANSFER = ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)
KERNELS = {"sglang-kernel", "sgl-deep-ep", "sgl-deep-gemm", "sgl-flash-mla", "flash-attn-4", "flashinfer-python",
           "humming-kernels", "nvidia-cutlass-dsl", "nvidia-mathdx", "nvshmem4py-cu13", "quack-kernels", "tilelang",
           "cuda-python", "nvidia-ml-py", "timm", "smg-grpc-servicer"}
WITHOUT = KERNELS | {"torch", "torchvision", "torchaudio", "torchcodec"}
SIZE_GB = 6.5


def ready_venv():
    """The environment, made or found."""
    need_library("libibverbs.so.1", "libibverbs1")  # Mooncake links with it even where it moves KV by TCP
    venv = Venv("sglang", SIZE_GB, f"sglang {VERSION}, {', '.join(TORCH + TRANSFER)}, step 1")
    if venv.is_ready():
        print(f"  SGLang {VERSION} found in {venv.dir}")
        return venv
    venv.check_disk()
    venv.create()
    venv.pip(f"sglang {VERSION}, without its pins", "--no-deps", f"sglang=={VERSION}")
    venv.pip("torch and its libraries (2 GB to fetch)", *TORCH)
    venv.pip("the Mooncake transfer engine", *TRANSFER)
    venv.pip("the rest of SGLang's list", *TORCH, *venv.wanted_by("sglang", WITHOUT))
    venv.mark_ready()
    return venv

"""A real SGLang server on one core: its command line and its environment."""
import os

from process import Process, free_ports
from web import Server

START_SECONDS = 300
STUBS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sglang_path")
FLAGS = ("--device cpu --dtype float32 --attention-backend torch_native --disable-cuda-graph --disable-overlap-schedule "
         "--page-size 1 --max-total-tokens 8192 --mem-fraction-static 0.1 --skip-server-warmup --enable-metrics").split()


class SglangEngine(Server):
    """role: prefill, decode or plain; flags: more of the command line."""

    def __init__(self, venv, model, folder, role, core, flags=()):
        port, self.bootstrap_port, nccl_port = free_ports(3)
        super().__init__(port)
        command = [venv.python, "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", "tiny",
                   "--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(nccl_port), *FLAGS, *flags]
        if role != "plain":
            command += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "mooncake",
                        "--disaggregation-bootstrap-port", str(self.bootstrap_port)]
        if role == "decode":  # a host copy by cudaHostRegister otherwise
            command += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        self.process = Process(f"{role} engine", command, os.path.join(folder, f"{role}-{port}.log"), core, environment())

    def wait_ready(self):
        self.process.wait_until(self.is_healthy, START_SECONDS, "good answer from /health")

    def loads(self):
        """What the scheduler holds: requests that run or wait, and tokens in use."""
        load = self.get("/v1/loads?include=all").json()["loads"][0]
        return load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]


def environment():
    """The timers are SGLang's own 300 s otherwise: a pair that does not find each other shall be seen sooner."""
    return {"PYTHONPATH": STUBS, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_HOST_IP": "127.0.0.1", "MC_FORCE_TCP": "1",
            "MOONCAKE_PROTOCOL": "tcp", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "20", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20"}

"""A real vLLM server on one core: its command line, its environment and the numbers it tells about itself."""
import json
import os

from process import Process, free_ports
from web import Server

START_SECONDS = 300
BLOCK = 32


class VllmEngine(Server):
    """role: prefill, decode or plain. connector: vLLM's class name; a plain engine has none."""

    def __init__(self, venv, model, folder, role, core, connector=None):
        port, self.side_port = free_ports(2)
        super().__init__(port)
        self.role = role
        self.core = core
        command = [os.path.join(venv.dir, "bin", "vllm"), "serve", model, "--served-model-name", "tiny",
                   "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
                   "--max-model-len", "2048", "--block-size", str(BLOCK), "--max-num-seqs", "16",
                   "--no-enable-log-requests"]
        if connector:
            command += ["--kv-transfer-config", json.dumps(transfer_config(role, connector, folder))]
        self.process = Process(f"{role} engine", command, os.path.join(folder, role + ".log"), core, self.environment())

    def environment(self):
        return {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_CPU_OMP_THREADS_BIND": str(self.core), "VLLM_NO_USAGE_STATS": "1",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
                "UCX_TLS": "tcp,self,sm", "PYTHONHASHSEED": "0", "VLLM_ENABLE_RESPONSES_API_STORE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}

    def wait_ready(self):
        self.process.wait_until(self.is_healthy, START_SECONDS, "good answer from /health")

    def computed_prompt_tokens(self):
        return self.metric("vllm:prompt_tokens_by_source_total", source="local_compute")

    def received_prompt_tokens(self):
        return self.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")

    def kv_usage(self):
        return self.metric("vllm:kv_cache_usage_perc")

    def expired_holds(self):
        """Prefill: requests whose KV nobody fetched before the lease ran out."""
        return self.metric("vllm:nixl_num_kv_expired_reqs_total")


def transfer_config(role, connector, folder):
    config = {"kv_connector": connector, "engine_id": role,
              "kv_role": "kv_producer" if role == "prefill" else "kv_consumer"}
    if connector == "ExampleConnector":
        config["kv_connector_extra_config"] = {"shared_storage_path": os.path.join(folder, "kv")}
    else:
        config["kv_buffer_device"] = "cpu"
    return config

"""A real vLLM server on one core: its command line, its environment and the numbers it tells about itself."""
import json
import os

from gateway import BUILD, ROOT
from process import Process, free_ports
from web import Server

START_SECONDS = 300
BLOCK = 32


class VllmEngine(Server):
    """role: prefill (or prefill2), decode or plain. connector: vLLM's class name; a plain engine has none. extra: the connector's
    own settings; flags: more of the command line; ranks: tensor-parallel, all on the one core."""

    def __init__(self, venv, model, folder, role, core, connector=None, extra=None, flags=(), ranks=1):
        port, self.side_port = free_ports(2)
        super().__init__(port)
        self.role = role
        self.core, self.ranks = core, ranks
        command = [os.path.join(venv.dir, "bin", "vllm"), "serve", model, "--served-model-name", "tiny",
                   "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
                   "--max-model-len", "2048", "--block-size", str(BLOCK), "--max-num-seqs", "16",
                   "--no-enable-log-requests", "--tensor-parallel-size", str(ranks), *flags]
        if connector:
            extra = {**(extra or {}), "worker": self.url} if connector == "BatonConnector" else extra
            command += ["--kv-transfer-config", json.dumps(transfer_config(role, connector, folder, extra))]
        self.process = Process(f"{role} engine", command, os.path.join(folder, role + ".log"), core, self.environment())

    def environment(self):
        return {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_CPU_OMP_THREADS_BIND": "|".join([str(self.core)] * self.ranks), "VLLM_NO_USAGE_STATS": "1",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
                "UCX_TLS": "tcp,self,sm", "PYTHONHASHSEED": "0", "VLLM_ENABLE_RESPONSES_API_STORE": "1",
                "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": os.path.join(ROOT, "examples"), "BATON_KV_LIBRARY": os.path.join(BUILD, "libbaton_kv.so")}

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


def transfer_config(role, connector, folder, extra):
    config = {"kv_connector": connector, "engine_id": role,
              "kv_role": "kv_producer" if role.startswith("prefill") else "kv_consumer"}
    if connector == "ExampleConnector":
        config["kv_connector_extra_config"] = {"shared_storage_path": os.path.join(folder, "kv")}
    else:
        config["kv_buffer_device"] = "cpu"
    if connector == "BatonConnector":
        config["kv_connector_module_path"] = "vllm_connector.connector"
        config["kv_connector_extra_config"] = extra
    return config

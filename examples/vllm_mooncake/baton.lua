-- One vLLM pair over vLLM's own MooncakeConnector. Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      engine = "vllm",
      connector = "MooncakeConnector",
      workers = {
        -- bootstrap_port: VLLM_MOONCAKE_BOOTSTRAP_PORT of the prefill, 8998 where none is named
        { url = "http://127.0.0.1:8001", role = "prefill", bootstrap_port = 8998 },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

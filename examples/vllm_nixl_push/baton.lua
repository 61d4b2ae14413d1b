-- One vLLM pair where prefill pushes KV into decode over NIXL, both legs at once. Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      connector = "NixlPushConnector",
      workers = {
        {
          url = "http://127.0.0.1:8001",
          role = "prefill",
          engine_id = "p0", -- as in --kv-transfer-config; left out, the first reply teaches it
          bootstrap_port = 5600, -- VLLM_NIXL_SIDE_CHANNEL_PORT
        },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

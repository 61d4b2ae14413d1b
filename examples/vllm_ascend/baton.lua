-- One vLLM-Ascend pair over MooncakeConnectorV1 (decode pulls). Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      engine = "vllm_ascend",
      connector = "MooncakeConnectorV1",
      workers = {
        -- prefill's tp_size must be a multiple of decode's
        { url = "http://127.0.0.1:8001", role = "prefill", tp_size = 2 },
        { url = "http://127.0.0.1:8002", role = "decode", tp_size = 1 },
      },
    },
  },
}

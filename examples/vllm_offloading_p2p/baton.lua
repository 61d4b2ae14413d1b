-- One vLLM pair over OffloadingConnector with a peer-to-peer tier. Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      engine = "vllm",
      connector = "OffloadingConnector",
      workers = {
        -- where prefill's tier listens: kv_host (the url's host) and bootstrap_port (5710)
        { url = "http://127.0.0.1:8001", role = "prefill", bootstrap_port = 5710 },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

-- One vLLM pair whose KV moves through libbaton_kv, managed from here. Check it: baton check baton.lua.
-- Serve: baton run baton.lua
return {
  transfer_port = 29500,
  pools = {
    {
      name = "default",
      connector = "BatonConnector",
      workers = {
        { url = "http://127.0.0.1:8001", role = "prefill" },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

-- vLLM workers that share KV through a store: prefill fills it, decode finds it. Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      connector = "ExampleConnector", -- or LMCacheConnectorV1, SharedStorageConnector
      workers = {
        { url = "http://127.0.0.1:8001", role = "prefill" },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

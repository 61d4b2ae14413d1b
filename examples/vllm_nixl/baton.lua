-- One vLLM pair that pulls KV over NIXL. Check it: baton check baton.lua. Serve: baton run baton.lua
return {
  pools = {
    {
      name = "default",
      connector = "NixlConnector",
      workers = {
        { url = "http://127.0.0.1:8001", role = "prefill" },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

-- One SGLang pair. Check it: baton check baton.lua. Serve: baton run baton.lua
return {
  pools = {
    {
      name = "default",
      workers = {
        -- bootstrap_port: the prefill server's --disaggregation-bootstrap-port
        { url = "http://127.0.0.1:30001", role = "prefill", connector = "sglang", bootstrap_port = 8998 },
        { url = "http://127.0.0.1:30002", role = "decode", connector = "sglang" },
      },
    },
  },
}

-- Engines with a connector of their own. Check it: baton check examples/dialect/baton.lua
return {
  dialect_dir = "dialects",
  pools = {
    {
      name = "default",
      workers = {
        { url = "http://127.0.0.1:8001", role = "prefill", connector = "TelepathyConnector" },
        { url = "http://127.0.0.1:8002", role = "decode", connector = "TelepathyConnector" },
      },
    },
  },
}

-- One vLLM-Ascend pair over MooncakeLayerwiseConnector (decode first, prefill pushes). Check it: baton check baton.lua
return {
  metaserver_port = 12000, -- decode calls for its prefill here
  -- metaserver_host = "0.0.0.0", metaserver_advertise = "10.0.0.1", -- decode on another host
  pools = {
    {
      name = "default",
      engine = "vllm_ascend",
      connector = "MooncakeLayerwiseConnector",
      workers = {
        -- prefill's tp_size must be a multiple of decode's
        { url = "http://127.0.0.1:8001", role = "prefill", tp_size = 2 },
        { url = "http://127.0.0.1:8002", role = "decode", tp_size = 1 },
      },
    },
  },
}

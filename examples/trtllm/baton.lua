-- One TensorRT-LLM pair, context first. Check it: baton check baton.lua
return {
  pools = {
    {
      name = "default",
      engine = "trtllm",
      -- relay_first_token = "completions", -- a stream begins with prefill's reply: README.md
      workers = {
        { url = "http://127.0.0.1:8001", role = "prefill" },
        { url = "http://127.0.0.1:8002", role = "decode" },
      },
    },
  },
}

-- dialects.lua - the dialects that Baton ships, each with simulated workers that speak it: one line for each to be held
-- by conformance_spec and faults_matrix_spec.

local VLLM = { "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate" }
local SGLANG = { "/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate" }

-- encodes: its engines take what vLLM's encoders have made.
local function vllm(name, connector, words)
  return {
    name = name,
    engine = "vllm",
    paths = VLLM,
    worker = "connector=" .. connector .. ",ttft=1,itl=1" .. (words or ""),
    flags = { "--vllm-pd-disaggregation", "--kv-connector", connector },
    encodes = true,
  }
end

-- pushes: decode may have all KV before prefill's reply breaks.
local function layerwise()
  local row = vllm("mooncake_layerwise", "MooncakeLayerwiseConnector")
  row.flags[#row.flags + 1] = "--metaserver-port"
  row.flags[#row.flags + 1] = "0"
  row.pushes = true
  return row
end

-- A prefill that keeps nothing is in time for a decode that waits already; one that comes later waits in vain.
local function nixl_push()
  local row = vllm("nixl_push", "NixlPushConnector")
  row.without_params = { [504] = true }
  return row
end

-- MindIE, as PyMotor deploys it: prefill first, or decode first (trigger).
local function mindie(name, connector, words, flags)
  local row = vllm(name, connector, words)
  row.flags = { "--engine", "mindie", "--connector", connector }
  for _, flag in ipairs(flags or {}) do
    row.flags[#row.flags + 1] = flag
  end
  row.pushes = flags ~= nil
  row.encodes = nil
  return row
end

-- Engines that register by ZeroMQ: at the port of this flag, where Baton is built with it.
-- without_params: what comes of a prefill that keeps nothing: decode waits in vain, or (guilty) its reply is wrong.
local function registered(name, connector, port, without_params, words)
  return {
    name = name,
    engine = "vllm",
    paths = { "/v1/completions", "/v1/chat/completions" },
    worker = "connector=" .. connector .. ",ttft=1,itl=1" .. (words or ""),
    flags = { "--connector", connector, "--" .. port:gsub("_", "-"), "0" },
    registers = port,
    encodes = true,
    without_params = { [without_params] = true },
    guilty_without_params = without_params == 502,
  }
end

local all = {
  vllm("nixl", "NixlConnector"),
  nixl_push(),
  vllm("shared_cache", "ExampleConnector"),
  layerwise(),
  mindie("mindie handoff", "MooncakeConnectorV1", ",lease_ms=20000"),
  mindie("mindie trigger", "MooncakeLayerwiseConnector", "", { "--metaserver-port", "0" }),
  -- KV that nobody fetches goes by the engines' own clocks, which are shorter here.
  vllm("offloading_p2p", "OffloadingConnector", ",lease_ms=20000"),
  {
    name = "mooncake",
    engine = "vllm",
    paths = { "/v1/completions", "/v1/chat/completions", "/v1/messages", "/inference/v1/generate" },
    worker = "connector=MooncakeConnector,lease_ms=20000,ttft=1,itl=1",
    flags = { "--vllm-pd-disaggregation", "--kv-connector", "MooncakeConnector" },
    encodes = true,
  },
  {
    name = "trtllm",
    engine = "trtllm",
    paths = { "/v1/completions", "/v1/chat/completions" },
    worker = "engine=trtllm,lease_ms=20000,ttft=1,itl=1",
    flags = { "--engine", "trtllm" },
  },
  {
    name = "sglang",
    engine = "sglang",
    paths = SGLANG,
    worker = "engine=sglang,ttft=1,itl=1",
    flags = { "--pd-disaggregation" },
  },
}

if os.getenv("BATON_HAS_ZMQ") ~= "0" then
  all[#all + 1] = registered("p2p_nccl", "P2pNcclConnector", "p2p_nccl_port", 504)
  all[#all + 1] = registered("moriio", "MoRIIOConnector", "moriio_port", 504)
  all[#all + 1] = registered("moriio_read", "MoRIIOConnector", "moriio_port", 502, ",read_mode=1")
end

return all

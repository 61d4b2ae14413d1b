-- p2p_nccl - vLLM's P2pNcclConnector (up to 0.23): prefill first, then decode with the client's own body.
--
-- Nothing in the body says where the KV is: both engines read the other's address out of the request id. An id without
-- addresses ends the engine, so both must be known, and the id is ours alone. One prefill sends to one decode: a decode
-- that is chosen later would wait for KV that goes elsewhere.

local legs = require("baton.legs")

local function name(leg, edit)
  local prefill, decode = leg.prefill, leg.decode
  if not prefill.kv_address or not decode.kv_address then
    return nil, "P2pNcclConnector: a worker's KV address is not known: it has not registered"
  end
  if prefill.pp_size > 1 or decode.pp_size > 1 then
    return nil, "P2pNcclConnector cannot serve pipeline-parallel workers"
  end
  edit.header(
    "X-Request-Id",
    "___prefill_addr_" .. prefill.kv_address .. "___decode_addr_" .. decode.kv_address .. "_" .. leg.rid
  )
end

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  return name(leg, edit)
end

return {
  name = "p2p_nccl",
  kind = "sequence",
  decode_first = true,
  routes = { "/v1/completions", "/v1/chat/completions" },
  prefill = prefill,
  decode = name,
}

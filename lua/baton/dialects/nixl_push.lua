-- nixl_push - vLLM's NixlPushConnector: both legs at once, prefill writes into decode's blocks.
--
-- Decode must be told who prefill is: engine id, side channel, sizes. Where the configuration does not say, one
-- hand-off (prefill first, its reply forwarded) teaches it; until then the decode leg is refused with "unlearned".

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  handoff.name(leg, edit, leg.prefill)
  handoff.ask(edit)
end

-- Engine id and side channel port of the data-parallel rank that serves this request. Inside a data-parallel engine
-- each rank adds _dp<rank> to the id and its rank to the port; nil when it is not known which rank that will be.
local function endpoint(peer)
  local id, port = peer.engine_id, peer.bootstrap_port
  if not id or not port or peer.dp_size <= 1 then
    return id, port
  end
  if not peer.dp_rank then
    return nil
  end
  local suffix = "_dp" .. peer.dp_rank
  if id:sub(-#suffix) == suffix then
    return id, port
  end
  if peer.learned then -- learned from another rank
    return nil
  end
  return id .. suffix, port + peer.dp_rank
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  if leg.has_reply then
    handoff.forward(leg, edit)
    return
  end
  local peer = leg.prefill
  local id, port = endpoint(peer)
  if not id or not port then
    return nil, "unlearned"
  end
  edit.set(
    "kv_transfer_params",
    '{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":' .. edit.str(id)
      .. ',"remote_host":' .. edit.str(legs.reachable(peer.kv_host or peer.host, peer.host))
      .. ',"remote_port":' .. port
      .. ',"tp_size":' .. peer.tp_size
      .. ',"pp_size":' .. peer.pp_size
      .. ',"remote_request_id":' .. edit.str(leg.request_id)
      .. "}"
  )
end

return {
  name = "nixl_push",
  kind = "bootstrap",
  learns = true,
  routes = legs.VLLM_ROUTES,
  prompt_logprobs = "vllm",
  prefill = prefill,
  decode = decode,
}

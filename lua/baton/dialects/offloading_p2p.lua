-- offloading_p2p - vLLM's OffloadingConnector with a peer-to-peer tier: prefill first, decode fetches blocks by a
-- request id.
--
-- The engines return no parameters, so decode is told by the worker's configuration where prefill's tier listens:
-- kv_host and bootstrap_port (5710 where neither says so), and the rank that has the blocks, which is chosen for
-- prefill here. Blocks that decode does not find it computes itself; prefill drops what nobody has asked for in 60 s.

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local PORT = 5710 -- VLLM_P2P_SIDE_CHANNEL_PORT

local function request_id(leg, edit)
  return '"kv_request_id":' .. edit.str("kv-" .. leg.rid)
end

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  edit.remove("max_completion_tokens")
  handoff.name(leg, edit, leg.prefill)
  edit.set("kv_transfer_params", '{"remote_decoder":{' .. request_id(leg, edit) .. "}}")
end

local function decode(leg, edit)
  local peer = leg.prefill
  handoff.name(leg, edit, leg.decode)
  edit.set(
    "kv_transfer_params",
    ('{"remote_prefiller":{%s,"remote_host":%s,"remote_port":%d}}'):format(
      request_id(leg, edit),
      edit.str(legs.reachable(peer.kv_host or peer.host, peer.host)),
      (peer.bootstrap_port or PORT) + (peer.dp_rank or 0)
    )
  )
end

return {
  name = "offloading_p2p",
  kind = "sequence",
  rid = true,
  rank = true,
  routes = legs.VLLM_ROUTES,
  prefill = prefill,
  decode = decode,
}

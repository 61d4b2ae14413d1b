-- trigger.lua - kv_transfer_params of vLLM-Ascend's layer-wise connector: decode calls for prefill, which pushes to it.
--
-- Used by: dialects/mooncake_layerwise.lua, dialects/mindie.lua.
-- Why so strict: prefill trusts what decode's call says. Without an address, or for another request, it ends its engine
--          or writes into somebody else's blocks.

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local trigger = {}

local NAME = "kv_transfer_params"

-- Decode leg: where to call when there is room for the prompt.
function trigger.ask(leg, edit)
  if not leg.metaserver then
    return nil, "no metaserver"
  end
  edit.set(
    NAME,
    '{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":' .. edit.str(leg.metaserver) .. "}"
  )
end

-- Prefill leg: the call's object byte for byte, its host made reachable. set: members that are replaced too. A prompt
-- that decode has cached needs no blocks.
function trigger.forward(leg, edit, set)
  edit.forward(NAME, nil, {
    what = "decode's call",
    set = set,
    { "request_id", "text" },
    { "remote_engine_id", "text" },
    { "remote_host", "text", instead = legs.instead_of_local(edit, leg.decode.host) },
    { "remote_port", "number" },
    { "remote_block_ids", "array" },
    { "do_remote_decode", "true" },
    { "request_id", "request_id", handoff.PREFIXES[leg.path] },
  })
end

return trigger

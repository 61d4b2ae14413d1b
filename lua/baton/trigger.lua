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

-- Returns nothing when prefill may have it, else the reason why not. A prompt that decode has cached needs no blocks.
local function fault(leg, edit)
  for _, member in ipairs({ "request_id", "remote_engine_id", "remote_host" }) do
    local kind, value = edit.reply(member)
    if kind ~= "string" or value == "" then
      return member .. " is missing"
    end
  end
  if edit.reply("remote_port") ~= "number" then
    return "remote_port is missing"
  end
  if edit.reply("remote_block_ids") ~= "array" then
    return "remote_block_ids is missing"
  end
  local _, pushes = edit.reply("do_remote_decode")
  if pushes ~= true then
    return "do_remote_decode is not true"
  end
  local _, id = edit.reply("request_id")
  if not handoff.is_ours(leg, id) then
    return "request_id belongs to another request"
  end
end

-- Prefill leg: the call's object byte for byte, its host made reachable. more: members that are replaced too.
function trigger.forward(leg, edit, more)
  local why = fault(leg, edit)
  if why then
    return nil, "decode's call: " .. why
  end
  local replaced = more or {}
  local _, host = edit.reply("remote_host")
  local reachable = legs.reachable(host, leg.decode.host)
  if host ~= reachable then
    replaced.remote_host = edit.str(reachable)
  end
  edit.splice(NAME, nil, replaced)
end

return trigger

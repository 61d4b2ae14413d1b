-- by_hand - what dialects/nixl.lua says by edit.forward, done step by step: forward_test.c holds one to the other.

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local NAME = "kv_transfer_params"

local function is_ours(leg, remote_id)
  local prefix = handoff.PREFIXES[leg.path]
  local to
  if prefix then
    local name = prefix .. leg.request_id
    to = remote_id:sub(1, #name) == name and #name
  else
    to = select(2, remote_id:find(leg.request_id, 1, true))
  end
  if not to then
    return false
  end
  local after = remote_id:sub(to + 1, to + 1)
  return after == "" or after == "-" or after == "_"
end

local function has_blocks(edit)
  local i = 0
  repeat
    i = i + 1
    local kind, count = edit.reply(NAME, "remote_block_ids", i)
    if kind == "number" or (kind == "array" and count > 0) then
      return true
    end
  until kind == nil
  return false
end

local function is_text(value)
  return type(value) == "string" and value ~= ""
end

local function host_of(leg, edit)
  local pulls, engine, id, host, port, tokens = edit.scalars(NAME, "do_remote_prefill", "remote_engine_id",
    "remote_request_id", "remote_host", "remote_port", "remote_num_tokens")
  if pulls ~= true then
    return nil, "do_remote_prefill is not true"
  end
  if not has_blocks(edit) then
    return nil, "remote_block_ids is missing or empty"
  end
  if not is_text(engine) then
    return nil, "remote_engine_id is missing"
  end
  if not is_text(id) then
    return nil, "remote_request_id is missing"
  end
  if not is_text(host) then
    return nil, "remote_host is missing"
  end
  if type(port) ~= "number" then
    return nil, "remote_port is missing"
  end
  if not is_ours(leg, id) then
    return nil, "remote_request_id belongs to another request"
  end
  local expected = type(tokens) == "number" and leg.reply_prompt_tokens or 0
  if expected > 0 and tokens ~= expected then
    return nil, "remote_num_tokens is not the length of this prompt"
  end
  return host
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  local kind = edit.reply(NAME)
  if kind == nil or kind == "null" then
    return "recompute"
  end
  if kind ~= "object" then
    return nil, NAME .. " is no object"
  end
  local host, why = host_of(leg, edit)
  if not host then
    return nil, NAME .. ": " .. why
  end
  local reachable = legs.reachable(host, leg.prefill.host)
  edit.splice(NAME, NAME, host ~= reachable and { remote_host = edit.str(reachable) } or nil)
end

return {
  name = "by_hand",
  kind = "handoff",
  routes = legs.VLLM_ROUTES,
  prefill = function() end,
  decode = decode,
}

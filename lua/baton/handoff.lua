-- handoff.lua - kv_transfer_params of vLLM's pull and push connectors, from prefill's reply to the decode leg.
--
-- Used by: dialects/nixl.lua, dialects/nixl_push.lua; its names by others.
-- Why so strict: decode engines trust this object. A member that is missing, or blocks of another prompt, end the
--          engine process or give a wrong text with status 200: whatever looks partial or foreign is refused here.

local legs = require("baton.legs")

local handoff = {}

local NAME = "kv_transfer_params"

-- What prefill is asked for. Engines need do_remote_decode only; the nulls are what their own examples send.
local REQUEST = '{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
  .. '"remote_block_ids":null,"remote_host":null,"remote_port":null}'

-- Engines put the X-Request-Id behind a prefix of the route's own; elsewhere it is only somewhere inside.
local PREFIXES = {
  ["/v1/completions"] = "cmpl-",
  ["/v1/chat/completions"] = "chatcmpl-",
  ["/v1/responses"] = "resp_",
}

-- Both legs carry one id: engines build their own request ids from it, and NIXL push finds its partner by it. vLLM's
-- /v1/responses does not read the header; its id is a member of the body, and is what the client gets as response id.
-- peer: the worker that this leg goes to.
function handoff.name(leg, edit, peer)
  legs.headers(leg, edit, peer)
  if leg.path == "/v1/responses" then
    edit.set("request_id", edit.str(PREFIXES[leg.path] .. leg.request_id))
  end
end

function handoff.ask(edit)
  edit.set(NAME, REQUEST)
end

-- Is this an engine's name for the request of this leg?
function handoff.is_ours(leg, remote_id)
  local id = leg.request_id
  local from, to = remote_id:find(id, 1, true)
  local prefix = PREFIXES[leg.path]
  if not from or (prefix and (from ~= #prefix + 1 or remote_id:sub(1, #prefix) ~= prefix)) then
    return false
  end
  local after = remote_id:sub(to + 1, to + 1)
  return after == "" or after == "-" or after == "_"
end

-- [1, 2] in old releases, [[1, 2], []] (a list per cache group) since.
local function has_blocks(edit)
  local kind, count = edit.reply(NAME, "remote_block_ids")
  if kind ~= "array" then
    return false
  end
  for i = 1, count do
    local inner, inner_count = edit.reply(NAME, "remote_block_ids", i)
    if inner == "number" or (inner == "array" and inner_count > 0) then
      return true
    end
  end
  return false
end

local function text(edit, member)
  local kind, value = edit.reply(NAME, member)
  return kind == "string" and value ~= "" and value or nil
end

-- Returns nothing when the object may go to decode, else the reason why not.
local function fault(leg, edit)
  local _, pulls = edit.reply(NAME, "do_remote_prefill")
  if pulls ~= true then
    return "do_remote_prefill is not true"
  end
  if not has_blocks(edit) then
    return "remote_block_ids is missing or empty"
  end
  for _, member in ipairs({ "remote_engine_id", "remote_request_id", "remote_host" }) do
    if not text(edit, member) then
      return member .. " is missing"
    end
  end
  if edit.reply(NAME, "remote_port") ~= "number" then
    return "remote_port is missing"
  end
  if not handoff.is_ours(leg, text(edit, "remote_request_id")) then
    return "remote_request_id belongs to another request"
  end
  local kind, tokens = edit.reply(NAME, "remote_num_tokens")
  if kind == "number" and leg.reply_prompt_tokens > 0 and tokens ~= leg.reply_prompt_tokens then
    return "remote_num_tokens is not the length of this prompt"
  end
end

-- Decode leg of a hand-off: the reply's object byte for byte, its host made reachable.
function handoff.forward(leg, edit)
  local kind = edit.reply(NAME)
  if kind == nil or kind == "null" then
    return "recompute"
  end
  if kind ~= "object" then
    return nil, NAME .. " is no object"
  end
  local why = fault(leg, edit)
  if why then
    return nil, NAME .. ": " .. why
  end
  local host = text(edit, "remote_host")
  local reachable = legs.reachable(host, leg.prefill.host)
  edit.splice(NAME, NAME, host ~= reachable and { remote_host = edit.str(reachable) } or nil)
end

return handoff

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
  local prefix = PREFIXES[leg.path]
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

-- [1, 2] in old releases, [[1, 2], []] (a list per cache group) since.
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

-- The host where the blocks are when the object may go to decode, else nil and the reason why not.
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
  if not handoff.is_ours(leg, id) then
    return nil, "remote_request_id belongs to another request"
  end
  local expected = type(tokens) == "number" and leg.reply_prompt_tokens or 0
  if expected > 0 and tokens ~= expected then
    return nil, "remote_num_tokens is not the length of this prompt"
  end
  return host
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
  local host, why = host_of(leg, edit)
  if not host then
    return nil, NAME .. ": " .. why
  end
  local reachable = legs.reachable(host, leg.prefill.host)
  edit.splice(NAME, NAME, host ~= reachable and { remote_host = edit.str(reachable) } or nil)
end

return handoff

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
handoff.PREFIXES = {
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
    edit.set("request_id", edit.str(handoff.PREFIXES[leg.path] .. leg.request_id))
  end
end

function handoff.ask(edit)
  edit.set(NAME, REQUEST)
end

-- Decode leg of a hand-off: the reply's object byte for byte, its host made reachable, once it is as it must be. Blocks
-- are [1, 2] in old releases, [[1, 2], []] (a list per cache group) since.
function handoff.forward(leg, edit)
  edit.forward(NAME, NAME, {
    missing = "recompute",
    { "do_remote_prefill", "true" },
    { "remote_block_ids", "blocks" },
    { "remote_engine_id", "text" },
    { "remote_request_id", "text" },
    { "remote_host", "text", instead = legs.instead_of_local(edit, leg.prefill.host) },
    { "remote_port", "number" },
    { "remote_request_id", "request_id", handoff.PREFIXES[leg.path] },
    { "remote_num_tokens", "prompt_tokens" },
  })
end

return handoff

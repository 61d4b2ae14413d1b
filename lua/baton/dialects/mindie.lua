-- mindie - the layer-wise connector as MindIE's PyMotor dispatches it: as mooncake_layerwise, with legs of its own.
--
-- Prefill is also told min_tokens, and its parameters say again who sends, without a metaserver.

local handoff = require("baton.handoff")
local legs = require("baton.legs")
local trigger = require("baton.trigger")

local ONE_AT_LEAST = { ["/v1/completions"] = true, ["/v1/chat/completions"] = true }

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  if ONE_AT_LEAST[leg.path] then
    edit.set("min_tokens", 1)
  end
  handoff.name(leg, edit, leg.prefill)
  trigger.forward(leg, edit, {
    do_remote_decode = "true",
    do_remote_prefill = "false",
    metaserver = edit.reply("metaserver") and "null" or nil,
  })
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  return trigger.ask(leg, edit)
end

return {
  name = "mindie",
  kind = "trigger",
  room = true,
  routes = legs.VLLM_ROUTES,
  prefill = prefill,
  decode = decode,
}

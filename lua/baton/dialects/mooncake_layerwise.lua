-- mooncake_layerwise - vLLM-Ascend's MooncakeLayerwiseConnector: decode first, prefill pushes layer by layer.
--
-- Decode takes blocks for the prompt, then its engine calls the metaserver with where they are; prefill is asked with
-- that as its parameters. Both legs carry one id: prefill tells decode by it that the KV is there.

local handoff = require("baton.handoff")
local legs = require("baton.legs")
local trigger = require("baton.trigger")

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  handoff.name(leg, edit, leg.prefill)
  trigger.forward(leg, edit)
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  return trigger.ask(leg, edit)
end

return {
  name = "mooncake_layerwise",
  kind = "trigger",
  room = true,
  templates = true,
  routes = legs.VLLM_ROUTES,
  prefill = prefill,
  decode = decode,
}

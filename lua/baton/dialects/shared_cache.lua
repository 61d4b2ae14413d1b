-- shared_cache - connectors that keep KV in a store both sides read (ExampleConnector, LMCache and the like).
--
-- Prefill computes one token and stores the prompt's KV; decode then finds it by content. Nothing of prefill's reply is
-- needed and the decode leg is the client's own request.

local legs = require("baton.legs")

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  legs.headers(leg, edit, leg.prefill)
end

local function decode(leg, edit)
  legs.headers(leg, edit, leg.decode)
end

return {
  name = "shared_cache",
  kind = "sequence",
  templates = true,
  routes = legs.VLLM_ROUTES,
  prefill = prefill,
  decode = decode,
}

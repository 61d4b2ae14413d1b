-- nixl - vLLM's NixlConnector and vLLM-Ascend's MooncakeConnectorV1: prefill first, decode pulls the KV.
--
-- Prefill answers with kv_transfer_params, which go to decode as they are. Until decode has read (or refused), prefill
-- holds the blocks under a lease: a hand-off that is given up is therefore still told to decode (release).

local handoff = require("baton.handoff")
local legs = require("baton.legs")

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  handoff.name(leg, edit, leg.prefill)
  handoff.ask(edit)
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  handoff.forward(leg, edit)
end

return {
  name = "nixl",
  kind = "handoff",
  release = true,
  templates = true,
  routes = legs.VLLM_ROUTES,
  prompt_logprobs = "vllm",
  prefill = prefill,
  decode = decode,
}

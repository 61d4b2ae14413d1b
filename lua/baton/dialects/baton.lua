-- baton - BatonConnector: both legs at once, KV moves through libbaton_kv, managed by the gateway.
--
-- The gateway opens the room at the agents of both workers, so the legs carry its number and no address. When prefill
-- dies before the first byte has moved, decode waits and another prefill gets a room of its own: each leg names the
-- room that its own engine opens, and the two numbers are then not the same.

local handoff = require("baton.handoff")
local legs = require("baton.legs")

-- produces: "true" for prefill, "false" for decode.
local function name_room(leg, edit, produces)
  if not leg.room then
    return nil, "no room"
  end
  local consumes = produces == "true" and "false" or "true"
  edit.set(
    "kv_transfer_params",
    '{"do_remote_decode":' .. produces .. ',"do_remote_prefill":' .. consumes .. ',"baton_room":' .. leg.room .. "}"
  )
end

local function prefill(leg, edit)
  legs.one_token(leg, edit)
  handoff.name(leg, edit, leg.prefill)
  return name_room(leg, edit, "true")
end

local function decode(leg, edit)
  handoff.name(leg, edit, leg.decode)
  return name_room(leg, edit, "false")
end

return {
  name = "baton",
  kind = "bootstrap",
  room = true,
  gateway_managed = true,
  templates = true,
  routes = legs.VLLM_ROUTES,
  prefill = prefill,
  decode = decode,
}

-- moriio_read - vLLM's MoRIIOConnector that reads (read_mode true): prefill first, its reply goes to decode.
--
-- Prefill's id names decode, which so must be chosen before it.

local moriio = require("baton.moriio")

return {
  name = "moriio_read",
  kind = "handoff",
  decode_first = true,
  same_rank = true,
  routes = moriio.ROUTES,
  prefill = moriio.prefill,
  decode = moriio.read,
}

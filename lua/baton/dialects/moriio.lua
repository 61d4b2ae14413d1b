-- moriio - vLLM's MoRIIOConnector that writes (read_mode false, its default): both legs at once.

local moriio = require("baton.moriio")

return {
  name = "moriio",
  kind = "bootstrap",
  same_rank = true,
  routes = moriio.ROUTES,
  prefill = moriio.prefill,
  decode = moriio.write,
}

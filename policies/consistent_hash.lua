-- consistent_hash - the same key to the same workers, but nobody above a factor of the mean load.
--
-- The key is the session, else the tenant, else the first blocks of the prompt: what is sent again finds its KV
-- cache. Each key has an order of all workers of its own, and takes the first whose requests are below factor x
-- mean (Mirrokni et al., consistent hashing with bounded loads). A worker that comes or goes moves only the keys
-- that are its own.

local params = {
  factor = { type = "number", min = 1, max = 10, default = 1.25, doc = "Most that a worker gets, in mean loads." },
  prefix_blocks = { type = "integer", min = 1, max = 1024, default = 4,
    doc = "Blocks of 64 tokens that make the key when there is neither session nor tenant." },
}

local function key_of(req, ctx)
  return req.session or req.tenant or baton.prefix_key(req, ctx.params.prefix_blocks) or baton.random()
end

local function plan(req, view, ctx)
  local key, factor = key_of(req, ctx), ctx.params.factor
  local prefill = baton.bounded_hash(baton.pairable(view.prefill, view.decode), key, factor)
  if not prefill then
    return { kind = "single", worker = baton.bounded_hash(view.hybrid, key, factor) }
  end
  return { prefill = prefill, decode = baton.bounded_hash(baton.compatible(view.decode, prefill), key, factor) }
end

return { api = 2, name = "consistent_hash", version = "1.0", params = params, plan = plan }

-- sticky_then_spill - a session stays on its workers until one of them is overloaded, then this request goes where
-- the load is least.
--
-- A session's home is the first in an order of its own (rendezvous hashing), so all gateways agree and none keeps a
-- table. Overloaded: more requests than spill_factor x the mean of its side, and at least spill_requests above the
-- least loaded, so that small fleets and quiet hours stay sticky. Or the engine reports spill_waiting requests waiting.
-- A spilled session has not moved: it is back home as soon as home has room. Without a session the beginning of the
-- prompt is the key, and short prompts without either go by load.

local params = {
  spill_factor = { type = "number", min = 1, max = 100, default = 1.5,
    doc = "Home is full above this times the mean load," },
  spill_requests = { type = "integer", min = 1, max = 1000000, default = 8,
    doc = "and so far above the least loaded." },
  spill_waiting = { type = "integer", min = 1, max = 1000000, default = 16,
    doc = "Home is full when its engine reports so many waiting." },
  prefix_blocks = { type = "integer", min = 1, max = 1024, default = 4,
    doc = "Blocks of 64 tokens that make the key where there is no session." },
}

local function is_full(worker, list, p)
  if (worker.waiting or 0) >= p.spill_waiting then
    return true
  end
  local least, _, mean = baton.range(list, "requests")
  return worker.requests > mean * p.spill_factor and worker.requests >= least + p.spill_requests
end

local function choose(list, key, p, field)
  local home = key and baton.rendezvous(list, key)
  if home and not is_full(home, list, p) then
    return home
  end
  return baton.argmin(list, "requests", field)
end

local function plan(req, view, ctx)
  local p = ctx.params
  local key = req.session or baton.prefix_key(req, p.prefix_blocks)
  local prefill = choose(baton.pairable(view.prefill, view.decode), key, p, "prefill_tokens")
  if not prefill then
    return { kind = "single", worker = choose(view.hybrid, key, p, "tokens") }
  end
  return { prefill = prefill, decode = choose(baton.compatible(view.decode, prefill), key, p, "decode_tokens") }
end

return { api = 2, name = "sticky_then_spill", version = "1.0", params = params, plan = plan }

-- preble_like - exploit or explore (E2 of Preble, ICLR'25, arXiv 2407.00023), as a baseline to compare with.
--
-- Exploit: more of the prompt is cached somewhere than is new there: to that worker, the least loaded of those that
-- have as much.
-- Explore: else the least of load + new tokens. Load is what the worker was given to compute in the last window_s
-- seconds, and its requests in work. Rebalance: where the exploited worker has more than imbalance times the least
-- load, explore.
-- What differs: costs are tokens, not profiled times; what an eviction would cost is left out; decode receives its
-- KV, so there the fewest tokens decide. A hot prefix is copied by rebalancing alone.
-- Prefixes are what engines report where their events are followed (kv_events) and token ids came, else what was
-- sent.

local params = {
  window_s = { type = "number", min = 1, max = 3600, default = 180, doc = "The paper's history: three minutes." },
  imbalance = { type = "number", min = 1, max = 100, default = 2, doc = "Th_bal." },
}

local BLOCK = 64

local function start()
  return {} -- names of counters, by worker's id
end

local function name_of(worker, names)
  names[worker.id] = names[worker.id] or "preble_like/" .. worker.id
  return names[worker.id]
end

local function new_tokens(worker, req)
  return math.max(req.prompt_tokens - worker.prefix_blocks * BLOCK, 1)
end

local function load_of(worker, names, p)
  return baton.window(name_of(worker, names), 0, p.window_s) + worker.tokens
end

local function choose(list, req, names, p)
  local longest = baton.prefix_match(list, req, BLOCK)
  local exploits = longest and longest.prefix_blocks * BLOCK > new_tokens(longest, req)
  local exploit, explore, least, least_cost, idlest = nil, nil, math.huge, math.huge, math.huge
  for _, worker in ipairs(list) do
    local load = load_of(worker, names, p)
    local cost = load + new_tokens(worker, req)
    idlest = math.min(idlest, load)
    if exploits and worker.prefix_blocks == longest.prefix_blocks and load < least then
      exploit, least = worker, load
    end
    if cost < least_cost then
      explore, least_cost = worker, cost
    end
  end
  return exploit and least <= p.imbalance * math.max(idlest, req.prompt_tokens) and exploit or explore
end

local function choose_and_note(list, req, names, p)
  local worker = choose(list, req, names, p)
  if worker then
    baton.window(name_of(worker, names), new_tokens(worker, req), p.window_s)
    baton.prefix_insert(req, worker, BLOCK)
  end
  return worker
end

local function plan(req, view, ctx)
  local prefill = choose_and_note(baton.pairable(view.prefill, view.decode), req, ctx.state, ctx.params)
  if not prefill then
    return { kind = "single", worker = choose_and_note(view.hybrid, req, ctx.state, ctx.params) }
  end
  local partners = baton.compatible(view.decode, prefill)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return { api = 2, name = "preble_like", version = "1.0", params = params, start = start, plan = plan }

-- sglang_cache_aware - cache_aware of SGLang's router, with its constants, as a baseline to compare with.
--
-- Load is the number of requests in flight. Imbalanced (max - min > 64 and max > 1.5 min): the least loaded.
-- Otherwise the worker with the longest matching prefix, if more than 0.3 of the prompt matches; else the one with
-- the smallest tree, as the original does, or the least loaded, as its successors do. Each side (prefill, decode)
-- has its own trees.
-- Prefixes are what engines report where their events are followed (kv_events) and token ids came, else what was sent.
-- What differs: prefixes are compared by blocks of 64 tokens (256 bytes), not by characters, and no further than 1,024
-- blocks; among workers with the same match and the same load chance decides.

local params = {
  cache_threshold = { type = "number", min = 0, max = 1, default = 0.3, doc = "Part of a prompt that decides." },
  balance_abs_threshold = { type = "number", min = 0, default = 64, doc = "Imbalanced: max - min above this, and" },
  balance_rel_threshold = { type = "number", min = 1, default = 1.5, doc = "max above this times min." },
  on_miss = { type = "string", enum = { "smallest_tree", "least_load" }, default = "smallest_tree",
    doc = "Who gets a prompt that nobody has." },
  block_tokens = { type = "integer", min = 1, max = 1024, default = 64,
    doc = "Prefixes are compared by such blocks, 1,024 of them; the index holds 262,144." },
}

local function is_imbalanced(list, p)
  local low, high = baton.range(list, "requests")
  return high - low > p.balance_abs_threshold and high > low * p.balance_rel_threshold
end

local function choose(list, req, p)
  if is_imbalanced(list, p) then
    return baton.argmin(list, "requests")
  end
  local best, matched, total = baton.prefix_match(list, req, p.block_tokens)
  if best and matched / total > p.cache_threshold then
    return best
  end
  if p.on_miss == "least_load" then
    return baton.argmin(list, "requests", "prefix_cached")
  end
  return baton.argmin(list, "prefix_cached")
end

local function choose_and_note(list, req, p)
  if #list == 0 then
    return nil
  end
  local worker = choose(list, req, p)
  baton.prefix_insert(req, worker, p.block_tokens)
  return worker
end

local function plan(req, view, ctx)
  local prefill = choose_and_note(baton.pairable(view.prefill, view.decode), req, ctx.params)
  if not prefill then
    return { kind = "single", worker = choose_and_note(view.hybrid, req, ctx.params) }
  end
  return { prefill = prefill, decode = choose_and_note(baton.compatible(view.decode, prefill), req, ctx.params) }
end

return { api = 2, name = "sglang_cache_aware", version = "1.0", params = params, plan = plan }

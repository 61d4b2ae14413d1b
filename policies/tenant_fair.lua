-- tenant_fair - a tenant that floods the fleet leaves room for the others.
--
-- Prompt tokens are counted per tenant (the x-tenant-id header) over a sliding window that all event threads
-- share. While others are active too, a tenant above its share is confined to a part of the workers, the same ones
-- each time; everybody else chooses among all by least load, and so finds workers that the flood cannot reach.
-- Alone, a tenant may use everything.

local params = {
  share = { type = "number", min = 0, max = 1, default = 0.5, doc = "Part of all tokens that is too much." },
  part = { type = "number", min = 0.01, max = 1, default = 0.5, doc = "Part of the workers it then has (at most 64)." },
  others = { type = "number", min = 0, max = 1, default = 0.01, doc = "Part of all tokens that makes others active." },
  window_s = { type = "number", min = 1, max = 3600, default = 10, doc = "Length of the window in seconds." },
}

local MAX_PART = 64

local function is_confined(req, view, p)
  local tokens, pool = math.max(req.prompt_tokens, 1), "tenant_fair/" .. view.pool
  local all = baton.window(pool, tokens, p.window_s)
  local own = baton.window(pool .. "/" .. (req.tenant or ""), tokens, p.window_s)
  return req.tenant and own > all * p.share and all - own > all * p.others
end

local function room(list, tenant, p)
  if not tenant then
    return list
  end
  local count = math.ceil(#list * p.part)
  return baton.rendezvous(list, tenant, math.max(1, math.min(count, MAX_PART)))
end

local function plan(req, view, ctx)
  local p = ctx.params
  local tenant = is_confined(req, view, p) and req.tenant or nil
  local prefills = baton.pairable(view.prefill, view.decode)
  local prefill = baton.argmin(room(prefills, tenant, p), "prefill_tokens", "requests")
  if not prefill then
    return { kind = "single", worker = baton.argmin(room(view.single, tenant, p), "decode_tokens", "requests") }
  end
  local partners = room(baton.compatible(view.decode, prefill), tenant, p)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return { api = 1, name = "tenant_fair", version = "1.0", params = params, plan = plan }

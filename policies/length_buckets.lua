-- length_buckets - short prompts and long ones on different workers.
--
-- A long prefill makes every short one behind it wait. Label workers bucket=short, bucket=medium, bucket=long; a
-- prompt goes to the first bucket whose limit it does not exceed, and there to the least loaded. Workers without
-- the label take what has no bucket of its own; a bucket without workers hands on to the next longer one, then to
-- the shorter ones.

local NAMES = { "short", "medium", "long" }

local params = {
  short = { type = "integer", min = 1, default = 1024, doc = "Prompts of up to so many tokens are short." },
  medium = { type = "integer", min = 1, default = 8192, doc = "Longer ones, up to so many tokens, are medium." },
}

local function bucket_of(req, ctx)
  if req.prompt_tokens <= ctx.params.short then
    return 1
  end
  return req.prompt_tokens <= ctx.params.medium and 2 or 3
end

local function members(list, bucket)
  for i = bucket, #NAMES do
    local found = baton.where(list, "bucket", NAMES[i])
    if #found > 0 then
      return found
    end
  end
  local rest = baton.without(list, "bucket")
  for i = bucket - 1, 1, -1 do
    if #rest > 0 then
      break
    end
    rest = baton.where(list, "bucket", NAMES[i])
  end
  return #rest > 0 and rest or list
end

local function plan(req, view, ctx)
  local bucket = bucket_of(req, ctx)
  local prefills = baton.pairable(view.prefill, view.decode)
  local prefill = baton.argmin(members(prefills, bucket), "prefill_tokens", "requests")
  if not prefill then
    local fit = members(view.hybrid, bucket)
    local idlest = baton.argmin_sum(fit, "tokens", 1, "requests", 64)
    return { kind = "single", worker = idlest }
  end
  local partners = members(baton.compatible(view.decode, prefill), bucket)
  return { prefill = prefill, decode = baton.argmin(partners, "decode_tokens", "requests") }
end

return { api = 2, name = "length_buckets", version = "1.0", params = params, plan = plan }

-- motor_load_balance - load_balance of MindIE-PyMotor, as a baseline to compare with.
--
-- A request weighs bytes/4 x 0.0345 + 120.0745 on prefill (in tokens and again in KV), its bytes on decode; a
-- hybrid bears half of both. The lowest score wins: prefill tokens + 0.3 KV, decode tokens, hybrid tokens + 0.15
-- KV. Endpoints of one instance (the label `instance`) share: score = own + 0.05 x (sum of the instance / its
-- endpoints).
-- What differs: bytes/4 is the ledger's tokens, so ids count as ids; prefill's KV weight ends with its tokens;
-- ties are drawn.

local params = {
  endpoint_instance_score_weight = { type = "number", min = 0, max = 1, default = 0.05,
    doc = "How much the other endpoints of an instance count." },
}

local PER_TOKEN, PER_REQUEST, BYTES = 0.0345, 120.0745, 4

-- Per role: score = tokens x [1] + requests x [2].
local PREFILL = { 1.3 * PER_TOKEN, 1.3 * PER_REQUEST, field = "prefill_tokens" }
local DECODE = { BYTES, 0, field = "decode_tokens" }
local HYBRID = { 1.15 * 0.5 * (PER_TOKEN + BYTES), 1.15 * 0.5 * PER_REQUEST, field = "tokens" }

local function score(worker, role)
  return worker[role.field] * role[1] + worker.requests * role[2]
end

local function instance_of(worker)
  return worker.labels.instance or worker.id
end

local function sums(list, role)
  local sum, count = {}, {}
  for i = 1, #list do
    local instance = instance_of(list[i])
    sum[instance] = (sum[instance] or 0) + score(list[i], role)
    count[instance] = (count[instance] or 0) + 1
  end
  return sum, count
end

local function choose_by_instance(list, role, weight)
  local sum, count = sums(list, role)
  local best, least, ties = nil, math.huge, 0
  for i = 1, #list do
    local instance = instance_of(list[i])
    local value = score(list[i], role) + weight * sum[instance] / count[instance]
    if value < least then
      best, least, ties = list[i], value, 1
    elseif value == least then
      ties = ties + 1
      best = baton.random(ties) == 1 and list[i] or best
    end
  end
  return best
end

-- Without instances each worker is one of its own, and the order is that of the plain scores.
local function choose(list, role, p)
  if #baton.where(list, "instance") > 0 then
    return choose_by_instance(list, role, p.endpoint_instance_score_weight)
  end
  return baton.argmin_sum(list, role.field, role[1], "requests", role[2])
end

local function plan(_, view, ctx)
  local prefill = choose(baton.pairable(view.prefill, view.decode), PREFILL, ctx.params)
  if not prefill then
    return { kind = "single", worker = choose(view.hybrid, HYBRID, ctx.params) }
  end
  return { prefill = prefill, decode = choose(baton.compatible(view.decode, prefill), DECODE, ctx.params) }
end

return { api = 2, name = "motor_load_balance", version = "1.0", params = params, plan = plan }

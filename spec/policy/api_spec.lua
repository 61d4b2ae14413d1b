-- Is the table that the reference is made from (lua/baton/api.lua) what a policy gets? Both ways, against a real VM.
local testing = require "baton.testing"

local function fresh_table()
  return assert(loadfile "lua/baton/api.lua")()
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do
    set[name] = true
  end
  return set
end

local function field_names(fields)
  local set = {}
  for _, field in ipairs(fields) do
    set[field[1]:gsub("%?$", "")] = true
  end
  return set
end

local function compare(what, said, real, out)
  for name in pairs(said) do
    if not real[name] then
      out[#out + 1] = ("%s: %s is in the table only"):format(what, name)
    end
  end
  for name in pairs(real) do
    if not said[name] then
      out[#out + 1] = ("%s: %s is not in the table"):format(what, name)
    end
  end
end

local function functions_of(api)
  local set = {}
  for _, group in ipairs(api.groups) do
    for _, f in ipairs(group.functions) do
      set[f.name] = true
    end
  end
  return set
end

-- "math.abs", as api_names has it; baton is a builtin too, with its own list.
local function builtins_of(api)
  local set = {}
  for _, library in ipairs(api.builtins) do
    for _, member in ipairs(library.members) do
      set[(library.name ~= "" and library.name .. "." or "") .. member[1]] = true
    end
  end
  return set
end

local function without_baton(names)
  local set = {}
  for _, name in ipairs(names) do
    if not name:find "^baton%." then
      set[name] = true
    end
  end
  return set
end

local function hooks_of(api)
  local set = {}
  for _, hook in ipairs(api.hooks) do
    set[("%s, %s, %g ms"):format(hook.name, hook.kind, hook.budget_ms)] = true
  end
  return set
end

local function real_hooks(hooks)
  local set = {}
  for name, hook in pairs(hooks) do
    set[("%s, %s, %g ms"):format(name, hook.kind, hook.budget_ms)] = true
  end
  return set
end

local function policy_members(api)
  local set = field_names(api.policy.fields)
  for _, hook in ipairs(api.hooks) do
    set[hook.name] = true
  end
  return set
end

local function class_named(api, name)
  for _, class in ipairs(api.classes) do
    if class.name == name then
      return class
    end
  end
end

-- What plain tables have is seen where a policy is: it tells by handover.
local seen = testing.load_text [[
local state
local function keys(t)
  local set = {}
  for key in pairs(t) do
    set[key] = true
  end
  return set
end
local function choose(req, view, ctx)
  state.ctx = keys(ctx)
  return { prefill = view.prefill[1], decode = view.decode[1] }
end
return {
  api = 2, name = "seen", version = "1",
  start = function() state = {} return state end,
  admit = function() end,
  plan = choose,
  fallback = function(req, view, failure, ctx) state.failure = keys(failure) return nil end,
  recompute = function(req, failure, ctx)
    for key in pairs(keys(failure)) do state.failure[key] = true end
  end,
  observe = function(events) state.event = keys(events[1]) end,
  tick = function(_, view) state.advice = keys(view.advice) end,
  handover = function() return state end,
}]]

local function keys_seen()
  local workers, req = testing.workers { prefill = 1, decode = 1 }, {}
  assert.is_true(seen:admit(req))
  testing.plan(seen, workers, req)
  workers:advice { bottleneck = "both" }
  assert.is_true(seen:tick(nil, workers))
  local failure = { scope = "worker", status = 500, keep = { prefill = "p1" } }
  assert.is_table(seen:plan(workers, req, failure, {}))
  seen:fallback(workers, req, failure, { "d1" })
  assert.is_true(seen:recompute(workers, req, { scope = "attempt", made = 1, left = 1, replays = 1 }, { "d1" }))
  assert(seen:observe { {
    kind = "failed", at_ms = 1, prefill = 1, decode = 2, model = "m", session = "s", tenant = "t", status = 500,
    failure = "reset", scope = "worker", prompt_tokens = 1, cached_tokens = 1, output_tokens = 1,
    ttft_ms = 1, total_ms = 1, kept = { 1 },
  } })
  return seen:handover()
end

local function differences(api)
  local out, names, keys = {}, testing.api_names(seen), nil
  for _ = 1, 5 do -- a hook that a stalled machine has cut tells nothing
    keys = keys or keys_seen()
  end
  compare("hooks", hooks_of(api), real_hooks(names.hooks), out)
  compare("policy", policy_members(api), set_of(names.policy), out)
  compare("baton", functions_of(api), set_of(names.baton), out)
  compare("builtins", builtins_of(api), without_baton(names.globals), out)
  compare("ctx", field_names(class_named(api, "Ctx").fields), keys.ctx, out)
  compare("failure", field_names(class_named(api, "Failure").fields), keys.failure, out)
  compare("advice", field_names(class_named(api, "Advice").fields), keys.advice, out)
  compare("event", field_names(class_named(api, "Event").fields), keys.event, out)
  for _, class in ipairs(api.classes) do
    if class.names then
      compare(class.names, field_names(class.fields), set_of(names[class.names]), out)
    end
  end
  table.sort(out)
  return out
end

-- Every name of the table, as { list, index, say what it would be called in a difference }.
local function each_name(api, visit)
  for _, hook in ipairs(api.hooks) do
    visit(hook, "name")
  end
  for _, field in ipairs(api.policy.fields) do
    visit(field, 1)
  end
  for _, group in ipairs(api.groups) do
    for _, f in ipairs(group.functions) do
      visit(f, "name")
    end
  end
  for _, library in ipairs(api.builtins) do
    for _, member in ipairs(library.members) do
      visit(member, 1)
    end
  end
  for _, class in ipairs(api.classes) do
    if class.names or class.name == "Ctx" or class.kind == "event" and class.name ~= "HttpAnswer" then
      for _, field in ipairs(class.fields) do
        visit(field, 1)
      end
    end
  end
end

describe("the table of the API", function()
  local api = fresh_table()

  it("names what a policy's VM has, and nothing else", function()
    assert.are.same({}, differences(api))
  end)

  it("cannot lose or gain a name unseen", function()
    local count = 0
    each_name(fresh_table(), function()
      count = count + 1
    end)
    assert.is_true(count > 150)
    local mutant = fresh_table()
    each_name(mutant, function(holder, key)
      local name = holder[key]
      holder[key] = "zz_" .. name -- one name less, one more
      assert.is_true(#differences(mutant) >= 2, name)
      holder[key] = name
    end)
    assert.are.same({}, differences(mutant))
    mutant.hooks[2].kind = "pure"
    mutant.hooks[4].budget_ms = 3
    assert.are.equal(4, #differences(mutant))
  end)

  it("is what the generated files were made from, and a change of it is seen", function()
    local path = os.tmpname()
    local function status_of(text)
      local file = assert(io.open(path, "w"))
      file:write(text)
      file:close()
      return os.execute(("luajit spec/tools/gen_api --check --table %s 2>%s.err"):format(path, path))
    end
    local file = assert(io.open "lua/baton/api.lua")
    local text = file:read "*a"
    file:close()
    assert.are.equal(0, status_of(text))
    assert.are_not.equal(0, status_of((text:gsub('"argmin"', '"argminimum"'))))
    os.remove(path)
    os.remove(path .. ".err")
  end)

  it("ranks by the fields of a worker that are numbers", function()
    local said = {}
    for _, alias in ipairs(api.aliases) do
      if alias.name == "NumberField" then
        said = set_of(alias.values)
      end
    end
    for name in pairs(field_names(class_named(api, "Worker").fields)) do
      local policy = testing.load_text(([[
        return { api = 2, name = "rank", version = "1", plan = function(req, view)
          return { prefill = baton.argmin(view.prefill, %q), decode = view.decode[1] }
        end }]]):format(name))
      local plan, why = policy:plan(testing.workers { prefill = 1, decode = 1 })
      assert.are.equal(said[name] or false, plan ~= nil, name .. " " .. tostring(why))
    end
  end)

  it("names fields that can be read", function()
    local reads = {}
    for class, object in pairs { Request = "req", View = "view", Worker = "view.prefill[1]", Ctx = "ctx",
      Identity = "req.identity" } do
      for name in pairs(field_names(class_named(api, class).fields)) do
        if name ~= "advice" then -- tick's alone
          reads[#reads + 1] = ("local _ = %s.%s"):format(object, name)
        end
      end
    end
    local text = "return { api = 2, name = 'reads', version = '1', plan = function(req, view, ctx)\n"
      .. "do %s end\nreturn { prefill = view.prefill[1], decode = view.decode[1] } end }"
    local policy = testing.load_text(text:format(table.concat(reads, " end do ")))
    testing.plan(policy, testing.workers { prefill = 1, decode = 1 })
    policy = testing.load_text(text:format "local _ = req.modle")
    local plan, why = policy:plan(testing.workers { prefill = 1, decode = 1 })
    assert.is_nil(plan)
    assert.matches("did you mean 'model'", why)
  end)

  it("knows every member of what admit and route return, and of baton.http's table", function()
    local function admit_of(member, value)
      return testing.load_text(([[
        return { api = 2, name = "m", version = "1", plan = function() end,
          admit = function() return { %s = %s } end, route = function() return { %s = %s } end }
      ]]):format(member, value, member, value))
    end
    local values = { status = "429", retry_after = "1", reason = "'r'", limits = "{ rpm = 2 }", pool = "'p'",
      class = "'c'", key = "'k'" }
    local admission = field_names(class_named(api, "Admission").fields)
    local direction = field_names(class_named(api, "Direction").fields)
    for member, value in pairs(values) do
      local policy = admit_of(member, value)
      assert.are.equal(admission[member] or false, policy:admit {} ~= nil, member)
      assert.are.equal(direction[member] or false, policy:route {} ~= nil, member)
      admission[member], direction[member] = nil, nil
    end
    assert.are.same({}, admission)
    assert.are.same({}, direction)
  end)

  it("knows every member of what baton.http is given, and of its answer", function()
    local call = field_names(class_named(api, "HttpCall").fields)
    local values = { method = "'PUT'", headers = "{}", body = "'b'", timeout_ms = "5", zz = "1" }
    testing.network { ["http://auth/check"] = { status = 200, body = "yes", headers = { A = "b" } } }
    for member, value in pairs(values) do
      local policy = testing.load_text(([[
        return { api = 2, name = "h", version = "1", plan = function() end,
          start = function() return { seen = {} } end,
          admit = function(req, ctx)
            for key in pairs(baton.http { url = "http://auth/check", %s = %s }) do ctx.state.seen[key] = true end
          end,
          handover = function(ctx) return ctx.state.seen end }]]):format(member, value))
      assert.are.equal(call[member] or nil, policy:admit {}, member)
      if call[member] then
        assert.are.same(field_names(class_named(api, "HttpAnswer").fields), policy:handover())
      end
      call[member] = nil
    end
    assert.are.same({ url = true }, call)
  end)
end)

-- Restarts as operators and clusters do them, under load: no request is lost, and what was known of an engine ends with
-- it.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kube_api = require("gateway.support.kube_api")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")

local PATH = "/v1/completions"
local PROMPT = ("a prompt that is long enough for some blocks; "):rep(8)
local PUSH = ",connector=NixlPushConnector,ttft=2,itl=1"
local FLAGS = { "--vllm-pd-disaggregation", "--connector", "NixlPushConnector", "--health-success-threshold", "1" }

-- As least_load. `x-prefill: NAME` asks for a prefill and notes that it has the prompt; `x-has: NAME` for who has it,
-- or else NAME.
local POLICY = [[
return { api = 2, name = "rolls", version = "1", plan = function(req, view)
  local prefill = baton.argmin(view.prefill, "prefill_tokens", "requests")
  local wanted = req.headers["x-prefill"] or req.headers["x-has"]
  for _, w in ipairs(view.prefill) do
    if w.name == wanted then prefill = w end
  end
  if req.headers["x-has"] then
    prefill = baton.prefix_match(view.prefill, req, 4) or prefill
  elseif wanted then
    baton.prefix_insert(req, prefill, 4)
  end
  return { prefill = prefill, decode = baton.argmin(view.decode, "decode_tokens", "requests") }
end }
]]

describe("a rolling restart", function()
  local api, sim, gateway, port, admin_port, pods

  local function control(name, what, body)
    for _, w in ipairs(sim.list) do
      if w.name ~= name then
        local answer = http.post(w.port, ("/sim/%s?worker=%s"):format(what, name), body or "{}")
        assert.equal(200, answer.status, answer.body)
        return json.decode(answer.body)
      end
    end
  end

  local function workers()
    return json.decode(http.get(admin_port, "/workers").body).workers
  end

  -- Who serves as this pod now, or nil.
  local function worker_of(name)
    for _, w in ipairs(workers()) do
      local labels = type(w.labels) == "string" and "," .. w.labels .. "," or ""
      if w.name == name or labels:find(",pod=" .. name .. ",", 1, true) then
        return w
      end
    end
  end

  local function wait_usable(name, not_id)
    return eventually(function()
      local w = worker_of(name)
      return w and w.usable and w.id ~= not_id and w, json.encode(w or {}) .. gateway:stderr():sub(-500)
    end, 10, name .. " is usable")
  end

  local function ask(headers, body)
    return http.post(port, PATH, json.encode(body or { model = "sim", prompt = PROMPT, max_tokens = 3 }), headers)
  end

  -- Whom the prefix index names for the prompt; otherwise the one given.
  local function who_has(otherwise)
    local answer = ask({ ["x-has"] = otherwise })
    assert.equal(200, answer.status, answer.body)
    return answer:header("x-baton-prefill")
  end

  -- The prompt lies at this worker, and both loops have learned where its KV agent is.
  local function teach(w)
    for _ = 1, 4 do
      assert.equal(200, ask({ ["x-prefill"] = w.name }).status)
    end
  end

  -- Where decode's record ends, by worker.
  local function marks()
    local ends = {}
    for _, w in ipairs(sim.list) do
      local _, last = sim:requests(w.name, 1e9)
      ends[w.name] = last
    end
    return ends
  end

  -- No leg since then names that engine.
  local function assert_forgotten(engine_id, since)
    for _, w in ipairs(sim.list) do
      for _, e in ipairs(sim:requests(w.name, since[w.name])) do
        assert.is_nil(e.body and e.body:find('"' .. engine_id .. '"', 1, true), w.name .. ": " .. tostring(e.body))
      end
    end
  end

  local function engine_id(name)
    return control(name, "state").engine_id
  end

  after_each(function()
    for _, it in ipairs({ gateway or false, sim and sim.process or false, api or false }) do
      if it then
        it:stop()
      end
    end
    local told = gateway:stderr()
    assert.is_nil(told:find("Sanitizer", 1, true), told:sub(-4000))
    api, sim, gateway = nil, nil, nil
    proc.clean()
  end)

  describe("of pods", function()
    local stops -- engine ids that are no more, and where the records ended then

    local function put(name, change)
      local p = pods[name]
      for key, value in pairs(change or {}) do
        p[key] = value
      end
      local pod = kube_api.pod(name, { role = p.role, port = p.port }, { ready = p.ready, deleted = p.deleted })
      pod.metadata.uid = name .. "-" .. p.uid
      pod.status.containerStatuses = { { name = "vllm", restartCount = p.restarts, ready = p.ready ~= false } }
      api:put(pod)
    end

    local function another(name, change)
      local p = pods[name]
      pods[name] = { role = p.role, port = p.port, uid = p.uid + 1, restarts = 0, ready = true }
      put(name, change)
    end

    local function start(roles)
      api = kube_api.start()
      local words = {}
      for i, role in ipairs(roles) do
        words[i] = "role=" .. role .. PUSH
      end
      sim = fleet.start_sim(words)
      pods, stops = {}, {}
      for _, w in ipairs(sim.list) do
        pods[w.name] = { role = w.role, port = w.port, uid = 1, restarts = 0, ready = true }
        put(w.name)
      end
      local argv = { "--workers-kubernetes",
        ("namespace=llm,selector=app=vllm,api=%s,ca-file=%s"):format(api.url, api.ca_file),
        "--policy", proc.write("rolls.lua", POLICY) }
      proc.append(argv, FLAGS)
      gateway, port, admin_port = fleet.start_gateway(argv)
      for _, w in ipairs(sim.list) do
        wait_usable(w.name)
      end
      api:wait_watched()
    end

    -- Streams that run until the worker is told to go.
    local function open_streams(w)
      local streams = {}
      for i = 1, 2 do
        local headers = { ["x-prefill"] = w.role == "prefill" and w.name or nil }
        streams[i] = http.start(port, { path = PATH, headers = headers,
          body = json.encode({ model = "sim", prompt = PROMPT .. i, max_tokens = 150, stream = true }) })
      end
      for _, c in ipairs(streams) do
        c:wait_events(1)
      end
      return streams
    end

    local function wait_gone(w)
      eventually(function()
        for _, now in ipairs(workers()) do
          if now.id == w.id and now.usable then
            return false, json.encode(now)
          end
        end
        return true
      end, 10, w.name .. " is chosen no more")
    end

    local function wait_idle(name)
      eventually(function()
        local state = control(name, "state")
        return state.live == 0, state.live
      end, 10, name .. " has ended what it had")
    end

    -- Readiness false first, SIGTERM, its streams end, another one of the same name.
    local function drain(name, elsewhere, is_late)
      local w, id = wait_usable(name), engine_id(name)
      local streams = open_streams(w)
      if is_late then -- the engine hears of it before we do
        control(name, "terminate")
      else
        put(name, { ready = false })
        wait_gone(w)
      end
      put(name, { deleted = true, ready = false })
      wait_gone(w)
      if not is_late then
        control(name, "terminate")
      end
      for _, c in ipairs(streams) do
        c:wait()
        assert.truthy(c.answer.body:find("[DONE]", 1, true), c.answer.body:sub(-200))
      end
      wait_idle(name)
      local now = control(name, "restart", json.encode({ elsewhere = elsewhere }))
      sim.workers[name].port = now.port
      api:delete("llm/" .. name)
      another(name, { port = now.port })
      local fresh = wait_usable(name, w.id)
      stops[#stops + 1] = { id = id, since = marks() }
      return fresh
    end

    -- Its container dies and begins again where it was.
    local function crash(name)
      local w, id = wait_usable(name), engine_id(name)
      control(name, "restart")
      put(name, { ready = false, restarts = pods[name].restarts + 1 })
      wait_gone(w)
      put(name, { ready = true })
      local fresh = wait_usable(name, w.id)
      stops[#stops + 1] = { id = id, since = marks() }
      return fresh
    end

    -- The same while the API server is away: all that is heard of it is how it is afterwards.
    local function restart_unseen(name, is_other_pod)
      local w, id = worker_of(name), engine_id(name)
      api:order({ op = "away" })
      eventually(function()
        local s = json.decode(http.get(admin_port, "/discovery").body).sources[1]
        return s.state == "retrying", json.encode(s)
      end, 10, "the API server is away")
      control(name, "restart")
      if is_other_pod then
        api:delete("llm/" .. name)
        another(name)
      else
        put(name, { ready = false, restarts = pods[name].restarts + 1 })
        put(name, { ready = true })
      end
      api:order({ op = "back" })
      local fresh = wait_usable(name, w.id)
      api:wait_watched()
      stops[#stops + 1] = { id = id, since = marks() }
      return fresh
    end

    local function switch(name, role)
      local w = wait_usable(name)
      local answer = http.post(admin_port, ("/workers/%s/role?to=%s"):format(w.name, role), "")
      assert.equal(202, answer.status, answer.body)
      eventually(function()
        local now = worker_of(name)
        return now and now.role == role and now.usable, json.encode(now or {})
      end, 10, name .. " is " .. role)
      put(name, { role = role }) -- or its next description takes it back
      eventually(function()
        local now = worker_of(name)
        return now and now.role == role and now.usable, json.encode(now or {})
      end, 10, name .. " is described as " .. role)
    end

    it("whichever way each goes, and role switches of half of them, lose no request", function()
      start({ "prefill", "prefill", "prefill", "decode", "decode", "decode" })
      local load = pace.start(port, 16, 60, 0)
      drain("p0", true)
      drain("d0", false)
      drain("p1", false, true)
      drain("d1", true, true)
      crash("p2")
      crash("d2")
      switch("p0", "decode")
      switch("d0", "prefill")
      switch("d1", "prefill")
      restart_unseen("p1", true)
      restart_unseen("d2", false)
      drain("d0", true)
      drain("p0", false)
      local report = pace.stop(load)
      pace.say("rolls", report)
      for _, stop in ipairs(stops) do
        assert_forgotten(stop.id, stop.since)
      end
      for _, w in ipairs(workers()) do
        assert.equal("closed", w.breaker.state, w.name)
      end
    end)

    it("take a prefill away whose KV decode still waits for: that request is planned anew", function()
      start({ "prefill", "prefill", "decode" })
      for _, is_taught in ipairs({ false, true }) do
        local p0 = wait_usable("p0")
        if is_taught then
          teach(p0)
        end
        local since = marks()
        local function has_leg(name)
          for _, e in ipairs(sim:requests(name, since[name])) do
            if e.path == PATH and (name == "d0" or e["end"] == "done") then
              return true
            end
          end
          return false, #sim:requests(name, since[name])
        end
        sim:fault("d0", { kind = "hang", times = 1 })
        local c = http.start(port, { path = PATH, headers = { ["x-prefill"] = p0.name },
          body = json.encode({ model = "sim", prompt = PROMPT, max_tokens = 3 }) })
        for _, name in ipairs({ "p0", "d0" }) do
          eventually(function()
            return has_leg(name)
          end, 10, "prefill has answered and decode waits: " .. name)
        end
        crash("p0")
        c:wait()
        assert.equal(200, c.answer.status, c.answer.body)
        assert.equal("2", c.answer:header("x-baton-attempts"))
        assert.equal(fleet.expect(PROMPT, 3), json.decode(c.answer.body).choices[1].text)
      end
    end)

    it("end the breaker and the prefix index of who was there, also when nobody saw it go", function()
      start({ "prefill", "prefill", "decode", "decode" })
      for _, is_other_pod in ipairs({ true, false }) do
        local p0, p1 = wait_usable("p0"), wait_usable("p1")
        teach(p0)
        assert.equal(p0.name, who_has(p1.name))
        sim:fault("p0", { kind = "status", status = 500, times = 4294967295 })
        eventually(function()
          ask({ ["x-prefill"] = p0.name }, { model = "sim", prompt = "fails", max_tokens = 1 })
          return worker_of("p0").breaker.state == "open", json.encode(worker_of("p0").breaker)
        end, 10, "its breaker opens")
        local fresh = restart_unseen("p0", is_other_pod)
        assert.equal("closed", fresh.breaker.state)
        assert.equal(p1.name, who_has(p1.name))
        local since = marks()
        teach(fresh)
        assert.equal(fresh.name, who_has(p1.name))
        assert_forgotten(stops[#stops].id, since)
      end
    end)
  end)

  it("that nobody tells of is found by checks: engine id and prefix index are the new engine's", function()
    sim = fleet.start_sim({ "role=prefill" .. PUSH, "role=prefill" .. PUSH, "role=decode" .. PUSH })
    local argv = { "--policy", proc.write("rolls.lua", POLICY) }
    for _, list in ipairs({ FLAGS, { "--prefill", sim.list[1].url, sim.list[1].second, "--prefill", sim.list[2].url,
      sim.list[2].second, "--decode", sim.list[3].url } }) do
      proc.append(argv, list)
    end
    gateway, port, admin_port = fleet.start_gateway(argv)
    local p0 = wait_usable("p0")
    wait_usable("p1")
    wait_usable("d0")
    teach(p0)
    assert.equal("p0", who_has("p1"))
    local id = engine_id("p0")
    control("p0", "terminate")
    eventually(function()
      return worker_of("p0").health == "down", json.encode(worker_of("p0"))
    end, 10, "p0 is down")
    control("p0", "restart")
    wait_usable("p0")
    local since = marks()
    eventually(function()
      return who_has("p1") == "p1"
    end, 5, "the index has forgotten it")
    teach(p0)
    assert_forgotten(id, since)
    assert.equal("p0", who_has("p1"))
  end)
end)

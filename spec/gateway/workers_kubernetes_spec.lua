-- --workers-kubernetes: pods become workers, change, drain; an API server that is away, forgets, refuses, babbles.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local kube_api = require("gateway.support.kube_api")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")

local pod = kube_api.pod
local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local SIM = { "role=prefill,connector=NixlConnector,ttft=1", "role=decode,connector=NixlConnector,ttft=1",
  "role=decode,connector=NixlConnector,ttft=1" }

describe("baton run --workers-kubernetes", function()
  local api, sim, gateway, port, admin_port

  -- what: more words of the option; flags: of the gateway.
  local function start(what, flags, env)
    sim = sim or fleet.start_sim(SIM)
    local given = ("namespace=llm,selector=app=vllm,api=%s%s%s"):format(api.url,
      api.url:find("^https") and ",ca-file=" .. api.ca_file or "", what and "," .. what or "")
    local argv = { "--vllm-pd-disaggregation", "--workers-kubernetes", given }
    proc.append(argv, flags)
    gateway, port, admin_port = fleet.start_gateway(argv, { env = env })
  end

  local function label(w, name)
    return ("," .. w.labels .. ","):match("," .. name .. "=([^,]*),")
  end

  local function workers()
    local by_pod = {}
    for _, w in ipairs(json.decode(http.get(admin_port, "/workers").body).workers) do
      by_pod[label(w, "pod")] = w
    end
    return by_pod
  end

  -- "d0 p1": the pods whose workers are usable.
  local function usable()
    local names = {}
    for name, w in pairs(workers()) do
      if w.usable then
        names[#names + 1] = name
      end
    end
    table.sort(names)
    return table.concat(names, " ")
  end

  local function wait_usable(wanted)
    eventually(function()
      local now = usable()
      return now == wanted, now .. "\n" .. gateway:stderr():sub(-800)
    end, 10, "usable workers are: " .. wanted)
  end

  local function source()
    return json.decode(http.get(admin_port, "/discovery").body).sources[1]
  end

  local function wait_source(what, look)
    return eventually(function()
      local s = source()
      return look(s) and s, json.encode(s)
    end, 20, what)
  end

  local function serves()
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
  end

  local function pods()
    return pod("p0", sim.list[1]), pod("d0", sim.list[2]), pod("d1", sim.list[3])
  end

  local function start_with_pods(what, flags)
    api = api or kube_api.start()
    sim = fleet.start_sim(SIM)
    api:put(pods())
    start(what, flags)
    wait_usable("d0 d1 p0")
    api:wait_watched()
  end

  after_each(function()
    for _, it in ipairs({ gateway or false, sim and sim.process or false, api or false }) do
      if it then
        it:stop()
      end
    end
    api, sim, gateway = nil, nil, nil
    proc.clean()
  end)

  describe("pods", function()
    it("come, get ready, change, drain and go", function()
      api = kube_api.start()
      sim = fleet.start_sim(SIM)
      local p0, d0, d1 = pods()
      api:put(p0, pod("d0", sim.list[2], { ready = false }), pod("x", sim.list[3], { namespace = "other" }),
        pod("y", sim.list[3], { labels = { app = "else" } }))
      start()
      wait_usable("p0")
      local told = workers().p0
      assert.equal("kubernetes", told.sources[1].source)
      assert.equal("node-1", label(told, "node"))
      assert.equal("prefill", told.role)
      assert.same({ ready = 1, not_ready = 1, terminating = 0, ended = 0, refused = 0 }, source().pods)
      api:put(d0, d1)
      wait_usable("d0 d1 p0")
      serves()
      assert.truthy(http.get(admin_port, "/metrics").body:find(
        'baton_kubernetes_pods{source="' .. api.url .. ' llm app=vllm",state="ready"} 3', 1, true))
      -- Another description is another worker; one without a change is the same.
      local id, other = workers().d0.id, workers().d1.id
      d0.metadata.annotations = { ["baton/zone"] = "b", ["baton/tp-size"] = "4" }
      d1.metadata.annotations = { ["kubectl.kubernetes.io/restartedAt"] = "now" }
      api:put(d1, d0)
      eventually(function()
        local w = workers()
        return w.d0.zone == "b" and w.d0.tp_size == 4 and w.d0.id ~= id and w.d1.id == other, json.encode(w)
      end, 10, "d0 is described anew, d1 is as it was")
      -- No new requests to a terminating one; what it has, it ends.
      local stream = '{"model":"sim","prompt":"one two three","max_tokens":200,"stream":true}'
      local open = {}
      for i = 1, 4 do
        open[i] = http.start(port, { path = "/v1/completions", body = stream })
      end
      for _, c in ipairs(open) do
        c:wait_events(1)
      end
      local legs = 0
      for _, r in ipairs(sim:requests(sim.list[3].name)) do
        legs = legs + (r.path == "/v1/completions" and 1 or 0)
      end
      assert.truthy(legs > 0)
      api:put(pod("d1", sim.list[3], { deleted = true }))
      wait_usable("d0 p0")
      assert.equal(1, source().pods.terminating)
      for _, c in ipairs(open) do
        c:wait()
        assert.truthy(c.answer.body:find("[DONE]", 1, true))
      end
      api:delete("llm/d1")
      wait_source("d1 is gone", function(s)
        return s.pods.terminating == 0 and s.pods.ready == 2
      end)
      serves()
      -- Labels that the selector does not choose any more, and a pod that has ended.
      api:put(pod("d0", sim.list[2], { labels = { app = "else", ["llm-d.ai/role"] = "decode" } }))
      wait_usable("p0")
      api:put(pod("p0", sim.list[1], { phase = "Failed" }))
      wait_usable("")
      assert.equal(1, source().pods.ended)
    end)

    it("that are deleted in two steps: their requests go on in between, and nobody waits for the dead", function()
      start_with_pods()
      sim:fault(sim.list[3].name, { kind = "stall", after_chunks = 3, path = "/v1/completions", times = 100 })
      local stream = '{"model":"sim","prompt":"one two three","max_tokens":20,"stream":true}'
      local held = {}
      local function legs()
        local count = 0
        for _, w in ipairs({ workers().d1.ledger.decode, workers().d0.ledger.decode }) do
          count = count * 100 + w.requests
        end
        return count
      end
      eventually(function() -- d0 answers what it gets
        held[#held + 1] = http.start(port, { path = "/v1/completions", body = stream })
        held[#held]:wait_events(1)
        return legs() >= 100
      end, 10, "d1 has a request, which it will never answer")
      eventually(function()
        return legs() % 100 == 0
      end, 10, "d0 has answered")
      api:put(pod("d1", sim.list[3], { deleted = true }))
      wait_usable("d0 p0")
      wait_source("it is terminating", function(s)
        return s.pods.terminating == 1
      end)
      api:delete("llm/d1")
      local cut = 0
      for _, c in ipairs(held) do
        c:wait() -- the deadline of a stream that stands still is a minute
        cut = cut + (c.answer.body:find("worker is lost", 1, true) and 1 or 0)
      end
      assert.truthy(cut > 0)
      serves()
    end)

    it("take an address over from those that had it", function()
      start_with_pods()
      local id = workers().d1.id
      api:put(pod("d2", sim.list[3]))
      wait_usable("d0 d2 p0")
      assert.are_not.equal(id, workers().d2.id)
      api:put(pod("d1", sim.list[3], { phase = "Succeeded" }))
      api:delete("llm/d1")
      wait_source("d1 is gone", function(s)
        return s.pods.ready == 3 and s.pods.ended == 0
      end)
      wait_usable("d0 d2 p0")
    end)

    it("are one worker each whoever finds them: the first option's word counts while it lasts", function()
      api = kube_api.start()
      sim = fleet.start_sim(SIM)
      local p0, d0 = pods()
      api:put(p0, d0)
      start("zone=first", { "--workers-kubernetes",
        ("namespace=llm,selector=team=a,api=%s,zone=second,ca-file=%s"):format(api.url, api.ca_file) })
      wait_usable("d0 p0")
      local function in_both(name, w)
        return pod(name, w, { labels = { app = "vllm", team = "a", ["llm-d.ai/role"] = w.role } })
      end
      api:put(in_both("d1", sim.list[3]), in_both("p0", sim.list[1]))
      wait_usable("d0 d1 p0")
      eventually(function()
        local sources = json.decode(http.get(admin_port, "/discovery").body).sources
        return #sources == 2 and sources[1].pods.ready == 3 and sources[2].pods.ready == 2, json.encode(sources)
      end, 10, "both know their pods")
      local now = workers()
      assert.equal("first", now.p0.zone)
      assert.equal("first", now.d1.zone)
      assert.equal(3, json.decode(http.get(admin_port, "/workers").body).total)
      local only_second = { app = "else", team = "a", ["llm-d.ai/role"] = "decode" }
      api:put(pod("d1", sim.list[3], { labels = only_second })) -- the first selector no longer chooses it
      eventually(function()
        local w = workers().d1
        return w and w.zone == "second" and w.usable, http.get(admin_port, "/workers").body
      end, 10, "the second one's word counts")
      serves()
      api:delete("llm/d1")
      wait_usable("d0 p0")
    end)

    it("that cannot be workers are named with the reason", function()
      api = kube_api.start()
      sim = fleet.start_sim(SIM)
      local p0, d0 = pods()
      local two = { { name = "a", containerPort = 1 }, { name = "b", containerPort = 2 } }
      api:put(p0, d0, pod("no-role", sim.list[3], { labels = {} }),
        pod("no-port", sim.list[3], { ports = two }),
        pod("bad-key", sim.list[3], { annotations = { ["baton/rolle"] = "x" } }),
        pod("bad-value", sim.list[3], { annotations = { ["baton/tp-size"] = "many" } }),
        pod("bad-role", sim.list[3], { labels = { ["llm-d.ai/role"] = "router" } }),
        pod("bad-connector", sim.list[3], { annotations = { ["baton/connector"] = "NixlConector" } }),
        pod("bad-url", sim.list[3], { ip = "not an address" }))
      start()
      wait_usable("d0 p0")
      local wanted = {
        ["llm/no-role"] = "no role: label it baton/role or llm%-d%.ai/role",
        ["llm/no-port"] = "no port: annotate baton/port",
        ["llm/bad-key"] = "baton/rolle: there is no such key",
        ["llm/bad-value"] = "baton/tp%-size: expected a whole number from 1 to 65535, got \"many\"",
        ["llm/bad-role"] = "llm%-d%.ai/role: expected one of prefill, decode, hybrid, encode",
        ["llm/bad-connector"] = "connector \"NixlConector\": .*did you mean",
        ["llm/bad-url"] = "not an address",
      }
      local s = wait_source("seven are refused", function(s)
        return s.pods.refused == 7
      end)
      for _, r in ipairs(s.refused) do
        assert.truthy(r.why:find(wanted[r.pod]), r.pod .. ": " .. r.why)
        local _, times = gateway:stderr():gsub("pod " .. r.pod:gsub("%-", "%%-") .. " is no worker: ", "")
        assert.equal(1, times, r.pod)
      end
      -- Mended, it serves; spoilt again, it does not.
      api:put(pod("bad-connector", sim.list[3]))
      wait_usable("bad-connector d0 p0")
      api:put(pod("bad-connector", sim.list[3], { annotations = { ["baton/connector"] = "NixlConector" } }))
      wait_usable("d0 p0")
      serves()
    end)

    it("are described by what other routers read, by the flag, and by the pod before it", function()
      api = kube_api.start({ plain = true })
      sim = fleet.start_sim(SIM)
      local ports = { { name = "metrics", containerPort = 9 }, { name = "api", containerPort = sim.list[1].port } }
      api:put(pod("one", nil, { labels = {}, ports = ports }),
        pod("two", nil, { labels = { ["llm-d.ai/role"] = "decode", ["topology.kubernetes.io/zone"] = "z" },
          annotations = {
          ["baton/port"] = tostring(sim.list[2].port), ["sglang.ai/bootstrap-port"] = "7001",
          ["sglang.ai/transfer-group"] = "g", ["baton/labels"] = "tier=gold",
          ["baton/models"] = "a,b", ["baton/name"] = "second" } }),
        pod("four", nil, { labels = { ["llm-d.ai/role"] = "both" },
          annotations = { ["smg.ai/worker-ports"] = "81,82" } }))
      start("role=prefill,port=api,zone=y,bootstrap-port=7000")
      wait_source("all are workers", function(s)
        return s.pods.ready == 3
      end)
      local list = eventually(function()
        local all = json.decode(http.get(admin_port, "/workers").body).workers
        return #all == 4 and all, #all
      end, 10, "four workers")
      local by_url = {}
      for _, w in ipairs(list) do
        by_url[w.url] = w
      end
      local one = by_url["http://127.0.0.1:" .. sim.list[1].port]
      assert.same({ "prefill", "y", 7000 }, { one.role, one.zone, one.bootstrap_port })
      local two = by_url["http://127.0.0.1:" .. sim.list[2].port]
      assert.same({ "second", "decode", "z", 7001, "g", "gold", "two" }, { two.name, two.role, two.zone,
        two.bootstrap_port, two.transfer_group, label(two, "tier"), label(two, "pod") })
      assert.same({ "a", "b" }, two.models)
      assert.equal("hybrid", by_url["http://127.0.0.1:81"].role)
      assert.equal("hybrid", by_url["http://127.0.0.1:82"].role)
    end)
  end)

  describe("an API server", function()
    it("that is away twice under load costs no request, and is followed from where it was", function()
      start_with_pods()
      local load = pace.start(port, 16, 100, 0)
      for round = 1, 2 do
        api:order({ op = "away" })
        wait_source("it is away", function(s)
          return s.state == "retrying" and s.why ~= nil
        end)
        assert.equal(round == 1 and "d0 d1 p0" or "d0 p0", usable())
        assert.truthy(http.get(admin_port, "/metrics").body:find("baton_kubernetes_watching{[^\n]*} 0"))
        -- What happens meanwhile is told by the watch that goes on.
        if round == 1 then
          api:put(pod("d1", sim.list[3], { deleted = true }))
        else
          api:put(pod("d1", sim.list[3]))
        end
        api:order({ op = "back" })
        wait_usable(round == 1 and "d0 p0" or "d0 d1 p0")
      end
      assert.equal(1, source().lists)
      assert.truthy(gateway:stderr():find("3 pods stay as they are, asked again", 1, true))
      assert.truthy(gateway:stderr():find("the API server answers again", 1, true))
      pace.stop(load)
    end)

    it("that has forgotten the version is listed anew, whichever way it says so", function()
      start_with_pods()
      for round, way in ipairs({ "event", "status" }) do
        api:set({ gone_as = way })
        api:order({ op = "away" })
        wait_source("it is away", function(s)
          return s.state == "retrying"
        end)
        -- Gone without an event that anybody could hear.
        if round == 1 then
          api:delete("llm/d1")
        else
          api:put(pod("d1", sim.list[3]))
        end
        api:put(pod("d0", sim.list[2]))
        api:order({ op = "compact" })
        api:order({ op = "back" })
        wait_usable(round == 1 and "d0 p0" or "d0 d1 p0")
        assert.equal(round + 1, source().lists)
      end
      serves()
    end)

    it("that talks nonsense, ends in the middle, or stalls is asked again", function()
      start_with_pods()
      local faults = { "garbage", "nonsense", "cut", "error", "slow", "end", "half" }
      for i, fault in ipairs(faults) do
        api:wait_watched()
        local before = source()
        api:fault(fault)
        if fault ~= "slow" then
          wait_source(fault .. " ends the watch", function(s)
            return s.watches > before.watches or s.failures > before.failures
          end)
        end
        api:put(pod("d1", sim.list[3], { ready = i % 2 == 0 }))
        wait_usable(i % 2 == 0 and "d0 d1 p0" or "d0 p0")
      end
      serves()
    end)

    it("gets a renewed token, and is asked ever less often while it refuses", function()
      api = kube_api.start()
      local token_file = proc.write("token", "first\n")
      api:set({ tokens = { "first" } })
      start_with_pods("token-file=" .. token_file)
      proc.replace(token_file, "second")
      api:set({ tokens = { "second" } })
      api:fault("cut")
      api:wait_watched()
      api:put(pod("d1", sim.list[3], { deleted = true }))
      wait_usable("d0 p0")
      -- Nobody's token any more: refused, told, what is known stays.
      api:set({ tokens = { "third" } })
      api:fault("cut")
      local s = wait_source("it is refused", function(s)
        return s.why and s.why:find("401", 1, true) ~= nil and s.failures > 1
      end)
      assert.truthy(s.why:find("watch is answered 401: Unauthorized", 1, true), s.why)
      assert.equal("d0 p0", usable())
      assert.truthy(#(api:seen()) < 20)
      assert(os.remove(token_file))
      wait_source("there is none", function(now)
        return now.why and now.why:find("No such file or directory", 1, true) ~= nil
      end)
      proc.replace(token_file, "third\n")
      wait_source("it is well", function(now)
        return now.state == "watching"
      end)
    end)

    it("that is overloaded or broken is given time", function()
      api = kube_api.start()
      sim = fleet.start_sim(SIM)
      api:put(pods())
      api:set({ refusals = { 429, 500, 403 } })
      start()
      wait_usable("d0 d1 p0")
      assert.equal(3, source().failures)
      api:set({ refusals = { 503, 503, 503 } })
      api:fault("cut")
      wait_source("it watches again", function(s)
        return s.state == "watching" and s.failures >= 7 and s.lists == 2
      end)
      -- Refused so often, the version may be what is wrong: it is listed anew.
      serves()
    end)

    it("with another CA is not believed", function()
      api = kube_api.start()
      sim = fleet.start_sim(SIM)
      api:put(pods())
      api.ca_file = "/etc/ssl/certs/ca-certificates.crt"
      if not proc.read(api.ca_file) then
        return pending("no CAs of the system here")
      end
      start()
      local s = wait_source("it fails", function(s)
        return s.failures > 0
      end)
      assert.truthy(s.why:find("certificate", 1, true), s.why)
      assert.equal("", usable())
    end)
  end)

  it("is told of this cluster by the environment", function()
    api = kube_api.start()
    local binary = fleet.binary("BATON_BIN", "baton")
    for _, bad in ipairs({
      { "selector=app=vllm", "no KUBERNETES_SERVICE_HOST" },
      { "namespace=llm,tier=gpu", "unknown key \"tier\"" },
      { "namespace=llm,selektor=a=b", "did you mean \"selector\"" },
      { "namespace=llm,role=router", "role: expected one of" },
      { "namespace=llm,pool=nope", "there is no pool \"nope\"" },
      { "namespace=LLM", "namespace: expected lower%-case" },
      { "namespace=llm,namespace=b", "namespace is said twice" },
      { "namespace=llm,api=127.0.0.1:6443", "api: expected https://HOST:PORT" },
      { "api=https://127.0.0.1:6443", "namespace: missing" },
    }) do
      local code, out, err = proc.run({ binary, "run", "--port", "0", "--admin-port", "0", "--workers-kubernetes",
        bad[1] })
      assert.equal(2, code, out .. err)
      assert.truthy((out .. err):find("%-%-workers%-kubernetes: .*" .. bad[2]), out .. err)
    end
    -- Token and CA of the service account are files of this image; here they are named.
    sim = fleet.start_sim(SIM)
    api:set({ tokens = { "mine" } })
    api:put(pods())
    gateway, port, admin_port = fleet.start_gateway({ "--vllm-pd-disaggregation", "--workers-kubernetes",
      ("namespace=llm,selector=app in (vllm,x),token-file=%s,ca-file=%s"):format(proc.write("token", "mine"),
        api.ca_file) },
      { env = { KUBERNETES_SERVICE_HOST = "127.0.0.1", KUBERNETES_SERVICE_PORT = tostring(api.port) } })
    wait_usable("d0 d1 p0")
    serves()
    -- Another source's word is its own: SIGHUP keeps pods, and what the configuration says of them counts anew.
    gateway:kill(proc.SIGHUP)
    gateway:says("reloaded: epoch")
    serves()
    wait_usable("d0 d1 p0")
  end)

  it("follows 2,000 pods and 200 changes a second", function()
    local count = 2000
    api = kube_api.start()
    local labels = { app = "vllm", ["llm-d.ai/role"] = "decode" }
    api:order({ op = "many", count = count, namespace = "llm", pad = 150, labels = labels })
    sim = fleet.start_sim(SIM)
    start(nil, { "--disable-health-check" })
    local function all_there()
      local body = http.get(admin_port, "/metrics").body
      return body:find('state="ready"} ' .. count .. "\n", 1, true) ~= nil, body:match("baton_kubernetes_pods[^\n]*")
    end
    eventually(all_there, 30, "all pods are known")
    local pages = 0
    for _, call in ipairs((api:seen())) do
      pages = pages + (call.limit == "500" and 1 or 0)
    end
    assert.equal(4, pages)
    api:order({ op = "churn", count = count, namespace = "llm", rate = 200, seconds = 3, restore = true,
      labels = labels })
    eventually(all_there, 30, "all pods are known after the changes")
    assert.equal(1, source().lists)
    eventually(function()
      local text = http.get(admin_port, "/workers").body
      local _, workers_now = text:gsub('"sources":', "")
      return workers_now == count, workers_now
    end, 30, "they are workers")
  end)
end)

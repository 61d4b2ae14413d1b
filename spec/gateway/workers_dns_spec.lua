-- --workers-dns: workers behind DNS names, before a name server that is wrong in every way (support/dns.lua).

local dns = require("gateway.support.dns")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local free_port = require("gateway.support.port").free
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local pace = require("gateway.support.pace")
local proc = require("gateway.support.proc")

local BODY = '{"model":"sim","prompt":"hello there","max_tokens":3}'
local QUICK = { "--dns-min-secs", "0.1", "--dns-max-secs", "0.2" }

local function has_v6()
  local listener = require("socket").tcp6()
  local ok = listener and listener:bind("::1", 0)
  if listener then
    listener:close()
  end
  return ok ~= nil
end

describe("baton run --workers-dns", function()
  local sims, server, gateway, port, admin_port

  -- One process each, at the same port of addresses of their own; words: of all, or by host.
  local function start_sims(hosts, words)
    local number = free_port()
    for _, host in ipairs(hosts) do
      local more = type(words) == "table" and words[host] or words or "role=hybrid,ttft=1"
      sims[host] = fleet.start_sim({ ("host=%s,port=%d,%s"):format(host, number, more) })
    end
    return number
  end

  local function start(words, ...)
    local argv = { "--dns-servers", server.address }
    for _, list in ipairs({ ... }) do
      proc.append(argv, list)
    end
    proc.append(argv, words)
    gateway, port, admin_port = fleet.start_gateway(argv)
  end

  local function workers()
    return json.decode(http.get(admin_port, "/workers").body).workers
  end

  local function sources(w)
    local out = {}
    for _, s in ipairs(w.sources) do
      assert.truthy(s.since:match("^%d+%-%d+%-%d+T[%d:.]+Z$"), s.since)
      out[#out + 1] = s.source
    end
    return table.concat(out, " ")
  end

  -- { ["http://127.0.0.2:8000"] = worker, ... }
  local function by_url()
    local out = {}
    for _, w in ipairs(workers()) do
      out[w.url] = w
    end
    return out
  end

  -- Exactly these urls, and of these sources (dns).
  local function wait_urls(urls, words)
    return eventually(function()
      local now, count = by_url(), 0
      for _ in pairs(now) do
        count = count + 1
      end
      local same = count == #urls
      for _, url in ipairs(urls) do
        same = same and now[url] ~= nil and sources(now[url]) == (words or "dns") and now[url].usable
      end
      return same and now, http.get(admin_port, "/workers").body .. gateway:stderr():sub(-2000)
    end, 10, "the workers are " .. table.concat(urls, " "))
  end

  local function urls(number, ...)
    local out = {}
    for _, host in ipairs({ ... }) do
      out[#out + 1] = ("http://%s:%d"):format(host, number)
    end
    return out
  end

  -- Of a name, whatever its port.
  local function lookups(name, result)
    local text = http.get(admin_port, "/metrics").body
    local pattern = ('baton_dns_lookups_total{name="%s:?%%d*",pool="[^"]*",result="%s"} (%%d+)'):format(
      name:gsub("%p", "%%%0"), result)
    return tonumber(text:match(pattern) or 0)
  end

  -- So many more lookups of this kind have ended.
  local function wait_lookups(name, result, count)
    local before = lookups(name, result)
    eventually(function()
      local text = http.get(admin_port, "/metrics").body
      return lookups(name, result) >= before + count, text:match("baton_dns_lookups.-# HELP")
    end, 15, ("%d lookups of %s are %s"):format(count, name, result))
  end

  -- A sanitizer's findings are exit codes too.
  local function stop_gateway()
    local code = gateway:stop(10)
    assert.equal(0, code, gateway:stderr():sub(-3000))
    gateway = nil
  end

  local function serves()
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status, answer.body)
  end

  before_each(function()
    sims = {}
  end)

  after_each(function()
    if gateway then
      stop_gateway()
    end
    for _, sim in pairs(sims) do
      sim.process:stop()
    end
    if server then
      server:stop()
    end
    server = nil
    proc.clean()
  end)

  it("serves by all addresses of a name, under names that stay and tell no address", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3" })
    server = dns.start({ ["p.test"] = { A = { "127.0.0.2", "127.0.0.3" } } })
    start({ "--workers-dns", "name=p.test,port=" .. number .. ",zone=a" }, QUICK)
    local both = urls(number, "127.0.0.2", "127.0.0.3")
    local now = wait_urls(both)
    local name, id = now[both[1]].name, now[both[1]].id
    assert.truthy(name:find("^hybrid%-%x%x%x%x%x%x%x%x%x%x$"), name)
    assert.equal("a", now[both[1]].zone)
    serves()
    server:set({ ["p.test"] = { A = { "127.0.0.3", "127.0.0.2" } } }) -- in another order
    wait_lookups("p.test", "ok", 2)
    assert.equal(id, by_url()[both[1]].id)
    local answer = http.request(admin_port, { method = "DELETE", path = "/workers/" .. name })
    assert.equal(409, answer.status, answer.body)
    assert.truthy(answer.body:find("named by: dns", 1, true), answer.body)
    local code, out = proc.run({ fleet.binary("BATON_BIN", "baton"), "fleet", "--admin",
      "http://127.0.0.1:" .. admin_port, "workers", "list" })
    assert.equal(0, code)
    assert.truthy(out:find(name:gsub("%-", "%%-") .. " +http[^\n]+ dns +%d+%-%d+%-%d+T"), out)
    stop_gateway()
    start({ "--workers-dns", "name=p.test,port=" .. number }, QUICK)
    assert.equal(name, wait_urls(both)[both[1]].name)
  end)

  it("loses no worker that answers, and no request, while DNS is wrong", function()
    local hosts = { "127.0.0.2", "127.0.0.3", "127.0.0.4" }
    local number = start_sims(hosts)
    local good = { A = hosts }
    server = dns.start({ ["p.test"] = good })
    start({ "--workers-dns", "name=p.test,port=" .. number, "--dns-hold-secs", "600" }, QUICK)
    local all = urls(number, unpack(hosts))
    local before = wait_urls(all)
    local load = pace.start(port, 4, 100, 0)
    for _, wrong in ipairs({
      { "ok", { A = { hosts[1], hosts[3] } } },
      { "ok", { A = { hosts[2] } } },
      { "empty", { fault = "empty" } },
      { "failed", { fault = "servfail" } },
      { "nxdomain", nil },
      { "failed", { fault = "refused" } },
      { "malformed", { fault = "garbage" } },
      { "timeout", { fault = "silent" } },
      { "ok", { A = { hosts[3] }, fault = "truncated" } },
    }) do
      server:set({ ["p.test"] = wrong[2] })
      wait_lookups("p.test", wrong[1], wrong[1] == "timeout" and 1 or 3)
      for url, w in pairs(wait_urls(all)) do
        assert.equal(before[url].id, w.id, wrong[1])
      end
      server:set({ ["p.test"] = good })
      wait_lookups("p.test", "ok", 2)
    end
    for url, w in pairs(wait_urls(all)) do
      assert.equal(before[url].id, w.id)
    end
    pace.stop(load)
    local log = gateway:stderr()
    local _, told = log:gsub("p%.test: there is no such name; what is known of it stays %(3%)", "")
    assert.equal(1, told, log)
    assert.equal(3, fleet.metric(admin_port,
      ('baton_dns_addresses{name="p.test:%d",pool="default",state="named"}'):format(number)))
  end)

  it("drains who is not named for the hold time, and cuts nothing", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3" }, "role=hybrid,ttft=1,itl=30")
    server = dns.start({ ["p.test"] = { A = { "127.0.0.2" } } })
    start({ "--workers-dns", "name=p.test,port=" .. number, "--dns-hold-secs", "0.3" }, QUICK)
    wait_urls(urls(number, "127.0.0.2"))
    local stream = http.start(port, {
      path = "/v1/completions", body = '{"model":"sim","prompt":"a long one","max_tokens":200,"stream":true}',
    })
    local answer = stream:wait_events(1)
    server:set({ ["p.test"] = { A = { "127.0.0.3" } } })
    wait_urls(urls(number, "127.0.0.3"))
    stream:pump()
    assert.falsy(answer.done)
    gateway:says("127.0.0.2:" .. number .. " is missing from the answers")
    stream:wait(function()
      return answer.done
    end, 20)
    assert.equal(200, answer.status)
    assert.truthy(answer.body:find("data: [DONE]", 1, true), answer.body:sub(-300))
    assert.truthy(answer.body:find('"finish_reason":"length"', 1, true), answer.body:sub(-600))
    serves()
  end)

  it("lets who is down and not named go at once, and while nobody is named after the hold time", function()
    local hosts = { "127.0.0.2", "127.0.0.3", "127.0.0.4" }
    local number = start_sims(hosts)
    server = dns.start({ ["p.test"] = { A = hosts } })
    start({ "--workers-dns", "name=p.test,port=" .. number, "--dns-hold-secs", "600" }, QUICK)
    wait_urls(urls(number, unpack(hosts)))
    sims[hosts[1]].process:stop()
    server:set({ ["p.test"] = { A = { hosts[2], hosts[3] } } })
    wait_urls(urls(number, hosts[2], hosts[3]))
    stop_gateway()
    start({ "--workers-dns", "name=p.test,port=" .. number, "--dns-hold-secs", "0.5" }, QUICK)
    wait_urls(urls(number, hosts[2], hosts[3]))
    sims[hosts[2]].process:stop()
    server:set({ ["p.test"] = { fault = "empty" } })
    wait_urls(urls(number, hosts[3]))
    wait_lookups("p.test", "empty", 5) -- the last one passes its checks: it stays for good
    wait_urls(urls(number, hosts[3]))
    serves()
  end)

  it("knows SRV targets by their names: other ports, weights, addresses that cannot be had", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3" })
    local other = start_sims({ "127.0.0.4" })
    local zone = {
      ["_http._tcp.p.test"] = { SRV = { { "pod-0.p.test", number }, { "10-0-0-7.p.test", number } } },
      ["pod-0.p.test"] = { A = { "127.0.0.2" } }, ["10-0-0-7.p.test"] = { A = { "127.0.0.3" } },
    }
    server = dns.start(zone)
    start({ "--workers-dns", "srv=_http._tcp.p.test", "--dns-hold-secs", "0.3" }, QUICK)
    local first, second = unpack(urls(number, "127.0.0.2", "127.0.0.3"))
    local now = wait_urls({ first, second })
    assert.truthy(now[first].name:find("^pod%-0%-%x+$"), now[first].name)
    assert.truthy(now[second].name:find("^hybrid%-%x+$"), now[second].name)
    assert.equal(json.null, now[first].labels)
    local name = now[first].name
    zone["pod-0.p.test"] = { fault = "servfail" } -- it is named, and where it was
    server:set(zone)
    wait_lookups("_http._tcp.p.test", "ok", 3)
    assert.equal(0, fleet.metric(admin_port,
      'baton_dns_addresses{name="_http._tcp.p.test",pool="default",state="missing"}'))
    assert.equal(now[first].id, wait_urls({ first, second })[first].id)
    zone["pod-0.p.test"] = { A = { "127.0.0.4" } } -- the pod has come back elsewhere
    zone["_http._tcp.p.test"] = { SRV = { { "pod-0.p.test", number, 0, 5 }, { "10-0-0-7.p.test", number, 1, 0 } } }
    server:set(zone)
    eventually(function()
      for _, w in ipairs(workers()) do
        if w.name == name and w.url == urls(number, "127.0.0.4")[1] and w.labels == "weight=5,priority=0" then
          return true
        end
      end
      return false, http.get(admin_port, "/workers").body
    end, 10, "the pod is where its name leads")
    zone["_http._tcp.p.test"] = { SRV = { { "pod-0.p.test", other }, { "10-0-0-7.p.test", number } } }
    server:set(zone)
    now = wait_urls({ urls(other, "127.0.0.4")[1], second })
    assert.equal(json.null, now[second].labels)
    serves()
  end)

  it("fails no request while weights change", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3" })
    local function zone(first, second)
      return {
        ["_http._tcp.p.test"] = { SRV = { { "a.test", number, 0, first }, { "b.test", number, 0, second } } },
        ["a.test"] = { A = { "127.0.0.2" } }, ["b.test"] = { A = { "127.0.0.3" } },
      }
    end
    server = dns.start(zone(1, 1))
    start({ "--workers-dns", "srv=_http._tcp.p.test", "--policy", "weighted" }, QUICK)
    wait_urls(urls(number, "127.0.0.2", "127.0.0.3"))
    local load = pace.start(port, 4, 200, 0)
    for weight = 2, 8 do
      server:set(zone(1, weight))
      eventually(function()
        local w = by_url()[urls(number, "127.0.0.3")[1]]
        return w ~= nil and w.labels == "weight=" .. weight
      end, 10, "the new weight counts")
    end
    pace.stop(load)
  end)

  -- Some servers give each target its share of 100: all weights are others when one goes, and none tells two apart.
  it("keeps workers as they are when another one goes and the others' shares grow", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3", "127.0.0.4" })
    local hosts = { ["a.test"] = { A = { "127.0.0.2" } }, ["b.test"] = { A = { "127.0.0.3" } },
      ["c.test"] = { A = { "127.0.0.4" } } }
    local function zone(weight, ...)
      local out, targets = {}, {}
      for name, records in pairs(hosts) do
        out[name] = records
      end
      for _, name in ipairs({ ... }) do
        targets[#targets + 1] = { name, number, 0, weight }
      end
      out["_http._tcp.p.test"] = { SRV = targets }
      return out
    end
    server = dns.start(zone(33, "a.test", "b.test", "c.test"))
    start({ "--workers-dns", "srv=_http._tcp.p.test", "--dns-hold-secs", "0.5" }, QUICK)
    local before = wait_urls(urls(number, "127.0.0.2", "127.0.0.3", "127.0.0.4"))
    server:set(zone(50, "a.test", "b.test"))
    local missing = 'baton_dns_addresses{name="_http._tcp.p.test",pool="default",state="missing"}'
    eventually(function()
      return fleet.metric(admin_port, missing) == 1
    end, 10, "one is missing")
    for url, w in pairs(by_url()) do
      assert.equal(before[url].id, w.id)
    end
    local after = wait_urls(urls(number, "127.0.0.2", "127.0.0.3"))
    for url, w in pairs(after) do
      assert.equal(before[url].id, w.id)
      assert.equal(json.null, w.labels)
    end
  end)

  it("is one source of several", function()
    local number = start_sims({ "127.0.0.2", "127.0.0.3" })
    local first, second = unpack(urls(number, "127.0.0.2", "127.0.0.3"))
    server = dns.start({ ["p.test"] = { A = { "127.0.0.2", "127.0.0.3" } }, ["q.test"] = { A = { "127.0.0.2" } } })
    local config = proc.path("baton.lua")
    local function write(text)
      local file = assert(io.open(config, "w"))
      file:write(text)
      file:close()
    end
    local by_dns = ("workers_dns = { { name = 'p.test', port = %d }, { name = 'q.test', port = %d } }"):format(number,
      number)
    write(("return { pools = { { workers = { { url = '%s', name = 'mine' } } } }, %s }"):format(first, by_dns))
    start({ config, "--dns-hold-secs", "0.1" }, QUICK)
    local function wait_sources(wanted)
      return eventually(function()
        local now, count = by_url(), 0
        for url, w in pairs(now) do
          count = count + 1
          if sources(w) ~= wanted[url] then
            return false, http.get(admin_port, "/workers").body
          end
        end
        for _ in pairs(wanted) do
          count = count - 1
        end
        return count == 0 and now, gateway:stderr():sub(-2000)
      end, 10, "who names whom: " .. json.encode(wanted))
    end
    local now = wait_sources({ [first] = "config dns", [second] = "dns" })
    assert.equal("mine", now[first].name)
    local id = now[second].id
    write(("return { %s }"):format(by_dns)) -- the configuration no longer names it, DNS does
    gateway:kill(proc.SIGHUP)
    now = wait_sources({ [first] = "dns", [second] = "dns" })
    assert.equal(id, now[second].id)
    write(("return { pools = { { workers = { { url = '%s', name = 'mine' } } } } }"):format(first))
    gateway:kill(proc.SIGHUP)
    wait_sources({ [first] = "config" })
    write(("return { pools = { { workers = { { url = '%s', name = 'mine' } } } }, %s }"):format(first, by_dns))
    gateway:kill(proc.SIGHUP)
    wait_sources({ [first] = "config dns", [second] = "dns" })
    server:set({ ["p.test"] = { A = { "127.0.0.3" } }, ["q.test"] = { A = { "127.0.0.3" } } })
    wait_sources({ [first] = "config", [second] = "dns" })
    serves()
  end)

  it("makes pairs of two names", function()
    local number = free_port()
    sims.prefill = fleet.start_sim({ "role=prefill,ttft=1", "role=decode,port=" .. number })
    local p, d = unpack(sims.prefill.list)
    server = dns.start({ ["p.test"] = { A = { "127.0.0.1" } }, ["d.test"] = { A = { "127.0.0.1" } } })
    start({
      "--workers-dns", ("name=p.test,port=%d,role=prefill,connector=NixlConnector"):format(p.port), "--workers-dns",
      ("name=d.test,port=%d,role=decode"):format(d.port), "--vllm-pd-disaggregation",
    }, QUICK)
    local now = wait_urls({ p.url, d.url })
    assert.equal("prefill", now[p.url].role)
    assert.equal("nixl", now[p.url].dialect)
    assert.truthy(now[d.url].name:find("^decode%-"), now[d.url].name)
    serves()
  end)

  it("takes IPv6 where a name has nothing else", function()
    if not has_v6() then
      return pending("no IPv6 here")
    end
    local number = start_sims({ "::1" })
    sims.v4 = fleet.start_sim({ "role=hybrid,ttft=1,port=" .. number })
    server = dns.start({
      ["six.test"] = { AAAA = { "::1" } }, ["both.test"] = { A = { "127.0.0.1" }, AAAA = { "::1" } },
    })
    local six, four = "http://[::1]:" .. number, "http://127.0.0.1:" .. number
    start({ "--workers-dns", "name=six.test,port=" .. number }, QUICK)
    wait_urls({ six })
    serves()
    stop_gateway()
    start({ "--workers-dns", "name=both.test,port=" .. number }, QUICK)
    wait_urls({ four })
    server:set({ ["both.test"] = { AAAA = { "::1" } } }) -- its A records are gone for a moment
    wait_lookups("both.test", "empty", 3)
    wait_urls({ four })
    stop_gateway()
    start({ "--workers-dns", "name=both.test,family=ipv6,port=" .. number }, QUICK)
    wait_urls({ six })
    serves()
  end)

  it("asks for AAAA behind an alias, too", function()
    local number = free_port()
    server = dns.start({
      ["alias.test"] = { CNAME = "six.test" }, ["six.test"] = { AAAA = { "::1" } },
      ["_http._tcp.p.test"] = { SRV = { { "alias.test", number } } },
    })
    start({ "--workers-dns", "name=alias.test,port=" .. number, "--workers-dns", "srv=_http._tcp.p.test" }, QUICK)
    wait_lookups("alias.test", "ok", 1)
    wait_lookups("_http._tcp.p.test", "ok", 1)
    assert.is_truthy(by_url()["http://[::1]:" .. number])
    assert.equal(0, lookups("alias.test", "empty"))
  end)

  it("takes a name of more than 1,024 addresses for a mistake, and says so", function()
    local number = start_sims({ "127.0.0.2" })
    local many = {}
    for i = 1, 1025 do
      many[i] = ("10.0.%d.%d"):format(i / 256, i % 256)
    end
    server = dns.start({ ["p.test"] = { A = { "127.0.0.2" } } })
    start({ "--workers-dns", "name=p.test,port=" .. number }, QUICK)
    wait_urls(urls(number, "127.0.0.2"))
    server:set({ ["p.test"] = { A = many, fault = "truncated" } }) -- over TCP
    wait_lookups("p.test", "too_many", 2)
    gateway:says("p.test: it has more than 1,024 addresses: give each group of workers a name of its own")
    wait_urls(urls(number, "127.0.0.2"))
    table.remove(many)
    server:set({ ["p.test"] = { A = many, fault = "truncated" } })
    wait_lookups("p.test", "ok", 1)
  end)

  it("starts before DNS does, and ends while a lookup runs", function()
    local number = start_sims({ "127.0.0.2" })
    server = dns.start({ ["p.test"] = { fault = "servfail" } })
    start({ "--workers-dns", "name=p.test,port=" .. number }, QUICK)
    gateway:says("p.test: no server answers it")
    assert.equal(503, http.post(port, "/v1/completions", BODY).status)
    server:set({ ["p.test"] = { A = { "127.0.0.2" } } })
    wait_urls(urls(number, "127.0.0.2"))
    serves()
    server:set({ ["p.test"] = { fault = "silent" } })
    eventually(function()
      return server.process:stdout():find("p.test A udp silent", 1, true)
    end, 10, "a lookup waits for its answer")
  end)

  it("takes what examples/kubernetes tells a gateway", function()
    local args
    for _, doc in ipairs(require("lyaml").load(proc.read("examples/kubernetes/workers-dns.yaml"), { all = true })) do
      if doc.kind == "Deployment" then
        args = doc.spec.template.spec.containers[1].args
      end
    end
    assert.equal("run", args[1])
    local argv = { fleet.binary("BATON_BIN", "baton"), "check" }
    for i = 2, #args do
      argv[#argv + 1] = args[i]
    end
    local code, out, err = proc.run(argv)
    assert.equal(0, code, err)
    local told = "prefill workers by DNS: A or AAAA of prefill.default.svc.cluster.local, port 8000"
    assert.truthy(out:find(told, 1, true), out)
  end)
end)

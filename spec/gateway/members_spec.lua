-- However a client writes a path or a member, the application of a worker under real uvicorn is handed nothing that
-- only the gateway may say, and what generates is split as ever.
--
-- Every value that a client may not steer holds the word "evil" here: one look through all that a handler received
-- tells.

local asgi = require("gateway.support.asgi")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local eventually = require("gateway.support.eventually")

local FORBIDDEN = {
  "kv_transfer_params", "batch_kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port",
  "bootstrap_room", "bootstrap_pair_key", "rid", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
  "decode_tp_size", "http_worker_ipc", "encoder_urls", "need_wait_for_mm_inputs", "num_items_assigned",
}

local CHAT = '"messages":[{"role":"user","content":"hi"}]'
local VLLM = {
  ["/v1/completions"] = '"prompt":"hi"', ["/v1/chat/completions"] = CHAT, ["/v1/responses"] = '"input":"hi"',
  ["/v1/messages"] = CHAT .. ',"max_tokens":4', ["/inference/v1/generate"] = '"token_ids":[1,2]',
}
local SGLANG = {
  ["/generate"] = '"text":"hi"', ["/v1/completions"] = '"prompt":"hi"', ["/v1/chat/completions"] = CHAT,
  ["/v1/responses"] = '"input":"hi"',
}

local function hex(c, upper)
  return ("%%%02" .. (upper and "X" or "x")):format(c:byte())
end

-- The path with its character number i in percent-encoding.
local function encoded_at(path, i, upper)
  return path:sub(1, i - 1) .. hex(path:sub(i, i), upper) .. path:sub(i + 1)
end

local function encoded_whole(path)
  return (path:gsub("[^/]", hex))
end

-- A key as JSON may spell it.
local SPELLINGS = {
  plain = function(key)
    return key
  end,
  first = function(key)
    return ("\\u%04x"):format(key:byte()) .. key:sub(2)
  end,
  whole = function(key)
    return (key:gsub(".", function(c)
      return ("\\u%04X"):format(c:byte())
    end))
  end,
}

-- Where an engine takes them.
local DOORS = {
  top = function(member)
    return member
  end,
  vllm_xargs = function(member)
    return '"vllm_xargs":{"a":1,' .. member .. ',"session_id":"s"}'
  end,
  extra_args = function(member)
    return '"sampling_params":{"temperature":1,"extra_args":{' .. member .. ',"b":2}}'
  end,
}

local function is_evil(value)
  if type(value) == "table" then
    for k, v in pairs(value) do
      if is_evil(k) or is_evil(v) then
        return true
      end
    end
    return false
  end
  return type(value) == "string" and value:find("evil", 1, true) ~= nil
end

local workers, gateway, port, admin_port

local function start(flags)
  workers = asgi.start()
  for i, word in ipairs(flags) do
    flags[i] = workers[word] or word
  end
  flags[#flags + 1] = "--role-check-secs" -- or engines would see questions of ours among the clients'
  flags[#flags + 1] = "0"
  gateway, port, admin_port = fleet.start_gateway(flags)
  fleet.wait_up(port, admin_port)
  workers:seen()
end

local function stop()
  gateway:stop(10)
  workers:stop()
  proc.clean()
end

-- One request; its status, and what the handlers got, of which nothing is the client's to say. count: of legs that
-- come, one of which may outlive the answer.
local function ask(target, body, headers, count)
  local answer = http.request(port, { method = "POST", path = target, body = body, headers = headers })
  local seen = workers:seen()
  if answer.status == 200 and #seen < (count or 0) then
    eventually(function()
      for _, e in ipairs(workers:seen()) do
        seen[#seen + 1] = e
      end
      return #seen >= count
    end, 20, ("both legs of %s have come: %s %s"):format(target, json.encode(answer.headers), json.encode(seen)))
  end
  for _, e in ipairs(seen) do
    assert.is_false(is_evil(e.json) or is_evil(e.text) or is_evil(e.headers) or is_evil(e.query),
      target .. " " .. body .. "\n" .. json.encode(e))
  end
  return answer, seen
end

local function refused(status, target, body, headers)
  local answer, seen = ask(target, body, headers)
  assert.equal(status, answer.status, target .. " " .. body .. "\n" .. answer.body)
  assert.equal(0, #seen, target)
end

local function split(route, target, body, headers)
  local answer, seen = ask(target, body, headers, 2)
  assert.equal(200, answer.status, target .. " " .. body .. "\n" .. answer.body)
  assert.equal(2, #seen, target .. " " .. body)
  for _, e in ipairs(seen) do
    assert.equal(route, e.path)
    assert.equal("stays", e.json.harmless)
  end
  return answer, seen
end

local function body_of(prompt, more)
  return '{"model":"m",' .. prompt .. "," .. more .. ',"harmless":"stays"}'
end

local function all_members(door, spell)
  local list = {}
  for i, name in ipairs(FORBIDDEN) do
    list[i] = ('"%s":{"x":"evil"}'):format(spell(name))
  end
  return DOORS[door](table.concat(list, ","))
end

local function each(map, f)
  local keys = {}
  for key in pairs(map) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for _, key in ipairs(keys) do
    f(key, map[key])
  end
end

local function take_paths_in_one_form(routes)
  each(routes, function(route, prompt)
    local body = body_of(prompt, all_members("top", SPELLINGS.plain))
    split(route, route, body)
    split(route, encoded_whole(route), body)
    for i = 1, #route, 2 do
      local target = encoded_at(route, i, i % 4 == 1)
      if route:sub(i, i) == "/" then
        refused(400, target, body)
      else
        split(route, target, body)
      end
    end
    split(route, route .. "?a=b", body)
    for _, target in ipairs({
      encoded_at(route, #route):gsub("%%", "%%25"), route .. "%00", route .. "%0a", route .. "/", "/" .. route,
      route .. ";x=1", route .. "%3Bx", route .. "%3b", "/." .. route, "/x/.." .. route, "/%2e" .. route,
      "/%2E%2e" .. route, route .. "/.", route .. "/%2e%2e", route:gsub("/", "\\"), route:gsub("/", "%%5c"),
      route:gsub("/", "%%2f"):gsub("^%%2f", "/"), route .. "%", route .. "%7", route .. "%zz", route:gsub("/", "//"),
    }) do
      if target ~= route then
        refused(400, target, body)
      end
    end
  end)
end

local function lose_members_at_every_door(routes)
  each(routes, function(route, prompt)
    each(DOORS, function(door, put)
      each(SPELLINGS, function(_, spell)
        split(route, route, body_of(prompt, all_members(door, spell)))
      end)
      for i, name in ipairs(FORBIDDEN) do
        local value = ({ '"evil"', '["evil"]', '{"do_remote_prefill":"evil"}' })[i % 3 + 1]
        split(route, route, body_of(prompt, put(('"%s":%s'):format(name, value))))
      end
    end)
  end)
end

local function read_as_json_in_any_dress(routes)
  each(routes, function(route, prompt)
    local body = body_of(prompt, all_members("top", SPELLINGS.plain))
    for _, kind in ipairs({ "application/json", "text/plain", "application/octet-stream",
      "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "" }) do
      split(route, route, body, { ["Content-Type"] = kind })
    end
    split(route, route, " \t\r\n" .. body)
    local function wide(bytes)
      return function(c)
        return bytes:gsub("c", function()
          return c
        end)
      end
    end
    for _, other in ipairs({
      "\239\187\191" .. body, (body:gsub(".", wide("c%z"))), (body:gsub(".", wide("%zc"))),
      "\255\254" .. body:gsub(".", wide("c%z")), "\254\255" .. body:gsub(".", wide("%zc")),
      (body:gsub(".", wide("c%z%z%z"))), (body:gsub(".", wide("%z%z%zc"))),
    }) do
      refused(400, route, other)
    end
    refused(400, route, body:sub(1, -2) .. ',"rid":1,"rid":2}')
    refused(400, route, body:sub(1, -2) .. ',"model":"m","mod\\u0065l":"evil"}')
  end)
end

-- What pydantic converts and the gateway does not: the engine would be asked something else than was planned.
local function refuse_types(routes)
  local wrong = {
    '"stream":"true"', '"stream":1', '"stream":"yes"', '"max_tokens":"9"', '"max_tokens":9.5', '"max_tokens":true',
    '"model":7', '"model":["m"]', '"stream_options":[]', '"vllm_xargs":[{"kv_transfer_params":"evil"}]',
    '"session_id":7', '"session_params":"s"', '"user":{}', '"min_tokens":"1"', '"seed":"1"', '"seed":1.5',
    '"echo":"true"', '"logprobs":"1"', '"best_of":"2"', '"use_beam_search":1', '"sampling_params":"x"',
    '"sampling_params":7', '"return_logprob":"true"', '"logprob_start_len":"0"', '"store":"false"',
  }
  each(routes, function(route, prompt)
    for _, member in ipairs(wrong) do
      if not (member:find('^"max_tokens"') and prompt:find("max_tokens", 1, true)) then
        refused(400, route, '{"harmless":1,' .. prompt .. "," .. member .. "}")
      end
    end
    for _, member in ipairs({ '"n":"2"', '"n":[2]', '"n":true' }) do
      local inside = route == "/generate" or route == "/inference/v1/generate"
      refused(400, route, "{" .. prompt .. "," .. (inside and '"sampling_params":{' .. member .. "}" or member) .. "}")
    end
    for _, member in ipairs({ '"stream":null', '"seed":7.0', '"min_tokens":null', '"user":null',
      '"vllm_xargs":null' }) do
      split(route, route, body_of(prompt, member))
    end
  end)
end

local function suite(routes)
  it("take every path in one form, and refuse what could be read as two", function()
    take_paths_in_one_form(routes)
  end)

  it("lose every forbidden member, at every door and in every spelling", function()
    lose_members_at_every_door(routes)
  end)

  it("are read as JSON whatever the content type says, and refused in another encoding", function()
    read_as_json_in_any_dress(routes)
  end)

  it("refuse controlled members of a type that only the engine would understand", function()
    refuse_types(routes)
  end)
end

if not asgi.python() then
  pending("no Python with uvicorn, h11 and httptools (Debian: python3-uvicorn python3-h11 python3-httptools)")
  return
end

describe("hand-off routes before uvicorn", function()
  setup(function()
    start({ "--vllm-pd-disaggregation", "--connector", "shared_cache", "--prefill", "h11", "--decode", "httptools" })
  end)

  teardown(stop)

  suite(VLLM)
end)

describe("bootstrap routes before uvicorn", function()
  setup(function()
    start({ "--pd-disaggregation", "--prefill", "httptools", "port", "--decode", "h11" }) -- it answers GET /health, too
  end)

  teardown(stop)

  suite(SGLANG)

  it("refuse samples in a list of sampling_params, which would share a room, and take the list without", function()
    for _, list in ipairs({
      '[{"n":2}]', '[{"n":1},{"n":2}]', '[7]', '[{"n":"2"}]', '[{"n":1,"n":2}]',
      '[{"extra_args":{"kv_transfer_params":"evil"}}]',
    }) do
      refused(400, "/generate", '{"text":["a","b"],"sampling_params":' .. list .. "}")
    end
    split("/generate", "/generate", body_of('"text":["a","b"]', '"sampling_params":[{"max_new_tokens":1},{"n":1}]'))
    refused(400, "/v1/completions", '{"prompt":{"evil":1}}')
    refused(400, "/generate", '{"text":{"evil":1}}')
  end)
end)

describe("what is passed through before uvicorn", function()
  local PROXIED = {
    "/tokenize", "/detokenize", "/v1/tokenize", "/v1/messages/count_tokens", "/score", "/v1/score", "/pooling",
    "/v1/chat/completions/render", "/v1/completions/render", "/v1/models/a%2Fb", "/v1/models/a/b", "/custom/x",
    "/v1/audio/transcriptions", "/get_server_info",
  }

  setup(function()
    start({ "--worker-urls", "h11", "httptools", "--proxy-path", "/custom", "--policy", "round_robin" })
  end)

  teardown(stop)

  it("loses forbidden members on every path", function()
    for _, path in ipairs(PROXIED) do
      each(DOORS, function(door)
        each(SPELLINGS, function(spelling, spell)
          local target = spelling == "plain" and path or encoded_at(path, 5) .. "?q=1"
          local kind = { ["Content-Type"] = spelling == "whole" and "multipart/form-data; boundary=x" or "text/plain" }
          local answer, seen = ask(target, body_of('"prompt":"hi"', all_members(door, spell)), kind)
          assert.equal(200, answer.status, target .. answer.body)
          assert.equal(1, #seen)
          assert.equal("stays", seen[1].json.harmless)
        end)
      end)
    end
  end)

  it("takes names of models with slashes, and gives handlers the name", function()
    for _, target in ipairs({ "/v1/models/org/name", "/v1/models/org%2Fname", "/v1/models/org%2fname",
      "/v1/model%73/org%2Fname" }) do
      local answer = http.get(port, target)
      assert.equal(200, answer.status, target)
      assert.equal("/v1/models/org/name", workers:seen()[1].path)
    end
    for _, target in ipairs({ "/v1/models/..%2f..%2fflush_cache", "/v1/models/a%2F%2Fb", "/v1/models/a%2F..",
      "/v1/models/%2e%2e/x", "/v1/models/" }) do
      assert.equal(400, http.get(port, target).status, target)
    end
    assert.equal(0, #workers:seen())
  end)

  it("is a list, not what happens to begin with /v1/", function()
    for _, path in ipairs({
      "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/realtime", "/v1/odd", "/v1/metaserver", "/v1/loads",
      "/v1/fault_tolerance/apply", "/v1/dispatch/stop", "/invocations", "/api/chat", "/abort_requests",
      "/inference/v1/abort_requests", "/customs",
    }) do
      for _, target in ipairs({ path, encoded_at(path, #path) }) do
        refused(404, target, '{"a":1}')
      end
    end
  end)

  it("takes forms where the list says so, and no WebSockets", function()
    local form = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--\r\n"
    local kind = { ["Content-Type"] = "multipart/form-data; boundary=x" }
    for _, path in ipairs({ "/v1/audio/transcriptions", "/v1/audio/translations", "/custom" }) do
      local answer, seen = ask(path, form, kind)
      assert.equal(200, answer.status, path)
      assert.equal(form, seen[1].text)
    end
    for _, path in ipairs({ "/tokenize", "/v1/score", "/v1/responses/x" }) do
      local answer, seen = ask(path, form, kind)
      assert.is_true(answer.status == 415 or answer.status == 404, path .. " " .. answer.status)
      assert.equal(0, #seen)
    end
    refused(400, "/v1/completions", form, kind)
    refused(415, "/v1/audio/transcriptions", "RIFF", { ["Content-Type"] = "audio/wav" })
    local answer = http.request(port, { method = "GET", path = "/custom/ws", headers = {
      Connection = "Upgrade", Upgrade = "websocket", ["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ==",
      ["Sec-WebSocket-Version"] = "13" } })
    assert.equal(501, answer.status)
    assert.equal(0, #workers:seen())
  end)

  it("answers a batch of conversations by one worker, without what is not the client's to say", function()
    local messages = '"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}]]'
    each(DOORS, function(door)
      local answer, seen = ask("/v1/chat/completions/batch", body_of(messages, all_members(door, SPELLINGS.first)))
      assert.equal(200, answer.status, answer.body)
      assert.equal(1, #seen)
      assert.equal("stays", seen[1].json.harmless)
    end)
    refused(400, "/v1/chat/completions/batch", '{"messages":"a"}')
  end)
end)

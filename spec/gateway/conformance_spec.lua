-- Every dialect x endpoint x streamed or not x one, a list, n = 2, both, an image: the pair's answer says what one
-- plain engine says of the same request, both roles have worked for it, and nothing is held afterwards. Images are
-- encoded apart (vLLM's E->P->D), and prefill has what the encoders made, or the client is told that it cannot be.
-- `make conformance` prints the table.

local dialects = require("gateway.support.dialects")
local faults = require("gateway.support.faults")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local texts = require("gateway.support.texts")

-- path: { one =, list =, n =, both = } of the members that differ; what is missing the endpoint cannot say.
local FORMS = { "one", "list", "n=2", "list, n=2", "image" }
local TWO = '"n":2,"seed":5,"temperature":1,'
local TWO_SGLANG = '"sampling_params":{"max_new_tokens":5,"n":2,"sampling_seed":5,"temperature":1}'
local ENDPOINTS = {
  ["/v1/completions"] = {
    one = '"prompt":"hand it on","max_tokens":5',
    list = '"prompt":["hand it on","at full speed"],"max_tokens":5',
    ["n=2"] = TWO .. '"prompt":"hand it on","max_tokens":5',
    ["list, n=2"] = TWO .. '"prompt":[[1,2,3,4,5],[6,7]],"max_tokens":5',
  },
  ["/v1/chat/completions"] = {
    one = '"messages":[{"role":"user","content":"hand it on"}],"max_tokens":5',
    ["n=2"] = TWO .. '"messages":[{"role":"user","content":"hand it on"}],"max_tokens":5',
    image = '"messages":[{"role":"user","content":[{"type":"text","text":"look"},'
      .. '{"type":"image_url","image_url":{"url":"http://media/%s"}}]}],"max_tokens":5',
  },
  ["/v1/responses"] = {
    one = '"input":"hand it on","max_output_tokens":5',
    image = '"input":[{"role":"user","content":[{"type":"input_text","text":"look"},'
      .. '{"type":"input_image","image_url":"http://media/%s"}]}],"max_output_tokens":5',
  },
  ["/v1/messages"] = {
    one = '"messages":[{"role":"user","content":"hand it on"}],"max_tokens":5',
    image = '"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url",'
      .. '"url":"http://media/%s"}}]}],"max_tokens":5',
  },
  ["/generate"] = {
    one = '"text":"hand it on","sampling_params":{"max_new_tokens":5}',
    list = '"text":["hand it on","at full speed"],"sampling_params":{"max_new_tokens":5}',
    ["n=2"] = '"text":"hand it on",' .. TWO_SGLANG,
    ["list, n=2"] = '"text":["hand it on","at full speed"],' .. TWO_SGLANG,
  },
  ["/inference/v1/generate"] = {
    one = '"token_ids":[1,2,3,4,5],"sampling_params":{"max_tokens":5}',
    ["n=2"] = '"token_ids":[1,2,3,4,5],"sampling_params":{"max_tokens":5,"n":2,"seed":5,"temperature":1}',
  },
}

-- vLLM takes no ec_transfer_params there.
local REFUSES_IMAGES = { ["/v1/messages"] = true }

local printed = {}

local function print_table()
  print(("\n%-14s %-24s %-8s %s"):format("dialect", "endpoint", "", table.concat(FORMS, " | ")))
  for _, row in ipairs(printed) do
    local cells = {}
    for i, form in ipairs(FORMS) do
      cells[i] = ("%-" .. #form .. "s"):format(row[form] or "-")
    end
    local how = row.stream and "stream" or "JSON"
    print(("%-14s %-24s %-8s %s"):format(row.dialect, row.path, how, table.concat(cells, " | ")))
  end
end

local function body_of(members, stream)
  return ('{"model":"sim",%s,"stream":%s}'):format(members, tostring(stream))
end

-- What an engine that serves alone says.
local function plain_texts(sim, path, body)
  local answer = http.post(sim.list[1].port, path, body)
  assert.equal(200, answer.status, answer.body)
  return texts.of(path, answer)
end

local PAIRS = { "p0", "p1", "d0", "d1" }

local function check(f, plain, path, body)
  local answer, legs = f:exchange(path, body)
  assert.equal(200, answer.status, answer.body)
  assert.same(plain_texts(plain, path, body), texts.of(path, answer))
  assert.is_true(#legs.prefill > 0 and #legs.decode > 0, json.encode({ #legs.prefill, #legs.decode }))
  for _, name in ipairs(PAIRS) do
    assert.is_false(f:state(name).engine_dead, name)
  end
end

local function sum(f, counter)
  local n = 0
  for _, name in ipairs(PAIRS) do
    n = n + f:state(name)[counter]
  end
  return n
end

-- Each image is another one, or engines would have it from the time before.
local next_image = 0
local function check_image(f, plain, path, members, stream)
  next_image = next_image + 1
  local body = body_of(members:format(next_image), stream)
  local fetched = sum(f, "media_fetched")
  if REFUSES_IMAGES[path] then
    local answer, legs = f:exchange(path, body)
    assert.equal(400, answer.status, answer.body)
    assert.truthy(answer.body:find("ec_transfer_params", 1, true), answer.body)
    assert.equal(0, #legs.prefill + #legs.decode)
    return "refused"
  end
  check(f, plain, path, body)
  assert.equal(1, #f:legs("/v1/chat/completions").encode)
  assert.equal(1, sum(f, "media_fetched") - fetched)
  assert.equal(0, sum(f, "media_local"))
  return "ok"
end

for _, dialect in ipairs(dialects) do
  describe("dialect " .. dialect.name, function()
    local f, plain

    setup(function()
      plain = fleet.start_sim({ ("role=hybrid,engine=%s,ttft=1,itl=1"):format(dialect.engine) })
      f = fleet.start({
        workers = { "role=prefill,count=2," .. dialect.worker, "role=decode,count=2," .. dialect.worker,
          dialect.encodes and "role=encode,count=2,ttft=1" or nil },
        flags = dialect.flags,
        registers = dialect.registers,
      })
    end)

    teardown(function()
      f:stop()
      plain.process:stop(5)
      proc.clean()
    end)

    for _, path in ipairs(dialect.paths) do
      for _, stream in ipairs({ false, true }) do
        local row = { dialect = dialect.name, path = path, stream = stream }
        printed[#printed + 1] = row
        for _, form in ipairs(FORMS) do
          local members = ENDPOINTS[path][form]
          local is_image = form == "image"
          if members and (not is_image or dialect.encodes) then
            row[form] = "FAIL"
            it(("%s %s %s"):format(path, stream and "stream" or "JSON", form), function()
              if is_image then
                row[form] = check_image(f, plain, path, members, stream)
              else
                check(f, plain, path, body_of(members, stream))
                row[form] = "ok"
              end
            end)
          end
        end
      end
    end

    it("holds nothing afterwards", function()
      faults.wait_idle(f)
      assert.same({}, faults.guilt(f))
    end)
  end)
end

describe("the table", function()
  it("is printed", print_table)
end)

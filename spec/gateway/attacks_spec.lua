-- Attacks by bytes: requests that two readers could end at different places, workers that answer so, clients that are
-- slow in every way they can be, and what is too large. SECURITY.md's table names these specs.
--
-- Every attack is sent with a second request behind it, on a connection of its own. A refused one is answered once,
-- with its status, and the connection ends: nothing behind it is served, and no worker hears of either.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")
local stub = require("gateway.support.stub")

local ANSWER = '{"id":"x","choices":[]}'
local BODY = '{"model":"m","prompt":"x"}'
local SECOND = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"

local worker, gateway, port, say

local function start(...)
  say = function()
    return stub.reply(200, ANSWER)
  end
  worker = stub.start(function(request)
    return say(request)
  end)
  gateway, port = fleet.start_gateway({ "--proxy-path", "/smuggled", "--disable-retries", "--disable-circuit-breaker",
    "--disable-health-check", "--load-interval-secs", "0", "--worker-urls", worker.url, ... })
  eventually(function()
    return http.post(port, "/v1/completions", BODY).status == 200
  end, 10, "the worker serves")
end

local function stop()
  assert.equal(0, (gateway:stop(10)))
  worker:stop()
  proc.clean()
end

-- A connection whose bytes nobody interprets: c.answer.text.
local function connect()
  local c = http.connect(port)
  c.answer = {
    text = "",
    feed = function(self, more)
      self.text = self.text .. more
    end,
    close = function(self)
      self.closed = true
    end,
  }
  return c
end

-- All that comes until the other side closes, or until `enough` answers have come. Second value: closed?
local function talk(bytes, enough)
  local c = connect()
  c:send(bytes)
  local answer = c:wait(function(a)
    local _, count = a.text:gsub("HTTP/1%.1 %d%d%d ", "")
    return a.closed or (enough ~= nil and count >= enough and a.text:match("\r\n\r\n([^\r]*)$"))
  end)
  c:close()
  local statuses = {}
  for status in answer.text:gmatch("HTTP/1%.1 (%d%d%d) ") do
    statuses[#statuses + 1] = tonumber(status)
  end
  return statuses, answer.closed, answer.text
end

local LINE = "POST /v1/completions HTTP/1.1\r\n"
local HEAD = LINE .. "Host: h\r\nContent-Type: application/json\r\n"
local CHUNKED = "Transfer-Encoding: chunked\r\n"
local LENGTH = "Content-Length: " .. #BODY .. "\r\n"
local ONE_CHUNK = ("%x\r\n%s\r\n"):format(#BODY, BODY)

local function with(lines, body)
  return HEAD .. lines .. "\r\n" .. (body or BODY)
end

local function chunks(bytes)
  return with(CHUNKED, bytes)
end

-- name, status, bytes.
local REFUSED = {
  -- where the body ends: two words for it
  { "CL.TE", 400, with("Content-Length: 6\r\n" .. CHUNKED, "0\r\n\r\nG") },
  { "TE.CL", 400, with(CHUNKED .. "Content-Length: 4\r\n", "5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n") },
  { "CL.TE with a length of 0", 400, with("Content-Length: 0\r\n" .. CHUNKED, ONE_CHUNK .. "0\r\n\r\n") },
  { "TE.TE, the second obfuscated", 400, with(CHUNKED .. "Transfer-Encoding: x\r\n", "0\r\n\r\n") },
  { "TE.TE, the first obfuscated", 400, with("Transfer-encoding: cow\r\n" .. CHUNKED, "0\r\n\r\n") },
  { "TE twice, the same", 400, with(CHUNKED .. CHUNKED, "0\r\n\r\n") },
  { "TE chunked, identity", 400, with("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n") },
  { "TE chunked, chunked", 400, with("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n") },
  { "TE identity, chunked", 501, with("Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n") },
  { "TE gzip, chunked", 501, with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n") },
  { "TE xchunked", 501, with("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n") },
  { "TE chunkedx", 501, with("Transfer-Encoding: chunkedx\r\n", "0\r\n\r\n") },
  { "TE in quotes", 501, with('Transfer-Encoding: "chunked"\r\n', "0\r\n\r\n") },
  { "TE with a parameter", 400, with("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n") },
  { "TE that is empty", 400, with("Transfer-Encoding:\r\n", "0\r\n\r\n") },
  { "TE behind a comma", 501, with("Transfer-Encoding: ,chunked\r\n", "0\r\n\r\n") },
  { "TE before a comma", 400, with("Transfer-Encoding: chunked,\r\n", "0\r\n\r\n") },
  { "TE with a vertical tab", 400, with("Transfer-Encoding: \11chunked\r\n", "0\r\n\r\n") },
  { "TE with a form feed", 400, with("Transfer-Encoding: chunked\12\r\n", "0\r\n\r\n") },
  { "TE with a NUL", 400, with("Transfer-Encoding: chunked\0\r\n", "0\r\n\r\n") },
  { "TE with a blank before the colon", 400, with("Transfer-Encoding : chunked\r\n", "0\r\n\r\n") },
  { "TE with a tab before the colon", 400, with("Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n") },
  { "TE folded", 400, with("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n") },
  { "TE behind a blank", 400, with(" Transfer-Encoding: chunked\r\n", "0\r\n\r\n") },
  { "TE behind a bare LF", 400, with("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n") },
  { "TE behind a bare CR", 400, with("X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n") },
  { "TE in HTTP/1.0", 400, "POST /v1/completions HTTP/1.0\r\nHost: h\r\n" .. CHUNKED .. "\r\n0\r\n\r\n" },
  { "CL twice, the same", 400, with(LENGTH .. LENGTH) },
  { "CL twice, different", 400, with(LENGTH .. "Content-Length: 0\r\n") },
  { "CL twice, in two spellings", 400, with(LENGTH .. "CONTENT-LENGTH: 0\r\n") },
  { "CL as a list", 400, with(("Content-Length: %d, %d\r\n"):format(#BODY, #BODY)) },
  { "CL as a list of two", 400, with("Content-Length: 0, " .. #BODY .. "\r\n") },
  { "CL negative", 400, with("Content-Length: -1\r\n") },
  { "CL with a plus", 400, with("Content-Length: +" .. #BODY .. "\r\n") },
  { "CL hexadecimal", 400, with("Content-Length: 0x1a\r\n") },
  { "CL with an exponent", 400, with("Content-Length: 2e1\r\n") },
  { "CL with a point", 400, with("Content-Length: 26.0\r\n") },
  { "CL with an underscore", 400, with("Content-Length: 2_6\r\n") },
  { "CL in quotes", 400, with('Content-Length: "26"\r\n') },
  { "CL of two words", 400, with("Content-Length: 2 6\r\n") },
  { "CL that is empty", 400, with("Content-Length:\r\n") },
  { "CL in digits that are not ASCII", 400, with("Content-Length: \239\188\146\239\188\150\r\n") },
  { "CL of 2^64", 400, with("Content-Length: 18446744073709551616\r\n") },
  { "CL of 2^64 + 26", 400, with("Content-Length: 18446744073709551642\r\n") },
  { "CL of 2^63", 413, with("Content-Length: 9223372036854775808\r\n") },
  { "CL with a blank before the colon", 400, with("Content-Length : 26\r\n") },
  { "CL folded", 400, with("Content-Length:\r\n\t26\r\n") },
  { "CL with a NUL", 400, with("Content-Length: 26\0\r\n") },
  -- chunks
  { "chunk size in 0x", 400, chunks("0x1a\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size negative", 400, chunks("-1\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size with a plus", 400, chunks("+1a\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size behind a blank", 400, chunks(" 1a\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size before a blank", 400, chunks("1a \r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size that is missing", 400, chunks("\r\n0\r\n\r\n") },
  { "chunk size that is none", 400, chunks("zz\r\n0\r\n\r\n") },
  { "chunk size of 2^64 + 26", 400, chunks("1000000000000001a\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size of 2^63", 400, chunks("8000000000000000\r\n") },
  { "chunk size of many zeros", 400, chunks(("0"):rep(32) .. "1a\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size before a bare LF", 400, chunks("1a\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk size before a bare CR", 400, chunks("1a\r" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk that is longer than said", 400, chunks("5\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk that ends in a bare LF", 400, chunks("1a\r\n" .. BODY .. "\n0\r\n\r\n") },
  { "chunk without its CRLF", 400, chunks("1a\r\n" .. BODY .. "0\r\n\r\n") },
  { "chunk extension with a bare LF", 400, chunks("1a;x\ny\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk extension with a NUL", 400, chunks("1a;x\0\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk extension, a line end in its quotes", 400, chunks('1a;x="\n"\r\n' .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk extension without a size", 400, chunks(";x\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "chunk extensions of 64 KiB", 400, chunks("1a;" .. ("x"):rep(65536) .. "\r\n" .. BODY .. "\r\n0\r\n\r\n") },
  { "last chunk before a bare LF", 400, chunks(ONE_CHUNK .. "0\n\r\n") },
  { "last chunk and a bare LF", 400, chunks(ONE_CHUNK .. "0\r\n\n") },
  { "trailer folded", 400, chunks(ONE_CHUNK .. "0\r\nX: y\r\n z\r\n\r\n") },
  { "trailer without a name", 400, chunks(ONE_CHUNK .. "0\r\n: y\r\n\r\n") },
  { "trailer without a colon", 400, chunks(ONE_CHUNK .. "0\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n") },
  { "trailer with a bare LF", 400, chunks(ONE_CHUNK .. "0\r\nX: y\nZ: w\r\n\r\n") },
  { "trailers of 64 KiB", 400, chunks(ONE_CHUNK .. "0\r\nX: " .. ("y"):rep(65536) .. "\r\n\r\n") },
  -- the head
  { "bare LF behind the request line", 400, "GET /health HTTP/1.1\nHost: h\r\n\r\n" },
  { "bare LF everywhere", 400, "GET /health HTTP/1.1\nHost: h\n\n" },
  { "bare CR in a value", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n" },
  { "CR CR LF", 400, "GET /health HTTP/1.1\r\r\nHost: h\r\n\r\n" },
  { "obs-fold", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n" },
  { "NUL in a value", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n" },
  { "NUL in a name", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX\0: a\r\n\r\n" },
  { "NUL in the target", 400, "GET /health\0 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "header without a colon", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX\r\n\r\n" },
  { "header without a name", 400, "GET /health HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n" },
  { "header name of other bytes", 400, "GET /health HTTP/1.1\r\nHost: h\r\nX\195\164: a\r\n\r\n" },
  { "blank before the first header", 400, "GET /health HTTP/1.1\r\n Host: h\r\n\r\n" },
  { "Host twice", 400, "GET /health HTTP/1.1\r\nHost: h\r\nHost: evil\r\n\r\n" },
  { "Host missing", 400, "GET /health HTTP/1.1\r\nX: y\r\n\r\n" },
  { "Host as a list", 400, "GET /health HTTP/1.1\r\nHost: h, evil\r\n\r\n" },
  { "Host with user and password", 400, "GET /health HTTP/1.1\r\nHost: evil@h\r\n\r\n" },
  { "Host with a path", 400, "GET /health HTTP/1.1\r\nHost: h/evil\r\n\r\n" },
  { "absolute target of another host", 400, "GET http://evil/health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "absolute target with user and password", 400, "GET http://u@h/health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "absolute target without a host", 400, "GET http:///health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "absolute target of another scheme", 400, "GET ftp://h/health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "CONNECT", 501, "CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: 10.0.0.1:22\r\n\r\n" },
  { "target without a slash", 400, "GET health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "target with a blank", 400, "GET /health x HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "target with a fragment", 400, "GET /health#x HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "target of other bytes", 400, "GET /h\195\164 HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "two blanks in the request line", 400, "GET  /health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "tab in the request line", 400, "GET\t/health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "method with a control character", 400, "GE\1T /health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "method that is unknown", 501, "SMUGGLE /health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "HTTP/0.9", 400, "GET /health\r\n\r\n" },
  { "HTTP/2 preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" },
  { "HTTP/1.2", 505, "GET /health HTTP/1.2\r\nHost: h\r\n\r\n" },
  { "version of two digits", 400, "GET /health HTTP/1.10\r\nHost: h\r\n\r\n" },
  { "version in lower case", 400, "GET /health http/1.1\r\nHost: h\r\n\r\n" },
  { "two blank lines first", 400, "\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "TLS where HTTP is spoken", 400, "\22\3\1\2\0\1\0\1\252\3\3" },
  { "unknown expectation", 417, with("Expect: 200-ok\r\n" .. LENGTH) },
  { "two expectations", 417, with("Expect: 100-continue, x\r\n" .. LENGTH) },
  { "a head of more than 64 KiB", 431, "GET /health HTTP/1.1\r\nHost: h\r\nX: " .. ("y"):rep(70000) .. "\r\n\r\n" },
  { "a target of more than 64 KiB", 431, "GET /" .. ("y"):rep(70000) .. " HTTP/1.1\r\nHost: h\r\n\r\n" },
  { "a header name of more than 64 KiB", 431,
    "GET /health HTTP/1.1\r\nHost: h\r\n" .. ("y"):rep(70000) .. ": z\r\n\r\n" },
  { "129 headers", 431, "GET /health HTTP/1.1\r\nHost: h\r\n" .. ("X: y\r\n"):rep(128) .. "\r\n" },
  { "a length beyond --max-payload-size", 413, with("Content-Length: 1000001\r\n") },
  { "chunks beyond --max-payload-size", 413, chunks("f4241\r\n" .. (" "):rep(1000001) .. "\r\n0\r\n\r\n") },
}

-- What looks odd and is right: answered, with the same bytes to the worker, and the second request is one of its own.
local SERVED = {
  { "TE in other letters", with("tRANSFER-eNCODING:\tCHUNKED \r\n", ONE_CHUNK .. "0\r\n\r\n") },
  { "a chunk a byte", chunks(BODY:gsub(".", "1\r\n%0\r\n") .. "0\r\n\r\n") },
  { "a chunk size in capitals, with zeros", chunks("0001A\r\n" .. BODY .. "\r\n000\r\n\r\n") },
  { "chunk extensions, quoted too", chunks('1a;a=b;c="d;e\\"f"\r\n' .. BODY .. "\r\n0;x\r\n\r\n") },
  { "trailers that speak of framing and of keys",
    chunks(ONE_CHUNK .. "0\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\nAuthorization: evil\r\n\r\n") },
  { "a length with zeros before it", with("Content-Length: 0000" .. #BODY .. "\r\n") },
  { "a length between blanks", with("Content-Length:   " .. #BODY .. "  \r\n") },
  { "an absolute target of this Host", (with(LENGTH):gsub("POST /", "POST http://h/")) },
  { "one blank line first", "\r\n" .. with(LENGTH) },
  { "headers that are named in Connection", with("Connection: x-secret, x-other\r\nX-Secret: 1\r\n" .. LENGTH) },
  { "Content-Length named in Connection", with("Connection: content-length\r\n" .. LENGTH) },
  { "Upgrade: h2c",
    with("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n" .. LENGTH) },
  { "underscores for dashes", with("Content_Length: 0\r\nTransfer_Encoding: chunked\r\n" .. LENGTH) },
}

describe("requests that two readers could end at different places", function()
  setup(function()
    start("--max-payload-size", "1000000", "--no-http2")
  end)

  teardown(stop)

  for _, case in ipairs(REFUSED) do
    it(("are refused: %s"):format(case[1]), function()
      worker.requests = {}
      local statuses, closed, got = talk(case[3] .. SECOND)
      assert.same({ case[2] }, statuses, got)
      assert.is_true(closed)
      assert.equal(0, #worker.requests)
    end)
  end

  for _, case in ipairs(SERVED) do
    it(("are served once, and the next one apart: %s"):format(case[1]), function()
      worker.requests = {}
      local statuses, _, got = talk(case[2] .. SECOND, 2)
      assert.same({ 200, 200 }, statuses, got)
      assert.equal(2, #worker.requests)
      assert.equal(BODY, worker.requests[1].body)
      assert.equal("/smuggled", worker.requests[2].target)
      local seen = worker.requests[1].headers
      assert.equal(tostring(#BODY), seen["content-length"])
      for _, name in ipairs({ "transfer-encoding", "upgrade", "http2-settings", "x-secret", "trailer",
        "authorization" }) do
        assert.is_nil(seen[name], name)
      end
    end)
  end

  it("are more than eighty", function()
    assert.is_true(#REFUSED >= 80 and #SERVED >= 10)
  end)

  it("do not end the service of others", function()
    assert.equal(200, http.post(port, "/v1/completions", BODY).status)
  end)

  it("wait for 100 Continue where they ask for it, once", function()
    local c = connect()
    c:send(with("Expect: 100-continue\r\n" .. LENGTH, ""))
    c:wait(function(a)
      return a.text == "HTTP/1.1 100 Continue\r\n\r\n"
    end)
    c:send(BODY)
    c:wait(function(a)
      return a.text:find("\nHTTP/1.1 200 ", 1, true)
    end)
    c:close()
  end)
end)

-- What a worker says instead of an answer. Behind it comes POISON, as if it answered the next request.
local POISON = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\nPOISON"
local HOSTILE = {
  { "no HTTP", "hello\r\n\r\n" },
  { "HTTP/0.9", "just a body" },
  { "HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n" },
  { "a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n" },
  { "a status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n" },
  { "a status below 100", "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n" },
  { "101 Switching Protocols", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" },
  { "CL and TE", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" },
  { "two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 6\r\n\r\nPOISON" },
  { "two equal lengths", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Length: 6\r\n\r\nPOISON" },
  { "a list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 6, 6\r\n\r\nPOISON" },
  { "a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -6\r\n\r\nPOISON" },
  { "a length of 2^64", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nPOISON" },
  { "an unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nPOISON" },
  { "chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" },
  { "a bare LF in the head", "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n" },
  { "a folded header", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n" },
  { "a NUL in a header", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n" },
  { "a blank before a colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n" },
  { "a header without a colon", "HTTP/1.1 200 OK\r\nSet-Cookie\r\nContent-Length: 0\r\n\r\n" },
  { "a head of more than 64 KiB", "HTTP/1.1 200 OK\r\nX: " .. ("y"):rep(70000) .. "\r\nContent-Length: 0\r\n\r\n" },
  { "129 headers", "HTTP/1.1 200 OK\r\n" .. ("X: y\r\n"):rep(129) .. "Content-Length: 0\r\n\r\n" },
  { "a chunk size that is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nPOISON\r\n0\r\n\r\n" },
  { "a chunk size that overflows",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000006\r\nPOISON\r\n" },
  { "a chunk that is longer than said",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nPOISON\r\n0\r\n\r\n" },
}

describe("workers that answer what nobody can read", function()
  setup(start)
  teardown(stop)

  for _, case in ipairs(HOSTILE) do
    it(("are a 502, or a cut answer, and no client gets another's: %s"):format(case[1]), function()
      local first = true
      say = function()
        if first then
          first = false
          return { case[2] .. POISON, stub.CLOSE }
        end
        return stub.reply(200, ANSWER)
      end
      local c = http.connect(port)
      c:ask({ path = "/v1/completions", body = BODY, headers = {} })
      local ok, answer = pcall(c.wait, c, nil, 10)
      if ok and answer.done then
        assert.equal(502, answer.status, answer.body)
        assert.falsy(answer.body:find("POISON", 1, true), answer.body)
      end
      c:close()
      answer = http.post(port, "/v1/completions", BODY)
      assert.equal(200, answer.status)
      assert.equal(ANSWER, answer.body)
    end)
  end

  it("do not answer the next request in advance", function()
    local count = 0
    say = function()
      count = count + 1
      return stub.reply(200, ANSWER) .. (count == 1 and POISON or "")
    end
    local c = http.connect(port)
    for _ = 1, 3 do
      c:ask({ path = "/v1/completions", body = BODY, headers = {} })
      local answer = c:wait()
      assert.equal(200, answer.status)
      assert.equal(ANSWER, answer.body)
    end
    c:close()
  end)

  it("may say 100 and 103 first, and not for ever", function()
    say = function()
      return ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"):rep(4)
        .. stub.reply(200, ANSWER)
    end
    local answer = http.post(port, "/v1/completions", BODY)
    assert.equal(200, answer.status)
    assert.equal(ANSWER, answer.body)
  end)
end)

describe("slow clients", function()
  setup(function()
    start("--client-head-timeout-secs", "0.5", "--client-body-stall-secs", "0.5", "--client-body-timeout-secs", "20",
      "--client-body-min-rate", "1000", "--client-idle-secs", "0.5", "--client-write-stall-secs", "0.5",
      "--max-buffered-bytes", "67108864")
  end)

  teardown(stop)

  -- Sends a byte now and then until the other side has enough of it. What it said.
  local function drip(first, byte, every)
    local c, begin = connect(), clock.now()
    local last = begin
    c:send(first)
    local answer = c:wait(function(a)
      local now = clock.now()
      if every and now - last >= every then
        last = now
        c:send(byte)
      end
      return a.closed
    end, 30)
    c:close()
    return answer.text
  end

  it("of the head, a byte at a time, get 408", function()
    assert.truthy(drip("GET /health HTTP/1.1\r\nX: ", "y", 0.02):find("^HTTP/1.1 408 "))
  end)

  it("of the body, that stop in its middle, get 408", function()
    assert.truthy(drip(with("Content-Length: 1000\r\n", "{")):find("^HTTP/1.1 408 "))
  end)

  it("of the body, a byte at a time, get 408 for their rate", function()
    assert.truthy(drip(with("Content-Length: 100000\r\n", "{"), " ", 0.05):find("^HTTP/1.1 408 "))
  end)

  it("of chunks, a byte at a time, likewise", function()
    assert.truthy(drip(chunks("1\r\n{\r\n"), "1\r\n \r\n", 0.05):find("^HTTP/1.1 408 "))
  end)

  it("that say nothing are closed", function()
    assert.equal("", drip(""))
  end)

  it("that do not read their answer are cut", function()
    local whole = stub.reply(200, '{"id":"x","choices":[],"text":"' .. ("x"):rep(16 * 1024 * 1024) .. '"}')
    say = function()
      return whole
    end
    local c = http.connect(port)
    c:expect_answer("POST")
    c:send(with(LENGTH))
    eventually(function()
      assert.equal(200, http.get(port, "/health").status) -- the worker's turn, too
      local log = gateway:stderr()
      return log:find("client_gone", 1, true), log:sub(-400)
    end, 20, "the request ends, as if its client had left")
    c:close()
    say = function()
      return stub.reply(200, ANSWER)
    end
    assert.equal(200, http.post(port, "/v1/completions", BODY).status)
  end)
end)

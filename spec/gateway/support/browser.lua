-- browser.lua - a headless Chromium, driven by its DevTools protocol.
--
--   local b = browser.start()
--   b:open("http://127.0.0.1:29000/ui")
--   b:wait('document.title == "Baton"', 10, "the page is there")
--   b:eval("document.title")
--   b:stop()
--
-- b.problems holds what its console and its log have said of errors, b.requests the URL of every request it has made.

local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local http = require("gateway.support.http")
local json = require("gateway.support.json")
local proc = require("gateway.support.proc")
local socket = require("socket")

local browser = {}

local Browser = {}
Browser.__index = Browser

local SECONDS = 30 -- of one command

-- ---- WebSocket, as far as DevTools goes: text frames, never fragmented by us ----

local function big_endian(n, width)
  local out = {}
  for i = width, 1, -1 do
    out[i] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(out)
end

-- A mask of zeros is a mask, and leaves the text as it is.
local function frame(text)
  local head = "\129"
  if #text < 126 then
    head = head .. string.char(128 + #text)
  elseif #text < 65536 then
    head = head .. string.char(128 + 126) .. big_endian(#text, 2)
  else
    head = head .. string.char(128 + 127) .. big_endian(#text, 8)
  end
  return head .. "\0\0\0\0" .. text
end

local function receive(self, n)
  local text, why, part = self.socket:receive(n)
  assert(text, "the browser's socket: " .. tostring(why) .. " " .. #(part or ""))
  return text
end

local function number(bytes)
  local n = 0
  for i = 1, #bytes do
    n = n * 256 + bytes:byte(i)
  end
  return n
end

-- One message, joined of its frames.
local function read_message(self)
  local parts = {}
  repeat
    local first, second = receive(self, 2):byte(1, 2)
    local n = second % 128
    if n == 126 then
      n = number(receive(self, 2))
    elseif n == 127 then
      n = number(receive(self, 8))
    end
    parts[#parts + 1] = n > 0 and receive(self, n) or ""
  until first >= 128
  return table.concat(parts)
end

local function connect(self, url)
  local port, path = url:match("^ws://[^:]+:(%d+)(/.*)$")
  self.socket = assert(socket.connect("127.0.0.1", tonumber(port)))
  self.socket:settimeout(SECONDS)
  assert(self.socket:send(("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" ..
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"):format(path, port)))
  assert(self.socket:receive("*l"):find(" 101 ", 1, true), "no WebSocket")
  repeat
    local line = assert(self.socket:receive("*l"))
  until line == ""
end

-- ---- DevTools ----

local function words_of(args)
  local out = {}
  for i, a in ipairs(args or {}) do
    out[i] = tostring(a.value or a.description)
  end
  return table.concat(out, " ")
end

local notes = {}

notes["Runtime.consoleAPICalled"] = function(self, p)
  if p.type == "error" or p.type == "warning" or p.type == "assert" then
    table.insert(self.problems, p.type .. ": " .. words_of(p.args))
  end
end
notes["Runtime.exceptionThrown"] = function(self, p)
  local d = p.exceptionDetails
  table.insert(self.problems, "exception: " .. tostring(d.exception and d.exception.description or d.text))
end
notes["Log.entryAdded"] = function(self, p)
  if p.entry.level == "error" or p.entry.level == "warning" then
    table.insert(self.problems, ("%s: %s %s"):format(p.entry.source, p.entry.text, p.entry.url or ""))
  end
end
notes["Network.requestWillBeSent"] = function(self, p)
  table.insert(self.requests, p.request.url)
end

function Browser:send(method, params)
  self.last = self.last + 1
  local id = self.last
  assert(self.socket:send(frame(json.encode({ id = id, method = method, params = params or { _ = 0 } }))))
  while true do
    local message = json.decode(read_message(self))
    if message.id == id then
      if message.error then
        error(method .. ": " .. tostring(message.error.message), 2)
      end
      return message.result
    elseif notes[message.method] then
      notes[message.method](self, message.params)
    end
  end
end

-- The value of an expression, which may be a promise.
function Browser:eval(expression)
  local answer = self:send("Runtime.evaluate", { expression = expression, awaitPromise = true, returnByValue = true })
  if answer.exceptionDetails then
    local d = answer.exceptionDetails
    error(expression .. ": " .. tostring(d.exception and d.exception.description or d.text), 2)
  end
  return answer.result.value
end

-- Waits until it is true; how long that took, in milliseconds.
function Browser:wait(expression, seconds, what)
  local begin = clock.now()
  eventually(function()
    return self:eval(expression) == true, tostring(self:eval("document.body && document.body.innerText.slice(0, 1500)"))
  end, seconds or 10, what or expression)
  return (clock.now() - begin) * 1000
end

function Browser:open(url)
  self:send("Page.navigate", { url = url })
  self:wait(('document.readyState == "complete" && location.href.startsWith("%s")'):format(url:match("^%a+:")), 20,
    "the page has loaded")
end

-- A PNG of what is seen, as its bytes in base64.
function Browser:screenshot()
  return self:send("Page.captureScreenshot", { format = "png" }).data
end

function Browser:stop()
  self.socket:close()
  self.process:stop(5)
end

function browser.path()
  local file = io.popen("command -v chromium chromium-browser google-chrome 2>/dev/null", "r")
  local path = file:read("*l")
  file:close()
  return path
end

-- opts: width, height, dark (the user's preference).
function browser.start(opts)
  opts = opts or {}
  local path = assert(browser.path(), "no chromium: spec/tools/deps.sh install test")
  local process = proc.start({
    path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--no-default-browser-check",
    "--hide-scrollbars", "--remote-debugging-port=0", "--user-data-dir=" .. proc.path("chromium"),
    ("--window-size=%d,%d"):format(opts.width or 1280, opts.height or 900), "about:blank",
  }, { name = "chromium", env = { HOME = proc.folder() } })
  local port = eventually(function()
    return process:stderr():match("DevTools listening on ws://127%.0%.0%.1:(%d+)/"), process:stderr()
  end, 30, "chromium listens")
  local page = eventually(function()
    for _, target in ipairs(json.decode(http.get(tonumber(port), "/json/list").body)) do
      if target.type == "page" then
        return target
      end
    end
  end, 20, "chromium has a page")
  local self = setmetatable({ process = process, last = 0, problems = {}, requests = {} }, Browser)
  connect(self, page.webSocketDebuggerUrl)
  for _, domain in ipairs({ "Page", "Runtime", "Log", "Network" }) do
    self:send(domain .. ".enable")
  end
  self:send("Emulation.setEmulatedMedia",
    { features = { { name = "prefers-color-scheme", value = opts.dark and "dark" or "light" } } })
  return self
end

return browser

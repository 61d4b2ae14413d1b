-- What `make install` lays down: the files, programs that need nothing else, pages and completions that know all flags.

local eventually = require("gateway.support.eventually")
local fleet = require("gateway.support.fleet")
local http = require("gateway.support.http")
local proc = require("gateway.support.proc")

local build = (os.getenv("BATON_BIN") or "build/release/baton"):gsub("/[^/]*$", "")
local root

local function shell(command)
  local pipe = assert(io.popen("( " .. command .. " ) 2>&1; echo \"status $?\""))
  local text = pipe:read("*a")
  pipe:close()
  local body, status = text:match("^(.-)status (%d+)\n$")
  return tonumber(status), body
end

local function must(command)
  local status, text = shell(command)
  assert(status == 0, command .. "\n" .. text)
  return text
end

local function has(program)
  return (shell("command -v " .. program)) == 0
end

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

local function cells(line)
  local found = {}
  for cell in (line .. "\t"):gmatch("(.-)\t") do
    found[#found + 1] = cell
  end
  return found
end

-- Rows of `baton help table` of a kind.
local function rows(kind)
  local found = {}
  for line in must(build .. "/baton help table"):gmatch("[^\n]+") do
    local row = cells(line)
    if row[1] == kind then
      found[#found + 1] = row
    end
  end
  assert(#found > 20)
  return found
end

local function complete(words)
  local list = {}
  for word in (words .. "|"):gmatch("(.-)|") do
    list[#list + 1] = "'" .. word .. "'"
  end
  return must(([[bash -c 'source packaging/baton.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _baton; ]] ..
    [[printf "%%s\n" "${COMPREPLY[@]}"' x %s]]):gsub("packaging/", build .. "/packaging/")
    :format(table.concat(list, " ")))
end

describe("an installed Baton", function()
  setup(function()
    root = must("mktemp -d"):gsub("\n", "")
    must(("DESTDIR=%s cmake --install %s"):format(root, build))
  end)

  teardown(function()
    os.execute("rm -rf " .. root)
  end)

  it("has its files where the file system hierarchy wants them", function()
    local found = must(("cd %s && find . ! -type d ! -path '*/examples/*' | LC_ALL=C sort"):format(root))
    found = found:gsub("/lib/[^/\n]*%-linux%-gnu[^/\n]*/", "/lib/"):gsub("/lib64/", "/lib/")
    assert.equal([[
./usr/local/bin/baton
./usr/local/bin/baton-sim
./usr/local/etc/baton/baton.lua
./usr/local/include/baton_kv.h
./usr/local/lib/libbaton_kv.so
./usr/local/lib/libbaton_kv.so.0
./usr/local/lib/libbaton_kv.so.VERSION
./usr/local/lib/pkgconfig/baton_kv.pc
./usr/local/lib/systemd/system/baton-admin.socket
./usr/local/lib/systemd/system/baton.service
./usr/local/lib/systemd/system/baton.socket
./usr/local/lib/sysusers.d/baton.conf
./usr/local/share/bash-completion/completions/baton
./usr/local/share/doc/baton/API.md
./usr/local/share/doc/baton/CHANGELOG.md
./usr/local/share/doc/baton/LICENSE
./usr/local/share/doc/baton/SECURITY.md
./usr/local/share/doc/baton/policies.md
./usr/local/share/man/man1/baton-sim.1.gz
./usr/local/share/man/man1/baton.1.gz
./usr/local/share/man/man5/baton.lua.5.gz
./usr/local/share/zsh/site-functions/_baton
]], (found:gsub("so%.%d+%.%d+%.%d+", "so.VERSION")))
  end)

  it("runs from any place, with no file but its own", function()
    local baton = root .. "/usr/local/bin/baton"
    must("cd / && " .. baton .. " check " .. root .. "/usr/local/etc/baton/baton.lua --port 0 --admin-port 0")
    assert.truthy(must("cd / && " .. baton .. " policy list"):find("least_load", 1, true))
    local examples = must("find " .. root .. "/usr/local/share/doc/baton/examples -name baton.lua")
    local count = 0
    for path in examples:gmatch("[^\n]+") do
      if os.getenv("BATON_HAS_ZMQ") == "1" or os.getenv("BATON_HAS_ZMQ") == "ON" or not path:find("registered") then
        local more = path:find("baton_kv/", 1, true) and " --transfer-port 0" or ""
        must("cd / && " .. baton .. " check " .. path .. " --port 0 --admin-port 0" .. more)
        count = count + 1
      end
    end
    assert.is_true(count >= 10)
  end)

  it("keeps a configuration that is there", function()
    local path = root .. "/usr/local/etc/baton/baton.lua"
    must("echo '-- mine' > " .. path)
    must(("DESTDIR=%s cmake --install %s"):format(root, build))
    assert.equal("-- mine\n", read(path))
  end)

  it("is found by compilers and by libbaton_kv's users", function()
    local flags = must(("PKG_CONFIG_SYSROOT_DIR=%s PKG_CONFIG_PATH=$(dirname $(find %s -name baton_kv.pc)) " ..
      "pkg-config --cflags --libs baton_kv"):format(root, root)):gsub("\n", "")
    local source = root .. "/t.c"
    local file = assert(io.open(source, "w"))
    file:write("#include <baton_kv.h>\n#include <stddef.h>\nint main(void) { return bt_kv_agent_open == NULL; }\n")
    file:close()
    if os.getenv("BATON_SANITIZE") ~= "" then
      return pending("a program without its sanitizer cannot load the library")
    end
    must(("cc %s %s -o %s/t && LD_LIBRARY_PATH=$(dirname $(find %s -name libbaton_kv.so)) %s/t"):format(source, flags,
      root, root, root))
  end)

  it("names the programs in its units as they are installed", function()
    local unit = read(root .. "/usr/local/lib/systemd/system/baton.service")
    assert.truthy(unit:find("ExecStart=/usr/local/bin/baton run /usr/local/etc/baton/baton.lua\n", 1, true))
    assert.truthy(unit:find("\nSystemCallFilter=@system-service\n", 1, true))
  end)
end)

-- What packaging/Containerfile puts into an image, without an engine that runs images.
describe("the root file system of a container", function()
  local place

  setup(function()
    place = must("mktemp -d"):gsub("\n", "")
  end)

  teardown(function()
    proc.clean()
    os.execute("rm -rf " .. place)
  end)

  it("is small, and holds what the gateway needs to answer", function()
    if os.getenv("BATON_SANITIZE") ~= "" then
      return pending("users do not run sanitized programs")
    end
    must(("packaging/rootfs %s/baton %s"):format(build, place))
    local kib = tonumber((must("du -sk --apparent-size " .. place):match("^%d+")))
    assert.is_true(kib < 40 * 1024, kib .. " KiB")
    local programs = "cd %s && find usr/bin bin sbin usr/sbin -type f 2>/dev/null || true"
    assert.equal("usr/bin/baton\n", must(programs:format(place)))
    if shell("unshare -r --root=" .. place .. " /usr/bin/baton version") ~= 0 then
      return pending("no user namespaces here")
    end
    local sim = fleet.start_sim({ "role=hybrid,name=h" })
    local gateway = proc.start({ "/usr/bin/unshare", "-r", "--root=" .. place, "/usr/bin/baton", "run",
      "/etc/baton/baton.lua", "--port", "0", "--admin-port", "0", "--ready-file", "/tmp/ready", "--worker-urls",
      sim.workers.h.url })
    local port
    eventually(function()
      port = proc.read(place .. "/tmp/ready"):match('"port":(%d+)')
      return http.get(port, "/readiness").status == 200, gateway:stderr()
    end, 10, "the gateway is ready")
    local answer = http.post(port, "/v1/completions", '{"model":"sim","prompt":"hello there","max_tokens":4}')
    assert.equal(200, answer.status, answer.body)
    http.hang_up(port)
    assert.equal(0, (gateway:stop(10)))
  end)
end)

describe("the manual pages", function()
  it("know every flag and every key", function()
    local page = read(build .. "/packaging/baton.1"):gsub("\\%-", "-")
    for _, row in ipairs(rows("flag")) do
      assert.truthy(page:find("\n.It Fl -" .. row[3], 1, true), row[3])
    end
    page = read(build .. "/packaging/baton.lua.5")
    for _, row in ipairs(rows("key")) do
      assert.truthy(page:find("\n.It Va " .. row[3] .. "\n", 1, true), row[3])
    end
  end)

  it("are clean mdoc", function()
    for _, page in ipairs({ "baton.1", "baton.lua.5", "baton-sim.1" }) do
      local path = build .. "/packaging/" .. page
      if has("mandoc") then
        must("mandoc -T lint -W warning " .. path)
      elseif has("man") and has("groff") then
        assert.equal("", must("LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z " .. path .. " >/dev/null"))
      else
        return pending("neither mandoc nor man and groff are here")
      end
    end
  end)
end)

describe("completions", function()
  it("of bash offer commands, every flag, words of choices, policies", function()
    assert.equal("kv-bench\n", complete("baton|kv"))
    local offered = "\n" .. complete("baton|run|--")
    for _, row in ipairs(rows("flag")) do
      assert.truthy(offered:find("\n--" .. row[3]:gsub("^%[no%-%]", "") .. "\n", 1, true), row[3])
    end
    assert.equal("--no-access-log\n", complete("baton|run|--no-acc"))
    assert.equal("warn\n", complete("baton|run|--log-level|w"))
    assert.equal("json\n", complete("baton|run|--log-format|=|j"))
    assert.equal("least_load\n", complete("baton|run|--policy|least_"))
    assert.equal("advice\n", complete("baton|fleet|adv"))
    assert.equal("revoke\n", complete("baton|key|rev"))
  end)

  it("of bash offer a tool's own flags, and no other's", function()
    for tool, own in pairs({ fleet = "--dry-run", key = "--store", replay = "--against", top = "--admin",
      sim = "--switch-auto", ["kv-bench"] = "--shapes" }) do
      local offered = complete("baton|" .. tool .. "|--")
      assert.truthy(("\n" .. offered):find("\n" .. own .. "\n", 1, true), tool .. ": " .. offered)
      for flag in offered:gmatch("%-%-[%w%-]+") do
        local _, said = shell(("%s/baton %s %s </dev/null | head -c 4096"):format(build, tool, flag))
        assert.is_nil(said:find("unknown flag", 1, true), tool .. " " .. flag .. ": " .. said)
      end
    end
    assert.equal("--labels\n", complete("baton|policy|check|--lab"))
    assert.truthy(complete("baton|policy|check|--policy-p"):find("--policy-param\n", 1, true))
    assert.equal("\n", complete("baton|policy|bench|--policy-p"))
  end)

  it("of zsh are well-formed, and know every flag", function()
    local path = build .. "/packaging/baton.zsh"
    local text = read(path)
    for _, row in ipairs(rows("flag")) do
      assert.truthy(text:find("'*--" .. row[3]:gsub("^%[no%-%]", ""), 1, true), row[3])
    end
    if not has("zsh") then
      return pending("no zsh here")
    end
    must("zsh -n " .. path)
  end)
end)

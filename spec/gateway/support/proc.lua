-- proc.lua - child processes that cannot outlive a spec.
--
-- A child's output goes to files of its own, stderr to a pipe that nobody reads where a spec asks for that. The kernel
-- kills it when this process ends, however that ends.

local bit = require("bit")
local clock = require("gateway.support.clock")
local eventually = require("gateway.support.eventually")
local ffi = require("ffi")

ffi.cdef([[
int fork(void);
int execv(const char *path, char *const argv[]);
int kill(int pid, int sig);
int waitpid(int pid, int *status, int options);
int open(const char *path, int flags, ...);
int dup2(int from, int to);
int close(int fd);
int pipe(int fds[2]);
long read(int fd, void *to, size_t size);
int fcntl(int fd, int command, ...);
int getpid(void);
int getppid(void);
int setpgid(int pid, int group);
typedef struct { unsigned long soft, hard; } bt_spec_rlimit;
int getrlimit(int resource, bt_spec_rlimit *limit);
int setrlimit(int resource, const bt_spec_rlimit *limit);
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int setenv(const char *name, const char *value, int overwrite);
char *mkdtemp(char *template_);
void _exit(int status);
]])

local C = ffi.C
local proc = {
  SIGHUP = 1, SIGINT = 2, SIGKILL = 9, SIGUSR1 = 10, SIGUSR2 = 12, SIGTERM = 15, SIGCONT = 18, SIGSTOP = 19,
}

proc.RLIMITS = { data = 2, files = 7, space = 9 }

local PR_SET_PDEATHSIG = 1
local O_RDONLY, O_WRONLY_CREATE_TRUNCATE = 0, 1 + 64 + 512
local WNOHANG = 1
local F_DUPFD, F_SETFL, F_SETPIPE_SZ, O_NONBLOCK = 0, 4, 1031, 2048
local FDS = 1024

local Process = {}
Process.__index = Process

local live = {} -- pid -> process
local folder, numbered = nil, 0

-- A folder for all files of this run; emptied by proc.clean.
function proc.folder()
  if not folder then
    local template = (os.getenv("TMPDIR") or "/tmp") .. "/baton-spec-XXXXXX"
    local path = ffi.new("char[?]", #template + 1, template)
    assert(C.mkdtemp(path) ~= nil, "no folder for temporary files")
    folder = ffi.string(path)
  end
  return folder
end

-- A path that nothing has yet.
function proc.path(name)
  numbered = numbered + 1
  return ("%s/%03d-%s"):format(proc.folder(), numbered, name)
end

function proc.write(name, text)
  local path = proc.path(name)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
  return path
end

-- more: a list, or nil.
function proc.append(list, more)
  for _, word in ipairs(more or {}) do
    list[#list + 1] = word
  end
end

-- As an editor does: a new file takes the name.
function proc.replace(path, text)
  local file = assert(io.open(path .. ".tmp", "w"))
  file:write(text)
  file:close()
  assert(os.rename(path .. ".tmp", path))
end

function proc.read(path)
  local file = io.open(path, "r")
  if not file then
    return nil
  end
  local text = file:read("*a")
  file:close()
  return text
end

-- In the child: these sockets and no other descriptor, from 3 on, told of as systemd does.
local function take_sockets(sockets)
  local kept, names = {}, {}
  for i, s in ipairs(sockets) do
    kept[i] = C.fcntl(s.fd, F_DUPFD, ffi.cast("int", FDS - 64))
    names[i] = s.name
  end
  for fd = 3, FDS - 65 do
    C.close(fd)
  end
  for i, fd in ipairs(kept) do
    C.dup2(fd, 2 + i)
  end
  for fd = FDS - 64, FDS do
    C.close(fd)
  end
  if #sockets > 0 then
    C.setenv("LISTEN_PID", tostring(C.getpid()), 1)
    C.setenv("LISTEN_FDS", tostring(#sockets), 1)
    C.setenv("LISTEN_FDNAMES", table.concat(names, ":"), 1)
  end
end

-- Runs in the child. Only system calls: the other half of this Lua state is still in the parent.
local function become(path, argv, opts, out, err, pipe_fd, parent)
  C.prctl(PR_SET_PDEATHSIG, proc.SIGKILL, 0, 0, 0)
  if C.getppid() ~= parent then
    C._exit(126)
  end
  local null_fd = C.open("/dev/null", O_RDONLY)
  local out_fd = C.open(out, O_WRONLY_CREATE_TRUNCATE, ffi.cast("int", 384))
  local err_fd = pipe_fd or C.open(err, O_WRONLY_CREATE_TRUNCATE, ffi.cast("int", 384))
  C.dup2(null_fd, 0)
  C.dup2(out_fd, 1)
  C.dup2(err_fd, 2)
  take_sockets(opts.sockets or {})
  for name, value in pairs(opts.env or {}) do
    C.setenv(name, value, 1)
  end
  for name, limit in pairs(opts.limits or {}) do
    C.setrlimit(proc.RLIMITS[name], ffi.new("bt_spec_rlimit", limit, limit))
  end
  C.execv(path, argv)
  C._exit(127)
end

-- A pipe with room for one page: the end to read, which does not block, and the end to write.
local function small_pipe()
  local fds = ffi.new("int[2]")
  assert(C.pipe(fds) == 0, "no pipe")
  C.fcntl(fds[0], F_SETFL, ffi.cast("int", O_NONBLOCK))
  C.fcntl(fds[0], F_SETPIPE_SZ, ffi.cast("int", 4096))
  return fds[0], fds[1]
end

-- argv[1] is a path. opts: name (of the output files), env, limits (files; data and space in bytes), stalled_stderr (a
-- pipe that is read by Process:stderr only), sockets (a list of { fd, name } that it gets as from systemd).
function proc.start(argv, opts)
  opts = opts or {}
  local name = opts.name or argv[1]:match("[^/]*$")
  local out, err = proc.path(name .. ".out"), proc.path(name .. ".err")
  local words = {}
  local array = ffi.new("char *[?]", #argv + 1)
  for i, word in ipairs(argv) do
    words[i] = ffi.new("char[?]", #tostring(word) + 1, tostring(word))
    array[i - 1] = words[i]
  end
  local read_fd, write_fd
  if opts.stalled_stderr then
    read_fd, write_fd = small_pipe()
  end
  local parent = C.getpid()
  local pid = C.fork()
  assert(pid >= 0, "fork failed")
  if pid == 0 then
    become(argv[1], array, opts, out, err, write_fd, parent)
  end
  if write_fd then
    C.close(write_fd)
  end
  local self = setmetatable(
    { pid = pid, name = name, out = out, err = err, err_fd = read_fd, argv = argv, words = words }, Process)
  live[pid] = self
  return self
end

function Process:kill(signal)
  if not self.ended then
    self.was_killed = self.was_killed or signal == proc.SIGKILL or signal == nil
    C.kill(self.pid, signal or proc.SIGKILL)
  end
end

local function note_end(self, status)
  live[self.pid] = nil
  self.ended = true
  local signal = bit.band(status, 127)
  if signal ~= 0 then
    self.signal = signal
  else
    self.code = bit.band(bit.rshift(status, 8), 255)
  end
end

function Process:is_alive()
  if self.ended then
    return false
  end
  local status = ffi.new("int[1]")
  if C.waitpid(self.pid, status, WNOHANG) == self.pid then
    note_end(self, status[0])
  end
  return not self.ended
end

-- The exit code (or nil and the signal); an error when it has not ended in time.
function Process:wait(seconds)
  local deadline = clock.now() + (seconds or 10) * clock.slowness()
  while self:is_alive() do
    if clock.now() > deadline then
      error(("%s (pid %d) has not ended in time\n%s"):format(self.name, self.pid, self:stderr()), 2)
    end
    clock.nap(0.002)
  end
  return self.code, self.signal
end

-- SIGTERM, and SIGKILL when that does not help.
function Process:stop(seconds)
  self:kill(proc.SIGTERM)
  local ok = pcall(self.wait, self, seconds or 5)
  if not ok then
    self:kill(proc.SIGKILL)
    self:wait(5)
  end
  return self.code, self.signal
end

function Process:stdout()
  return proc.read(self.out) or ""
end

-- What is in the pipe now, added to what was. From here on it has room for more, so that reading is quick.
local function drain(self)
  local size = 1048576
  local room = ffi.new("char[?]", size)
  C.fcntl(self.err_fd, F_SETPIPE_SZ, ffi.cast("int", size))
  local pieces = { self.err_text or "" }
  local n = C.read(self.err_fd, room, size)
  while n > 0 do
    pieces[#pieces + 1] = ffi.string(room, n)
    n = C.read(self.err_fd, room, size)
  end
  self.err_text = table.concat(pieces)
  return self.err_text
end

function Process:stderr()
  return self.err_fd and drain(self) or proc.read(self.err) or ""
end

-- Runs to the end: code, stdout, stderr.
-- Waits until its log has this text: lines leave by a thread, later than what they tell of.
function Process:says(text)
  eventually(function()
    local log = self:stderr()
    return log:find(text, 1, true) ~= nil, log
  end, 10, "the log says " .. text)
end

function proc.run(argv, opts)
  local p = proc.start(argv, opts)
  local code = p:wait(opts and opts.seconds)
  return code, p:stdout(), p:stderr()
end

function proc.kill_all()
  local all = {}
  for _, p in pairs(live) do
    all[#all + 1] = p
  end
  for _, p in ipairs(all) do
    p:kill(proc.SIGKILL)
    p:wait(5)
  end
end

function proc.clean()
  proc.kill_all()
  if folder then
    os.execute("rm -rf '" .. folder .. "'")
    folder = nil
  end
end

return proc

-- manual.lua - manual pages and shell completions, made from what the programs say about themselves.
--
--   luajit packaging/manual.lua OUT VERSION YYYY-MM-DD BATON BATON_SIM
--
-- Writes baton.1, baton.lua.5, baton-sim.1 (mdoc), baton.bash and baton.zsh into OUT. Flags and keys come from `baton
-- help table`, commands from `baton --help`, the rest from the commands' own help, so none of it is written twice.

local out_dir, version, date, baton, sim = unpack(arg)
assert(sim, "usage: manual.lua OUT VERSION YYYY-MM-DD BATON BATON_SIM")

local function output_of(...)
  local words = {}
  for i, word in ipairs({ ... }) do
    words[i] = "'" .. word .. "'"
  end
  local pipe = assert(io.popen(table.concat(words, " ")))
  local text = pipe:read("*a")
  assert(pipe:close() and #text > 0, table.concat(words, " ") .. " says nothing")
  return text
end

local function write(name, text)
  local file = assert(io.open(out_dir .. "/" .. name, "w"))
  assert(file:write(text) and file:close())
end

-- ---- what the program says ----

local flags, groups = {}, {} -- rows in order; titles of groups in order
local keys = { top = {}, pool = {}, limit = {}, worker = {} }

for line in output_of(baton, "help", "table"):gmatch("[^\n]+") do
  local cells = {}
  for cell in (line .. "\t"):gmatch("(.-)\t") do
    cells[#cells + 1] = cell
  end
  if cells[1] == "flag" then
    local name, negated = cells[3]:gsub("^%[no%-%]", "")
    flags[#flags + 1] =
      { group = cells[2], name = name, has_no = negated == 1, hint = cells[4], words = cells[5], help = cells[6] }
    if groups[#groups] ~= cells[2] then
      groups[#groups + 1] = cells[2]
    end
  else
    table.insert(keys[cells[2]], { name = cells[3], type = cells[4], help = cells[5] })
  end
end

-- Rows "  baton WORD ...   text" of the overview, with the lines that go on.
local commands = {}
for line in output_of(baton, "--help"):gmatch("[^\n]*") do
  local left, text = line:match("^  (baton .-)  +(%S.*)$")
  local more = line:match("^ +(%S.*)$")
  if line == "Examples" then
    break
  elseif left then
    commands[#commands + 1] = { left = left, text = text }
  elseif line:match("^  baton ") then
    commands[#commands + 1] = { left = line:sub(3), text = "" }
  elseif more and #commands > 0 then
    commands[#commands].text = commands[#commands].text .. " " .. more
  end
end

local overview, run_help = output_of(baton, "--help"), output_of(baton, "help", "run")
local examples = overview:match("\nExamples\n(.*)$")
local signals = run_help:match("\nSignals\n(.-)\n\n")
local policies = {}
for name in output_of(baton, "policy", "list"):gmatch("([%w_]+)[^\n]*\n?") do
  policies[#policies + 1] = name
end
local tools = { "policy", "fleet", "key", "replay", "top", "sim", "kv-bench" }

-- ---- manual pages ----

local function escape(text)
  text = text:gsub("\\", "\\e"):gsub("%-", "\\-")
  return (text:gsub("^([.'])", "\\&%1"):gsub("\n([.'])", "\n\\&%1"))
end

-- Running text: a new sentence begins on a new line.
local function prose(text)
  return (escape(text):gsub("%. +(%u)", ".\n%1"))
end

local MONTHS = {
  "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
  "December",
}
local year, month, day = date:match("^(%d+)%-(%d+)%-(%d+)$")
local long_date = ("%s %d, %s"):format(MONTHS[tonumber(month)], tonumber(day), year)

local function head(title, section, what)
  return ('.\\" Made by packaging/manual.lua from the program\'s own help.\n.Dd %s\n.Dt %s %d\n.Os "Baton %s"\n' ..
    ".Sh NAME\n.Nm %s\n.Nd %s\n"):format(long_date, title:upper(), section, version, title, what)
end

local function literal(text)
  return ".Bd -literal\n" .. escape((text:gsub("\n+$", ""))) .. "\n.Ed\n"
end

local function list(rows, macro)
  local out = { ".Bl -tag -width Ds" }
  for _, row in ipairs(rows) do
    out[#out + 1] = ".It " .. macro(row)
    local text = row.text or row.help
    out[#out + 1] = text ~= "" and prose(text) or nil
  end
  out[#out + 1] = ".El"
  return table.concat(out, "\n") .. "\n"
end

local function flag_item(flag)
  local fl = "Fl \\-" .. (flag.has_no and "[no\\-]" or "") .. escape(flag.name)
  return flag.hint == "" and fl or fl .. " Ar " .. escape(flag.hint)
end

local function page_of_baton()
  local page = { head("baton", 1, "gateway for LLM servers that split prefill from decode"), ".Sh SYNOPSIS\n" }
  for _, word in ipairs({ "run", "check" }) do
    page[#page + 1] = (".Nm\n.Cm %s\n.Op Ar baton.lua\n.Op Ar flags\n"):format(word)
  end
  for _, tool in ipairs(tools) do
    page[#page + 1] = (".Nm\n.Cm %s\n.Ar ...\n"):format(escape(tool))
  end
  page[#page + 1] = ".Nm\n.Cm help\n.Op Ar topic\n.Sh DESCRIPTION\n.Nm\nserves the HTTP APIs of LLM engines " ..
    "in front of their workers.\nIt splits requests into a prefill and a decode leg, joins the two by the exact " ..
    "protocol of the engines' KV connector, and lets Lua policies choose the workers.\n.Pp\nThe commands are:\n"
  page[#page + 1] = list(commands, function(row)
    return 'Ic "' .. escape(row.left) .. '"'
  end)
  page[#page + 1] = ".Sh OPTIONS\nThese are flags of\n.Cm run\nand\n.Cm check .\nThey override the file.\n" ..
    prose("--flag VALUE and --flag=VALUE are the same; --no-X turns the switch X off. Defaults are in parentheses.") ..
    "\n"
  for _, group in ipairs(groups) do
    local rows = {}
    for _, flag in ipairs(flags) do
      rows[#rows + 1] = flag.group == group and flag or nil
    end
    page[#page + 1] = ".Ss " .. group .. "\n" .. list(rows, flag_item)
  end
  page[#page + 1] = ".Sh SIGNALS\n" .. literal(signals)
  for _, tool in ipairs(tools) do
    page[#page + 1] = ".Sh BATON " .. escape(tool:upper()) .. "\n" .. literal(output_of(baton, "help", tool))
  end
  page[#page + 1] = ".Sh FILES\n.Bl -tag -width Ds\n.It Pa /etc/baton/baton.lua\nread by the service; see\n" ..
    ".Xr baton.lua 5 .\n.El\n.Sh EXIT STATUS\n" ..
    escape("Of run: 0 ended, 1 could not go on, 2 wrong command line or configuration (one line says what).") ..
    "\n.Sh EXAMPLES\n" .. literal(examples) .. ".Sh SEE ALSO\n.Xr baton-sim 1 ,\n.Xr baton.lua 5\n"
  return table.concat(page)
end

local function page_of_file()
  local file_help = output_of(baton, "help", "file")
  local intro, example = file_help:match("^(.-)\n\n(.-)\n\nTop level\n")
  local item = function(key)
    return "Va " .. escape(key.name)
  end
  for _, place in pairs(keys) do
    for _, key in ipairs(place) do
      key.text = (key.type == "" and "" or key.type .. ": ") .. key.help
    end
  end
  return table.concat({
    head("baton.lua", 5, "configuration file of baton"), ".Sh DESCRIPTION\n", prose((intro:gsub("\n", " "))), "\n",
    "Mistakes are told with their place and the remedy; an unknown key is one.\n.Nm baton\n.Cm check\n" ..
    ".Ar baton.lua\ntells the first.\nSIGHUP reads the file again; what only a restart changes is named then.\n",
    ".Sh EXAMPLES\n", literal(example), ".Sh TOP LEVEL\n", list(keys.top, item),
    ".Sh POOLS\n", "These may also stand at the top level, for all pools.\n", list(keys.pool, item),
    ".Sh LIMITS\n", list(keys.limit, item), ".Sh WORKERS\n", list(keys.worker, item), ".Sh SEE ALSO\n.Xr baton 1\n",
  })
end

local function page_of_sim()
  local help = output_of(sim, "--help")
  local what = help:match("^baton%-sim: ([^\n]+)")
  return table.concat({
    head("baton-sim", 1, escape(what)), ".Sh SYNOPSIS\n.Nm\n.Op Ar flags\n.Sh DESCRIPTION\n",
    literal((help:gsub("^[^\n]+\n+", ""))), ".Sh SEE ALSO\n.Xr baton 1\n",
  })
end

-- ---- completions ----

-- What a value is, by its hint: the word that the shells' templates know.
local KINDS = { FILE = "file", PATH = "path", DIR = "dir", ["NAME|FILE"] = "policy" }

-- The left column of a tool's help, and its usage: what it takes. Texts beside it name other programs' flags too.
local function left_column(tool)
  local lines = {}
  for line in output_of(baton, "help", tool):gmatch("[^\n]*") do
    if line:match("^Examples?$") then
      break
    end
    local indent, left = (line .. "  "):match("^( +)(%S.-)  ")
    lines[#lines + 1] = line:match("^usage:%s+(.*)") or line:match("^       (baton .*)")
      or indent and #indent <= 6 and left or nil
  end
  return lines
end

local function add_new(words, seen, word)
  if not seen[word] then
    seen[word] = true
    words[#words + 1] = word
  end
end

-- Sub-commands, then flags.
local function tool_words(tool)
  local words, seen = {}, {}
  local lines = left_column(tool)
  for _, line in ipairs(lines) do
    local word = line:match("^([a-z]+)%f[^a-z]")
    if word and word ~= "baton" and (" policy fleet key "):find(" " .. tool .. " ", 1, true) then
      add_new(words, seen, word)
    end
  end
  for _, line in ipairs(lines) do
    for flag in line:gmatch("%-%-[a-z][a-z%-]+") do
      add_new(words, seen, flag)
    end
  end
  return table.concat(words, " ")
end

local function all_flags(has_negations)
  local words = {}
  for _, flag in ipairs(flags) do
    words[#words + 1] = "--" .. flag.name
    if flag.has_no and has_negations then
      words[#words + 1] = "--no-" .. flag.name
    end
  end
  return words
end

local function command_words()
  local words, seen = {}, {}
  for _, row in ipairs(commands) do
    local word = row.left:match("^baton (%S+)")
    if not seen[word] then
      seen[word] = true
      words[#words + 1] = word
    end
  end
  return words
end

local function bash()
  local cases = {}
  for _, flag in ipairs(flags) do
    local kind = flag.words ~= "" and "words " .. flag.words:gsub("|", " ") or KINDS[flag.hint]
    if kind then
      cases[#cases + 1] = ("    --%s) _baton_%s; return ;;"):format(flag.name, kind)
    elseif flag.hint ~= "" then
      cases[#cases + 1] = ("    --%s) return ;;"):format(flag.name)
    end
  end
  local by_tool = {}
  for _, tool in ipairs(tools) do
    by_tool[#by_tool + 1] = ('    %s) %s_baton_words %s; _baton_file ;;'):format(tool,
      tool == "policy" and "_baton_check_flags; " or "", tool_words(tool))
  end
  return ([[
# bash completion of baton, made from its own help

_baton_words() { COMPREPLY+=($(compgen -W "$*" -- "$cur")); }
_baton_file() { COMPREPLY+=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null; }
_baton_path() { return; }
_baton_dir() { COMPREPLY+=($(compgen -d -- "$cur")); compopt -o filenames 2>/dev/null; }
_baton_policy() { _baton_words @POLICIES@; _baton_file; }
# Of run, as a policy is checked for it.
_baton_check_flags() { [ "${COMP_WORDS[2]}" != check ] || _baton_words @FLAGS@; }

_baton_flag_value() {
    case $1 in
@CASES@
    *) return 1 ;;
    esac
}

_baton() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    COMPREPLY=()
    # --flag=value comes as three words.
    if [ "$cur" = = ]; then cur=; elif [ "$prev" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        _baton_words @COMMANDS@
        return
    fi
    case $command in
    run | check)
        _baton_flag_value "$prev" && return
        case $cur in
        -*) _baton_words @FLAGS@ ;;
        *) _baton_file ;;
        esac
        ;;
    help) _baton_words run file peers table @TOOLS@ ;;
@BY_TOOL@
    esac
}
complete -F _baton baton
]]):gsub("@(%u[%u_]*)@", {
    POLICIES = table.concat(policies, " "), CASES = table.concat(cases, "\n"),
    COMMANDS = table.concat(command_words(), " "), FLAGS = table.concat(all_flags(true), " "),
    TOOLS = table.concat(tools, " "), BY_TOOL = table.concat(by_tool, "\n"),
  })
end

local function zsh_text(text)
  return (text:gsub("['\\%[%]:]", function(c)
    return c == "'" and "'\\''" or "\\" .. c
  end))
end

local function zsh()
  local KIND_ACTIONS = { file = "_files", dir = "_files -/", path = "", policy = "_baton_policies" }
  local specs = {}
  for _, flag in ipairs(flags) do
    local text = zsh_text(flag.help)
    if flag.hint == "" then
      specs[#specs + 1] = ("    '*--%s[%s]'"):format(flag.name, text)
      if flag.has_no then
        specs[#specs + 1] = ("    '*--no-%s[not\\: %s]'"):format(flag.name, text)
      end
    else
      local action = flag.words ~= "" and "(" .. flag.words:gsub("|", " ") .. ")"
        or KIND_ACTIONS[KINDS[flag.hint] or "path"]
      specs[#specs + 1] = ("    '*--%s=[%s]:%s:%s'"):format(flag.name, text, zsh_text(flag.hint), action)
    end
  end
  local by_tool = {}
  for _, tool in ipairs(tools) do
    by_tool[#by_tool + 1] = ("  %s) compadd -- %s; _files ;;"):format(tool, tool_words(tool))
  end
  return ([[
#compdef baton
# zsh completion of baton, made from its own help

_baton_policies() {
  compadd -- @POLICIES@
  _files
}

_baton() {
  local -a run_flags
  run_flags=(
@SPECS@
  )
  if (( CURRENT == 2 )); then
    compadd -- @COMMANDS@
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
  run|check) _arguments $run_flags '*:baton.lua:_files' ;;
  help) compadd -- run file peers table @TOOLS@ ;;
@BY_TOOL@
  esac
}

_baton "$@"
]]):gsub("@(%u[%u_]*)@", {
    POLICIES = table.concat(policies, " "), SPECS = table.concat(specs, "\n"),
    COMMANDS = table.concat(command_words(), " "), TOOLS = table.concat(tools, " "),
    BY_TOOL = table.concat(by_tool, "\n"),
  })
end

write("baton.1", page_of_baton())
write("baton.lua.5", page_of_file())
write("baton-sim.1", page_of_sim())
write("baton.bash", (bash()))
write("baton.zsh", (zsh()))

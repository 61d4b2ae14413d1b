-- What each kind of Lua file may name. The policies' list is what the sandbox gives them.
max_line_length = 120
unused_args = false

stds.baton_policy = {
  read_globals = {
    "baton", "assert", "error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack",
    "setmetatable", "getmetatable", "rawequal", "rawget", "rawset",
    math = { fields = {
      "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod", "frexp", "huge",
      "ldexp", "log", "log10", "max", "min", "modf", "pi", "pow", "rad", "random", "sin", "sinh", "sqrt", "tan", "tanh",
    } },
    string = { fields = { "byte", "char", "find", "format", "len", "lower", "reverse", "sub", "upper" } },
    table = { fields = { "concat", "insert", "remove", "sort" } },
    bit = { fields = { "arshift", "band", "bnot", "bor", "bswap", "bxor", "lshift", "rol", "ror", "rshift", "tobit", "tohex" } },
  },
}

stds.baton_module = { read_globals = { "baton" } }

std = "luajit"
exclude_files = { "build/", ".venv/" }

files["policies/"].std = "baton_policy"
files["examples/custom_policy/"].std = "baton_policy"
files["lua/"].std = "luajit+baton_module"
files["spec/"].std = "luajit+busted"
files["examples/**/*_spec.lua"].std = "luajit+busted"
files["policies/**/*_spec.lua"].std = "luajit+busted"

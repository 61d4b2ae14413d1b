-- What luacheck lets a policy name: all that the sandbox has.
-- Made by spec/tools/gen_api (`make api`) from lua/baton/api.lua: change it there.
return {
  read_globals = {
    "assert", "error", "getmetatable", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawset",
    "select", "setmetatable", "tonumber", "tostring", "type", "unpack",
    math = { fields = {
      "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod", "frexp",
      "huge", "ldexp", "log", "log10", "max", "min", "modf", "pi", "pow", "rad", "random", "sin", "sinh",
      "sqrt", "tan", "tanh",
    } },
    string = { fields = {
      "byte", "char", "find", "format", "len", "lower", "rep", "reverse", "sub", "upper",
    } },
    table = { fields = {
      "concat", "insert", "remove", "sort",
    } },
    bit = { fields = {
      "arshift", "band", "bnot", "bor", "bswap", "bxor", "lshift", "rol", "ror", "rshift", "tobit", "tohex",
    } },
    baton = { fields = {
      "argmin", "argmax", "argmin_sum", "argmax_sum", "power_of_k", "pick2", "smooth", "range", "note_score",
      "compatible", "pairable", "warm", "where", "without", "hash", "rendezvous", "bounded_hash", "ring",
      "random", "prefix_match", "prefix_insert", "prefix_blocks", "prefix_key", "ewma", "take", "window",
      "sleep", "http", "log", "json_decode", "json_encode",
      shared = { fields = {
        "add", "get", "set", "drop", "lease", "release", "take", "give", "put", "fields", "cached",
      } },
      shared_local = { fields = {
        "add", "get", "set",
      } },
    } },
  },
}

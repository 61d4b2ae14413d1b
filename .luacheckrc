-- What each kind of Lua file may name. The policies' list is what the sandbox gives them.
max_line_length = 120
unused_args = false

stds.baton_policy = dofile("lua/_meta/luacheck_std.lua") -- made from lua/baton/api.lua
stds.baton_module = { read_globals = { "baton" } }

std = "luajit"
exclude_files = { "build/", ".venv/" }

files["policies/"].std = "baton_policy"
files["examples/custom_policy/"].std = "baton_policy"
files["lua/"].std = "luajit+baton_module"
files["lua/_meta/baton.lua"] = { std = "luajit", globals = { "baton" }, max_line_length = false }
files["spec/"].std = "luajit+busted"
files["examples/**/*_spec.lua"].std = "luajit+busted"
files["policies/**/*_spec.lua"].std = "luajit+busted"

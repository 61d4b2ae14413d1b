-- policy_files.lua - texts of a policy called "mine", good and broken, and how they come into a
-- folder.

local policy_files = {}

-- Its version is what the answers show.
function policy_files.policy(version, plan)
  return ([[
return {
  api = 2, name = "mine", version = "%s",
  plan = function(req, view, ctx)
    %s
    return { worker = view.hybrid[1].id }
  end,
}
]]):format(version, plan or "")
end

policy_files.BROKEN = {
  "return {",
  "return { api = 2, name = 'mine', version = '0', plann = function() end }",
  policy_files.policy("0", "local x = nil; x = x.y"),
  "error('no')",
  "while true do end",
  policy_files.policy("0", "while true do end"),
  "",
}

return policy_files

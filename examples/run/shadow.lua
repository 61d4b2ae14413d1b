-- A rules file (examples/rules): every request is planned by round_robin, too, without effect. Where the two
-- disagree is in GET /rules, in each record, and in the dashboard's Policies.
return {
  api = 1,
  rules = {
    { name = "try-round-robin", shadow = { policy = "round_robin" } },
  },
}

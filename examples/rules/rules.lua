-- Rules: looked at from the top, before any policy runs; the first that fits decides. A rule that only has a
-- shadow goes on to the next one. No rule fits: the pool by model, with its own policy.
--
--   baton run baton.lua --rules-file examples/rules/rules.lua
--
-- Texts are exact or end in "*"; a list means any of them. All conditions of a match must hold; none fits all.
return {
  api = 1,
  rules = {
    -- A new policy decides one request in ten beside the one that counts, without effect. Both answers are in
    -- the decision records.
    { name = "try", shadow = { policy = "sglang_cache_aware", sample = 0.1 } },

    -- Paying tenants, by a header that the proxy before us sets. `true` would mean: there at all.
    {
      name = "gold",
      match = { headers = { ["x-tier"] = { "gold", "platinum" } } },
      policy = "power_of_two",
    },

    -- Long prompts of chat routes, by our estimate of their tokens: another policy, with other parameters.
    {
      name = "long",
      match = { path = "/v1/chat/*", prompt_tokens = { min = 8000 } },
      policy = "length_buckets",
    },

    -- A canary: 5 of 100 sessions, and a session stays on its side. sticky may also be "tenant" or
    -- "header:x-user"; without one, and for requests without the key, chance decides each time.
    {
      name = "canary",
      match = { session = true },
      sticky = "session",
      split = {
        { weight = 95 }, -- as if there were no rule
        { weight = 5, policy = "session_affinity" },
      },
    },
  },
}

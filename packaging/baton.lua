-- Configuration of the service: baton.lua(5), or `baton help file`, lists all keys.
--
--   baton check /etc/baton/baton.lua     tells every mistake, with its place and the remedy
--   systemctl reload baton               takes pools, workers, policies and the log level, without a lost request
--   systemctl kill --kill-who=main -s USR2 baton    takes everything else, by a new process, without a lost connection
--
-- Until there are workers, requests are answered 503. Configurations per engine are in /usr/share/doc/baton/examples.

return {
  -- Clients. Beyond loopback give them keys: baton key new clients.keys, and client_api_keys_file = "clients.keys".
  host = "127.0.0.1",
  port = 30000,

  -- The operator: workers, metrics, policies. Beyond loopback it needs admin_api_key.
  admin_host = "127.0.0.1",
  admin_port = 29000,

  -- The process reaches only files of the system and of directories that are named here when it starts
  -- (SECURITY.md). A reload that names another directory needs `systemctl restart baton`; "off" takes it away.
  sandbox = "auto",

  -- tls = {
  --   certificates = { { cert = "tls/api.pem", key = "tls/api.key" } }, -- the first is for names that no other has
  --   client_ca = "tls/clients-ca.pem", client_allow = { "URI:spiffe://td/web*" }, client_auth = "optional",
  --   admin = { certificates = { { cert = "tls/admin.pem", key = "tls/admin.key" } } },
  --   workers = { ca = "tls/workers-ca.pem", cert = "tls/gateway.pem", key = "tls/gateway.key" },
  -- },

  -- limits = {
  --   { name = "tenants", per = "tenant", requests = 600, tokens = 200000, concurrent = 50 },
  -- },

  -- pools = {
  --   {
  --     name = "llama", models = { "llama-3.1-8b" }, policy = "least_load",
  --     workers = {
  --       { url = "http://10.0.0.1:8000", role = "prefill", connector = "NixlConnector" },
  --       { url = "http://10.0.0.2:8000", role = "decode", connector = "NixlConnector" },
  --     },
  --   },
  -- },
}

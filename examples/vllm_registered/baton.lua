-- P2pNcclConnector. For MoRIIOConnector: connector = "MoRIIOConnector", and moriio_port = 36367.
return {
  connector = "P2pNcclConnector",
  registration_host = "0.0.0.0", -- open to this host, the workers' hosts and registration_allow
  p2p_nccl_port = 30001,
  pools = {
    {
      workers = {
        { url = "http://10.0.0.1:8001", role = "prefill" },
        { url = "http://10.0.0.2:8001", role = "decode" },
      },
    },
  },
}

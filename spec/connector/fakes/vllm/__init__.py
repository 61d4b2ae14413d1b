"""The few names of vLLM 0.32 that the connector imports."""

"""A vLLM KV connector over libbaton_kv. See README.md beside this file."""

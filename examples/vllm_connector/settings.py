"""kv_connector_extra_config, checked: a word that is not known, or a value of another kind, stops the engine at its start.

A key of libbaton_kv's own goes to bt_kv_config_t as it is; README.md tells what the others mean.
"""
import os
import socket
from dataclasses import dataclass, field

from .baton_kv import BACKENDS

AGENT_KEYS = {"port": int, "heartbeat_ms": int, "dead_ms": int, "bootstrap_ms": int, "stall_ms": int, "release_ms": int,
              "max_rooms": int, "lane_depth": int, "tcp_streams": int, "spin_us": int, "crc": bool, "allow_remote": bool,
              "rdma_devices": str, "gid_index": int}
OWN_KEYS = {"library": str, "host": str, "token": str, "gateway": (str, list), "gateway_token": str, "token_file": str, "worker": str,
            "backends": list, "layerwise": bool, "allow_sources": bool, "idle_wait_ms": int}


@dataclass
class Settings:
    library: str | None = None
    backends: list = field(default_factory=list)  # empty = all that the library has
    agent: dict = field(default_factory=dict)  # of bt_kv_config_t
    gateways: list = field(default_factory=list)  # (host, port)
    gateway_token: str | None = None
    worker: str | None = None
    layerwise: bool = False
    allow_sources: bool = False
    idle_wait_ms: int = 1


def read_settings(extra):
    """Of kv_connector_extra_config. Secrets may come from the environment: BATON_KV_TOKEN, BATON_TRANSFER_TOKEN."""
    check_kinds(extra)
    gateways = extra.get("gateway") or []
    settings = Settings(library=extra.get("library"), backends=extra.get("backends") or [], worker=extra.get("worker"),
                        gateways=[address(one, "gateway") for one in ([gateways] if isinstance(gateways, str) else gateways)],
                        gateway_token=extra.get("gateway_token") or os.environ.get("BATON_TRANSFER_TOKEN")
                        or tokens_of(extra.get("token_file")),
                        layerwise=extra.get("layerwise", False), allow_sources=extra.get("allow_sources", False),
                        idle_wait_ms=extra.get("idle_wait_ms", 1))
    unknown = set(settings.backends) - set(BACKENDS)
    if unknown:
        raise ValueError(f"BatonConnector: backends names \"{unknown.pop()}\"; there are {', '.join(BACKENDS)}")
    if settings.gateways and not settings.worker:
        raise ValueError("BatonConnector: \"gateway\" needs \"worker\": this server's URL or name, as the gateway knows it")
    settings.agent = {key: extra[key] for key in AGENT_KEYS if key in extra}
    settings.agent["host"] = ipv4(extra.get("host") or os.environ.get("VLLM_HOST_IP") or "127.0.0.1", "host")
    # Beyond one host agents must have one, and whoever has the gateway's could send every agent anywhere as it is.
    token = extra.get("token") or os.environ.get("BATON_KV_TOKEN") or settings.gateway_token
    if token:
        settings.agent["token"] = token
    return settings


def tokens_of(path):
    """One or several, a line each, as the gateway's --transfer-token-file: the first is proved, any is taken."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as why:
        raise ValueError(f"BatonConnector: \"token_file\": {path}: {why}") from None
    if not lines:
        raise ValueError(f"BatonConnector: \"token_file\": {path} has no token: one a line, as openssl rand -hex 32 makes them")
    return "\n".join(lines)


def check_kinds(extra):
    kinds = {**AGENT_KEYS, **OWN_KEYS}
    for key, value in extra.items():
        if key not in kinds:
            raise ValueError(f"BatonConnector: kv_connector_extra_config has no \"{key}\"; it has {', '.join(sorted(kinds))}")
        if not isinstance(value, kinds[key]) or (isinstance(value, bool) and kinds[key] is int):
            raise ValueError(f"BatonConnector: \"{key}\" can't be {value!r}")
        if kinds[key] is int and value < 0:
            raise ValueError(f"BatonConnector: \"{key}\" can't be {value}")


def address(text, what):
    """("10.0.0.1", 29100) of "host:port"."""
    host, colon, port = str(text).rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"BatonConnector: {what} is \"{text}\", not host:port")
    return ipv4(host, what), int(port)


def ipv4(host, what):
    """The library takes numbers only."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ValueError(f"BatonConnector: {what} \"{host}\" is no IPv4 address and can't be resolved: {error}") from None

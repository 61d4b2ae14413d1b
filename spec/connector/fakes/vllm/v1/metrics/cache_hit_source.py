from enum import Enum


class CacheHitSource(str, Enum):
    P2P = "p2p"

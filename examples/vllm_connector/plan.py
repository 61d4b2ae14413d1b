"""What the scheduler's side tells the workers' side in a step, and nothing else passes between them."""
from dataclasses import dataclass, field


@dataclass
class Load:
    """Decode: receive this room into these pages; so many leading ones are here already."""
    request: str
    room: int
    pages: list
    prefix_pages: int
    sources: list  # (host, port) by rank; empty: the gateway says


@dataclass
class Save:
    """Prefill: when this step's forward is over, the prompt's pages from number `first` on are computed."""
    request: str
    room: int
    first: int
    pages: list
    last: bool


@dataclass
class Plan:
    loads: list = field(default_factory=list)
    saves: list = field(default_factory=list)
    preempted: list = field(default_factory=list)  # prefill: their pages are taken away, from this step on
    aborted: list = field(default_factory=list)  # prefill: ended before their prompt was, or by their client

    def __bool__(self):
        return bool(self.loads or self.saves or self.preempted or self.aborted)

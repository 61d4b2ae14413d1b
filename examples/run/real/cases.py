"""The requests that are sent: every API, streamed and not, lists and samples.

Each case makes its own prompts, from its name and the run's: a prompt seen before would be answered from a prefix cache
and prove nothing.
"""
from dataclasses import dataclass

WORDS = ("one two three four five six seven eight nine ten eleven twelve the gateway prefill decode baton city worker "
         "cache prompt answer request hello world time far day").split()
ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "messages": "/v1/messages",
          "responses": "/v1/responses", "generate": "/generate"}

PROMPT_KEYS = ("prompt", "text", "input_ids", "messages", "input", "content")


@dataclass
class Case:
    name: str
    api: str
    body: dict
    prompts: int = 1  # prompts times samples
    path: str = ""

    def __post_init__(self):
        self.path = ROUTES[self.api]


def prompt(*seed, words=48):
    """A text that depends on its seed and is longer than two cache blocks of 32 tokens."""
    state = sum(ord(c) * (i + 1) for i, c in enumerate("|".join(map(str, seed)))) + 1
    chosen = []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % (1 << 31)
        chosen.append(WORDS[(state >> 8) % len(WORDS)])
    return " ".join(map(str, seed)) + ": " + " ".join(chosen)


def both_ways(name, api, body, prompts=1, **stream_only):
    yield Case(name, api, body, prompts)
    yield Case(name + ", stream", api, {**freshen(body, "again "), "stream": True, **stream_only}, prompts)


def freshen(value, tag):
    """The same body with `tag` before every prompt text (ids: one higher), so that the streamed twin has its own prompts."""
    if isinstance(value, dict):
        return {k: freshen(v, tag) if k in PROMPT_KEYS else v
                for k, v in value.items()}
    if isinstance(value, list):
        return [freshen(one, tag) for one in value]
    return tag + value if isinstance(value, str) else value + 1


def openai_cases(run, sampling):
    """completions and chat. sampling: what makes n=2 differ and stay the same in every engine."""
    usage = {"stream_options": {"include_usage": True}}
    base = {"model": "tiny", "max_tokens": 24, "temperature": 0}
    sampled = {**base, **sampling, "n": 2}

    def ask(*seed):
        return [{"role": "user", "content": prompt(run, *seed)}]
    yield from both_ways("completions", "completions", {**base, "prompt": prompt(run, 1)}, **usage)
    yield from both_ways("completions, 4 tokens", "completions", {**base, "prompt": run[:1] + "hi"}, **usage)
    yield from both_ways("completions, token ids", "completions", {**base, "prompt": token_ids(run, 70)}, **usage)
    yield from both_ways("completions, 3 prompts", "completions",
                         {**base, "prompt": [prompt(run, 2, i, words=40 + 9 * i) for i in range(3)]}, 3, **usage)
    yield from both_ways("completions, n=2", "completions", {**sampled, "prompt": prompt(run, 3)}, 2, **usage)
    yield from both_ways("completions, 2 prompts, n=2", "completions",
                         {**sampled, "prompt": [prompt(run, 4, i) for i in range(2)]}, 4, **usage)
    yield from both_ways("chat", "chat", {**base, "messages": ask(5)}, **usage)
    yield from both_ways("chat, n=2", "chat", {**sampled, "messages": ask(6)}, 2, **usage)


def token_ids(run, count):
    state = sum(map(ord, run))
    return [(state + 7 * i * i + 3 * i) % 250 + 1 for i in range(count)]


def vllm_cases(run):
    sampling = {"temperature": 0.9, "seed": 11}
    yield from openai_cases(run, sampling)
    ask = [{"role": "user", "content": prompt(run, 7)}]
    yield from both_ways("messages", "messages", {"model": "tiny", "max_tokens": 24, "temperature": 0, "messages": ask})
    yield from both_ways("responses", "responses",
                         {"model": "tiny", "max_output_tokens": 24, "temperature": 0, "input": prompt(run, 8)})


def sglang_cases(run):
    sampling = {"temperature": 0.9, "top_k": 1}  # two equal samples: seeds differ between one server and two
    params = {"max_new_tokens": 24, "temperature": 0}
    yield from both_ways("generate", "generate", {"text": prompt(run, 9), "sampling_params": params})
    yield from both_ways("generate, token ids", "generate", {"input_ids": token_ids(run, 60), "sampling_params": params})
    yield from both_ways("generate, list of 1", "generate", {"text": [prompt(run, 10)], "sampling_params": params})
    yield from both_ways("generate, 3 prompts", "generate",
                         {"text": [prompt(run, 11, i, words=40 + 9 * i) for i in range(3)], "sampling_params": params}, 3)
    yield from both_ways("generate, n=2", "generate",
                         {"text": prompt(run, 12), "sampling_params": {**params, **sampling, "n": 2}}, 2)
    yield from openai_cases(run, sampling)
    yield from both_ways("responses", "responses",
                         {"model": "tiny", "max_output_tokens": 24, "temperature": 0, "input": prompt(run, 13)})

"""What an answer says, whatever the API and streamed or not: texts, finish reasons, token counts."""
import json
from dataclasses import dataclass, field


@dataclass
class Said:
    """Equal when the same was said; `faults` names what is wrong with the form (a missing end, an error inside)."""
    texts: dict = field(default_factory=dict)
    reasons: dict = field(default_factory=dict)
    tokens: object = ()
    faults: list = field(default_factory=list)

    def add(self, index, text, reason):
        self.texts[index] = self.texts.get(index, "") + (text or "")
        if reason:
            self.reasons[index] = reason


def read(api, reply):
    """api: completions, chat, messages, responses or generate."""
    said = Said()
    if reply.status != 200:
        said.faults.append(f"status {reply.status}: {reply.body[:300].decode(errors='replace')}")
    elif reply.is_stream():
        read_stream(api, reply, said)
    else:
        WHOLE[api](reply.json(), said)
    return said


def read_stream(api, reply, said):
    events = list(reply.events())
    ends = events.count("[DONE]")
    if api in ("completions", "chat", "generate") and (ends != 1 or events[-1] != "[DONE]"):
        said.faults.append(f"{ends} [DONE], last event {events[-1][:80] if events else None!r}")
    for text in events:
        if text == "[DONE]":
            continue
        event = json.loads(text)
        if event.get("error"):
            said.faults.append("error event: " + text[:200])
            return
        EVENT[api](event, said)


def whole_openai(body, said):
    for choice in body["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        said.add(choice["index"], text, choice["finish_reason"])
    said.tokens = openai_tokens(body["usage"])


def event_openai(event, said):
    for choice in event["choices"]:
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        said.add(choice["index"], text, choice.get("finish_reason"))
    if event.get("usage"):
        said.tokens = openai_tokens(event["usage"])


def openai_tokens(usage):
    return usage["prompt_tokens"], usage["completion_tokens"]


def whole_messages(body, said):
    for index, block in enumerate(body["content"]):
        said.add(index, block.get("text"), body["stop_reason"])
    said.tokens = body["usage"]["input_tokens"], body["usage"]["output_tokens"]


def event_messages(event, said):
    if event["type"] == "content_block_delta":
        said.add(event["index"], event["delta"].get("text"), None)
    elif event["type"] == "message_delta":
        said.reasons[0] = event["delta"]["stop_reason"]
        said.tokens = (event["usage"]["output_tokens"],)
    elif event["type"] == "error":
        said.faults.append("error event: " + json.dumps(event)[:200])


def whole_responses(body, said):
    for index, item in enumerate(body["output"]):
        for part in item.get("content") or []:
            said.add(index, part.get("text"), body["status"])
    said.tokens = body["usage"]["input_tokens"], body["usage"]["output_tokens"]


def event_responses(event, said):
    if event["type"] == "response.output_text.delta":
        said.add(event["output_index"], event["delta"], None)
    elif event["type"] in ("response.completed", "response.incomplete"):
        body = event["response"]
        said.reasons[0] = body["status"]
        said.tokens = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
    elif event["type"] in ("response.failed", "error"):
        said.faults.append("error event: " + json.dumps(event)[:200])


def whole_generate(body, said):
    for index, one in enumerate(body if isinstance(body, list) else [body]):
        generate_part(index, one, said)


def event_generate(event, said):
    generate_part(event.get("index", 0), event, said)


def generate_part(index, part, said):
    """SGLang repeats the whole text in each event."""
    said.texts[index] = part["text"]
    info = part["meta_info"]
    reason = info.get("finish_reason")
    if reason:
        said.reasons[index] = reason["type"]
        said.tokens = {**dict(said.tokens), index: (info["prompt_tokens"], info["completion_tokens"])}
        if reason["type"] == "abort":
            said.faults.append("aborted: " + str(reason)[:200])


WHOLE = {"completions": whole_openai, "chat": whole_openai, "messages": whole_messages, "responses": whole_responses,
         "generate": whole_generate}
EVENT = {"completions": event_openai, "chat": event_openai, "messages": event_messages,
         "responses": event_responses, "generate": event_generate}

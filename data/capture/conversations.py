"""Conversations as chat clients send them and servers log them, framed by a model's chat template: kvcapture.py --messages."""
from __future__ import annotations

import json
from typing import Any, NamedTuple

from dump_files import CaptureError, read_text, require



class Conversation(NamedTuple):
    """Messages as a chat template takes them: arguments of tool calls as objects, contents as one text."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    options: dict[str, Any] = {}  # template options: a request's chat_template_kwargs

    @staticmethod
    def of_user(text: str) -> Conversation:
        return Conversation([{"role": "user", "content": text}])

    def frame(self, tokenizer: Any, where: str) -> tuple[str, str]:
        """The text up to the model's answer, and the answer itself if the last turn is the assistant's."""
        answered = self.messages[-1]["role"] == "assistant"
        asked = self.messages[:-1] if answered else self.messages
        require(asked, where, "a conversation that somebody else begins", "only the assistant's turn")
        try:
            before = tokenizer.frame(asked, self.tools, True, **self.options)
            whole = tokenizer.frame(self.messages, self.tools, False, **self.options) if answered else before
        except Exception as error:  # templates raise all kinds of errors
            raise CaptureError(f"{where}: expected a conversation that the model's chat template takes, found {error}") from None
        require(before is not None, where, "a tokenizer with a chat template", "none")
        wanted = "an answer that the template has behind the prompt (leave the last turn out, and the model answers)"
        require(whole.startswith(before), where, wanted, "another text once it is answered")
        return before, whole[len(before):]


def read_conversations(path: str) -> list[Conversation]:
    """Reads a file with a list of messages, a request, a list of requests, or one request per line."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        require(lines[1:] and lines[0][1].lstrip()[:1] in "{[", path, "JSON", error)
        return [conversation_of(f"{path}, line {number}", of_line(f"{path}, line {number}", line)) for number, line in lines]
    several = isinstance(found, list) and found and all(isinstance(x, list) or isinstance(x, dict) and "role" not in x for x in found)
    if several:
        return [conversation_of(f"{path}, request {number}", x) for number, x in enumerate(found)]
    return [conversation_of(path, found)]


def of_line(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{where}: expected JSON, found {error}") from None


def conversation_of(where: str, found: Any) -> Conversation:
    """Parses a list of messages, a request {"messages", "tools"}, or a batch line with a request as its "body"."""
    request = found if isinstance(found, dict) else {"messages": found}
    request = request["body"] if isinstance(request.get("body"), dict) else request
    messages, tools, options = (request.get(key) for key in ("messages", "tools", "chat_template_kwargs"))
    require(isinstance(messages, list) and messages, where, 'messages: a list of {"role", "content"}, or {"messages": [..]}',
            ", ".join(list(request)[:5]) if messages is None and isinstance(found, dict) else str(found)[:30] or "nothing")
    require(tools is None or isinstance(tools, list), f"{where}: tools", "a list", type(tools).__name__)
    require(options is None or isinstance(options, dict), f"{where}: chat_template_kwargs", "an object", type(options).__name__)
    return Conversation([message_of(f"{where}, message {at}", x) for at, x in enumerate(messages)], tools or None, options or {})


def message_of(where: str, message: Any) -> dict[str, Any]:
    good = isinstance(message, dict) and isinstance(message.get("role"), str)
    require(good, where, 'an object with a "role"', str(message)[:40])
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):  # parts, as in requests that may hold images
        kinds = [part.get("type") if isinstance(part, dict) else type(part).__name__ for part in content]
        other = [str(kind) for kind in kinds if kind not in ("text", "input_text", "output_text")]
        require(not other, f"{where}: content", "text", f"a part of type {other[0]}" if other else "")
        content = "\n".join(str(part.get("text", "")) for part in content)
    said = isinstance(content, str) or content is None and calls
    require(said, f"{where}: content", "a text", "none" if content is None else type(content).__name__)
    require(calls is None or isinstance(calls, list), f"{where}: tool_calls", "a list", type(calls).__name__)
    message = {**message, "content": "" if content is None else content}
    return {**message, "tool_calls": [call_of(f"{where}: tool_calls", call) for call in calls]} if calls else message


def call_of(where: str, call: Any) -> Any:
    """A tool call with its arguments as an object. Clients send these as JSON text."""
    function = call.get("function", call) if isinstance(call, dict) else None
    require(isinstance(function, dict) and "name" in function, where, 'a function with a "name"', str(call)[:40])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise CaptureError(f"{where}: {function['name']}'s arguments: expected JSON, found {error}") from None
        function = {**function, "arguments": arguments}
    return {**call, "function": function} if "function" in call else function

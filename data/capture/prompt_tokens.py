"""What tokens a prompt becomes, and the refusal of those that a missing, broken or other model's tokenizer makes."""
from __future__ import annotations

import json
from typing import Any

from dump_files import CaptureError, read_text, require

FEWEST_TOKENS = 16  # of a prompt's text: fewer, and most scores have nothing to choose from
FEWEST_LETTERS = 32  # that tell a tokenizer which splits them all from a text that has few


class Tokenizer:
    """What a prompt needs of a transformers tokenizer. gguf_file.Pieces has the same members."""

    def __init__(self, own: Any, begin: list[int] | None = None, ends: set[int] | None = None):
        """begin: what stands before a text (default: what the tokenizer puts there). ends: tokens that end one."""
        self.own, self._begin, self.size = own, begin, len(own)
        self.begin = own("").input_ids[:1] if begin is None else begin
        self.ends = {own.eos_token_id} - {None} if ends is None else ends
        self.unknown = None if own.unk_token_id is None else (own.unk_token_id, str(own.unk_token))

    def encode(self, text: str) -> list[int]:
        return (self._begin or []) + self.own(text, add_special_tokens=self._begin is None).input_ids

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Its tokens, nothing before it, and which characters of it each of them is."""
        found = self.own(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(i, begin, end) for i, (begin, end) in zip(found.input_ids, found.offset_mapping)]

    def chat(self, content: str) -> str | None:
        """A conversation that says `content`, up to where the model answers; None where there is no template for one."""
        return self.frame([{"role": "user", "content": content}])

    def frame(self, messages: list[dict[str, Any]], tools: list[Any] | None = None, asks: bool = True, **options: Any) -> str | None:
        """A conversation in the model's chat template; None without one. asks: the text ends where the model answers."""
        if not self.own.chat_template:
            return None
        options = {"enable_thinking": False, **options}
        return self.own.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=asks, **options)

    def text(self, i: int) -> str:
        return self.own.decode([i])

    def join(self, ids: list[int]) -> str:
        return self.own.decode(ids)


def find_tokenizer(model: str | None, gguf: Any, origin: dict[str, str]) -> Any:
    """The named model's, or else the GGUF file's."""
    from transformers import AutoTokenizer
    if model:
        return Tokenizer(own_tokenizer(model, AutoTokenizer, {"pretrained_model_name_or_path": model}))
    pieces = gguf.pieces()
    if pieces:
        return pieces
    own = own_tokenizer(origin["gguf_file"], AutoTokenizer, origin)
    if gguf.digits_apart:
        from tokenizers import pre_tokenizers as cut
        byte_level = cut.ByteLevel(add_prefix_space=False)
        own.backend_tokenizer.pre_tokenizer = cut.Sequence([cut.Digits(individual_digits=True), byte_level])
    return Tokenizer(own, gguf.begin, gguf.ends)


def own_tokenizer(model: str, auto: Any, origin: dict[str, str]) -> Any:
    """A model's tokenizer. transformers may return an empty one if files are missing; that raises CaptureError."""
    wanted = f"{model}: expected a tokenizer with a vocabulary (tokenizer.json, ...; --ids takes token ids)"
    try:
        found = auto.from_pretrained(**origin)
    except Exception as error:  # transformers raises all kinds of errors
        raise CaptureError(f"{wanted}, found none: {' '.join(str(error).split())[:200]}") from None
    if len(found) <= len(found.get_added_vocab()):
        raise CaptureError(f"{wanted}, found one of {len(found)} tokens")
    return found


def refuse_odd_prompt(source: str, text: str, ids: list[int], decode: int, tokenizer: Any) -> None:
    """Refuses what comes of a tokenizer that is missing, broken or another model's, or that marks the ends of a text which
    is marked, or goes on."""
    insist = "(--any-prompt takes it as it is)"

    def added(i: int) -> bool:
        return ids.count(i) > text.count(tokenizer.text(i))

    found = f"{len(ids)} of {len(text)} characters"
    require(len(ids) >= FEWEST_TOKENS, source, f"a text of at least {FEWEST_TOKENS} tokens {insist}", found)
    if tokenizer.unknown:
        i, piece = tokenizer.unknown
        unknown = ids.count(i) - text.count(piece)  # where the text has it, it is meant
        found = f"{piece} for {unknown} of {len(ids)} tokens"
        require(unknown <= 0, source, f"a text that the tokenizer knows {insist}", found)
    first, last = tokenizer.text(ids[0]), tokenizer.text(ids[-1])
    twice = ids[0] in tokenizer.begin and added(ids[0]) and text.startswith(first)
    require(not twice, source, f"a text without the {first} that its tokens begin with {insist}", "one more in it")
    ended = decode and ids[-1] in tokenizer.ends and added(ids[-1])
    require(not ended, source, f"a text that goes on {insist}", f"tokens that end with {last}, which is not in it")
    letters = sum(c.isascii() and c.isalpha() for c in text)
    pieces = (tokenizer.text(i).strip() for i in ids)
    single = sum(len(piece) == 1 and piece.isascii() and piece.isalpha() for piece in pieces)
    found = f"a token of its own for {single} of {letters} letters"
    joins = letters < FEWEST_LETTERS or single < 0.9 * letters
    require(joins, source, f"a tokenizer that joins letters {insist}", found)


def ending_tokens(model: Any, tokenizer: Any, gguf: Any) -> set[int]:
    """Tokens with which the model ends a text. Of a GGUF file, transformers keeps its configuration's default."""
    if gguf:
        return gguf.ends
    known = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    known = set(known) if isinstance(known, list) else {known}
    return (known | (tokenizer.ends if tokenizer else set())) - {None}


def read_ids(path: str) -> list[int]:
    """A JSON list, a tokens.json, a tokenizer's {"input_ids": [..]}, or numbers between spaces or commas; a batch of one row, too."""
    text = read_text(path)
    try:
        is_json = text.lstrip()[:1] in "[{"
        found = json.loads(text) if is_json else [int(word) for word in text.replace(",", " ").split()]
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        mask = found.get("attention_mask")
        flat = [x for row in mask for x in (row if isinstance(row, list) else [row])] if isinstance(mask, list) else []
        require(all(x == 1 for x in flat), path, "no padding", "an attention_mask that is not all ones")
        found = next((found[key] for key in ("ids", "input_ids", "prompt_token_ids") if key in found), None)
    if isinstance(found, list) and found and all(isinstance(row, list) for row in found):
        require(len(found) == 1, path, "one sequence of token ids (a file each)", f"a batch of {len(found)} rows")
        found = found[0]
    good = found and isinstance(found, list) and all(type(i) is int for i in found)
    wanted = 'token ids: a JSON list, a tokens.json, {"input_ids": [..]}, or numbers'
    require(good, path, wanted, text[:30].strip() or "nothing")
    return found

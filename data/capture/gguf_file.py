"""A GGUF file's vocabulary as a tokenizer, for kvcapture.py --gguf.

What transformers builds of a SentencePiece vocabulary in a GGUF (tokenizer.ggml.model "llama") depends on its version:
a unigram model, whose pieces are not those that the model was trained on, or one without merges, which gives single
characters. So these are encoded here, by the file's own pieces and scores. Byte-level vocabularies ("gpt2") bring their
merges along and are left to transformers, which only overlooks that some take digits one by one (`digits_apart`).

Needs the package gguf to open a file; Pieces needs nothing. What cannot be read is a ValueError of one line.
"""
from __future__ import annotations

import contextlib
import functools
import heapq
from pathlib import Path
from typing import AbstractSet as Set, Any, Iterator, Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # what tokenizer.ggml.token_type says of a piece
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell")  # of what tokenizer.ggml.pre may say
SPACE = "\u2581"  # what a space is in a SentencePiece piece


class GgufFile:
    """What the header of a GGUF file says of its vocabulary."""

    def __init__(self, path: Path):
        try:
            from gguf import GGUFReader
        except ImportError as missing:
            raise ValueError(f"--gguf: expected the packages gguf and accelerate, found {missing}") from None
        if not path.is_file():
            raise ValueError(f"{path}: expected a GGUF file, found {'something else' if path.exists() else 'none'}")
        try:
            reader = GGUFReader(path)
        except Exception as error:  # its reader raises of many kinds
            raise ValueError(f"{path}: expected a whole GGUF file, found {type(error).__name__}: {error}") from None
        self._path, self._reader, self._fields = path, reader, reader.fields
        scaled = next((f.contents() for name, f in self._fields.items() if name.endswith(".rope.scaling.type")), "none")
        if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
            scaled = "rope_freqs.weight"
        if scaled != "none":
            raise ValueError(f"{path}: expected no scaled rotation, which transformers does not read, found {scaled}")
        self._kind = self._field("model")
        # Where the file does not say whether something stands before a text, it does in the Llama families.
        begins = self._kind == "llama" or self._field("pre") in ("llama3", "llama-v3", "llama-bpe")
        begin = self._field("bos_token_id") if self._field("add_bos_token", begins) else None
        self.begin = [] if begin is None else [int(begin)]  # what stands before a text
        self.digits_apart = self._field("pre") in DIGITS_APART
        ends = (self._field(f"{name}_token_id") for name in ("eos", "eot"))
        self.ends = {int(i) for i in ends if i is not None}  # tokens that end a text

    @contextlib.contextmanager
    def parsed_once(self) -> Iterator[GgufFile]:
        """Inside, whoever has the package gguf open this file (transformers: thrice) gets what was parsed here, and the names
        of its tensors (transformers: once a module of the model) are listed once."""
        import gguf
        parse, names = gguf.GGUFReader, gguf.get_tensor_name_map

        def parsed(path, *rest, **options):
            return self._reader if Path(path).samefile(self._path) else parse(path, *rest, **options)

        gguf.GGUFReader, gguf.get_tensor_name_map = parsed, functools.lru_cache(names)
        try:
            yield self
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = parse, names

    def pieces(self) -> Pieces | None:
        """The tokenizer, where the vocabulary is SentencePiece's."""
        if self._kind != "llama":
            return None
        pieces, scores, kinds = (self._field(name) for name in ("tokens", "scores", "token_type"))
        if not pieces or scores is None or kinds is None or not len(pieces) == len(scores) == len(kinds):
            counts = ", ".join(str(len(x or ())) for x in (pieces, scores, kinds))
            raise ValueError(f"{self._path}: expected a score and a type for every piece, found {counts}")
        return Pieces(pieces, scores, kinds, unknown=self._field("unknown_token_id"), begin=self.begin,
                      ends=self.ends, space_prefix=self._field("add_space_prefix", True))

    def _field(self, name: str, default: Any = None) -> Any:
        field = self._fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()


class Pieces:
    """A SentencePiece tokenizer of the kind that merges: the neighbours whose union has the highest score are joined,
    the leftmost of equals first, until no union is a piece; what is no piece then is spelled in bytes. Control and
    user-defined pieces that stand in the text are taken whole, the longest first, and join nothing."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int], *,
                 unknown: int | None = None, begin: Sequence[int] = (), ends: Set[int] = frozenset(),
                 space_prefix: bool = True):
        self._pieces, self._kinds, self.begin = pieces, kinds, list(begin)
        self.size, self.ends = len(pieces), ends
        self.unknown = None if unknown is None else (unknown, pieces[unknown])
        self._space_prefix = space_prefix
        self._ids = {piece: i for i, piece in enumerate(pieces) if kinds[i] in (NORMAL, USER_DEFINED)}
        self._scores = {piece: scores[i] for piece, i in self._ids.items()}
        self._bytes = {int(piece[3:-1], 16): i for i, piece in enumerate(pieces) if kinds[i] == BYTE}
        self._whole: dict[str, list[tuple[str, int]]] = {}  # by their first character, the longest first
        for i, piece in sorted(enumerate(pieces), key=lambda entry: -len(entry[1])):
            if piece and kinds[i] in (UNKNOWN, CONTROL, USER_DEFINED):
                text = piece.replace(SPACE, " ")
                self._whole.setdefault(text[0], []).append((text, i))

    def encode(self, text: str) -> list[int]:
        return self.begin + [i for i, _, _ in self.spans(" " + text if self._space_prefix and text else text)]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Its tokens, nothing before it, and which characters of it each of them is."""
        found, at = [], 0
        for part, whole in self._split(text):
            for symbol in self._merge(part.replace(" ", SPACE)):
                found += [(i, at, at + len(symbol)) for i in self._spell(symbol)]
                at += len(symbol)
            if whole is not None:
                size = len(self._pieces[whole])
                found.append((whole, at, at + size))
                at += size
        return found

    def chat(self, _content: str) -> None:
        """These files are of models without a template for conversations, or say it where nobody reads it."""

    def frame(self, _messages: Sequence[Any], *_rest: Any, **_options: Any) -> None:
        """As above."""

    def join(self, ids: Sequence[int]) -> str:
        spelled = b"".join(bytes([int(self._pieces[i][3:-1], 16)]) if self._kinds[i] == BYTE else
                           self._pieces[i].replace(SPACE, " ").encode() for i in ids)
        return spelled.decode("utf-8", "replace")

    def text(self, i: int) -> str:
        """Of a token by itself."""
        if self._kinds[i] == BYTE:
            return bytes([int(self._pieces[i][3:-1], 16)]).decode("utf-8", "replace")
        return self._pieces[i].replace(SPACE, " ")

    def _split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of text, each with the whole piece behind it."""
        start = at = 0
        while at < len(text):
            for whole, i in self._whole.get(text[at], ()):
                if text.startswith(whole, at):
                    yield text[start:at], i
                    start = at = at + len(whole)
                    break
            else:
                at += 1
        yield text[start:], None

    def _merge(self, text: str) -> list[str]:
        symbols, last = list(text), len(text)
        before, behind = list(range(-1, last - 1)), list(range(1, last + 1))
        queue: list[tuple[float, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < last:
                union = symbols[left] + symbols[right]
                if union in self._scores:
                    heapq.heappush(queue, (-self._scores[union], left, union))

        for left in range(last - 1):
            offer(left, left + 1)
        while queue:
            _, left, union = heapq.heappop(queue)
            right = behind[left]
            if not symbols[left] or right == last or symbols[left] + symbols[right] != union:
                continue  # one of the two has joined another since
            symbols[left], symbols[right] = union, ""
            behind[left] = behind[right]
            if behind[left] < last:
                before[behind[left]] = left
            offer(before[left], left)
            offer(left, behind[left])
        return [symbol for symbol in symbols if symbol]

    def _spell(self, symbol: str) -> list[int]:
        if symbol in self._ids:
            return [self._ids[symbol]]
        spelled = [self._bytes.get(byte) for byte in symbol.encode()]
        if None not in spelled:
            return spelled
        if self.unknown is None:
            raise ValueError(f"{symbol!r} in the text: expected a piece, bytes or an unknown piece for it, found none")
        return [self.unknown[0]]

"""The capture that kvcapture.py's arguments describe: the model, its dtypes, and each prompt's tokens, layers and gradients."""
from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple, Union

import numpy as np
import torch
import transformers

from capture_tasks import LENGTH, open_answers, read_tasks
from conversations import Conversation, read_conversations
from dump_files import FILE_DTYPES, TOLERANCES, CaptureError, is_incomplete, read_layers, read_text, require, require_folder
from gradient_progress import Dump, Job, plan
from model_attention import choose_layers
from prompt_tokens import find_tokenizer, read_ids, refuse_odd_prompt
from second_reading import check_length


class Prompt:
    """A validated prompt for the model to read, and the dump that it becomes."""

    def __init__(self, request: Request, name: str, source: str, content: str | Conversation | list[int] | None,
                 out: Path | None):
        """name: the file's, if there are several. source: the origin of the content. content: a text, a conversation or token ids;
        None if a dump is extended."""
        self.request, self.name, self.source, self.out, args = request, name, source, out, request.args
        there = args.resume and out and (out / "manifest.json").exists()
        begun = there and is_incomplete(out)
        require(there or content is not None, out, "a dump to add to", "none")
        if begun and content is None:  # with a prompt, it is captured anew
            raise CaptureError(f"{out}: expected a whole dump, found an interrupted capture (with its prompt, --resume captures it again)")
        self.force = args.force or bool(begun)
        self.resumed = Dump(out) if there and not begun else None
        if out and not self.resumed and not args.estimate:
            require_folder(out, self.force)
        self.ids, self.prompt_len, self.decode = self._tokens(content)
        if self.resumed:
            self._resume()
        ids, size = self.ids, request.config.vocab_size
        known = ids and 0 <= min(ids) <= max(ids) < size
        require(known, source, f"ids of 0 to {size - 1}", f"{min(ids)} to {max(ids)}" if ids else "nothing")
        behind = len(ids) - self.prompt_len
        enough = self.resumed or 1 <= self.prompt_len <= len(ids) and (not behind or behind >= self.decode)
        require(enough, source, f"a prompt of 1 to {len(ids)} positions, and {self.decode} ids behind it or none",
                f"--prompt-len {self.prompt_len} of {len(ids)}")
        decodes = self.decode and not self.resumed
        require(not decodes or not is_encoder(request.whole), "decode", "no decoding steps of an encoder (--decode 0)", self.decode)
        if self.resumed:
            self.layers = self.resumed.layers
        else:
            count = request.config.num_hidden_layers
            chosen = None if args.layers is None else read_layers(args.layers, count)
            self.layers = choose_layers(request.config, chosen, self.prompt_len, self.decode, args.window)
        dtype = request.dtype
        require(not self.resumed or dtype == self.resumed.dtype, "--dtype", f"the dump's {self.resumed and self.resumed.dtype}", dtype)
        if not args.task:
            self.jobs()  # rejects impossible gradients before anything is written
        if args.repeat:
            check_length(request.config, self.prompt_len)

    def _tokens(self, content: str | Conversation | list[int] | None) -> tuple[list[int], int, int]:
        """The ids, the length of the prompt, and the number of decoding steps."""
        args, tokenizer, answer = self.request.args, self.request.tokenizer, []
        ids = content if isinstance(content, list) else []
        if isinstance(content, Conversation):
            text, said = content.frame(tokenizer, self.source)
            ids, answer = ([i for i, _, _ in tokenizer.spans(part)] for part in (text, said))
        elif isinstance(content, str):
            text, ids = content, tokenizer.encode(content)
        if isinstance(content, (str, Conversation)) and not args.any_prompt:
            refuse_odd_prompt(self.source, text, ids, args.decode, tokenizer)
        if answer:  # the logged answer is decoded
            return ids + answer[:args.decode], len(ids), min(args.decode, len(answer))
        return ids, len(ids) if args.prompt_len is None else args.prompt_len, args.decode

    def _resume(self) -> None:
        """Takes over the dump's tokens. The prompt given, if any, must equal the dump's prompt."""
        dump = self.resumed
        asked = self.ids[:self.prompt_len] or dump.ids[:dump.prompt_len][:self.request.args.prompt_len]
        same = asked == dump.ids[:dump.prompt_len]
        require(same, self.source, f"the {dump.prompt_len} tokens of the dump's prompt", f"{len(asked)} that differ")
        self.ids, self.prompt_len, self.decode = dump.ids, dump.prompt_len, dump.T - dump.prompt_len

    @property
    def queries(self) -> int:
        """Positions whose queries are in the dump: the last ones."""
        return self.resumed.T_q if self.resumed else (self.request.args.window or self.prompt_len) + self.decode

    def jobs(self) -> list[Job]:
        """The gradients to compute."""
        args, T = self.request.args, self.prompt_len + self.decode
        if args.gradients is None and not args.gradients_nll:
            return []
        return plan(args.gradients or 0, args.rows or "future", args.gradients_nll, self.prompt_len, T, self.queries)


class Request:
    """The arguments, checked against the model's configuration, before its weights are read."""

    def __init__(self, args: argparse.Namespace, gguf: Any, contents: list[Content], refused: Callable[[str, CaptureError], None]):
        """contents: from read_contents(). refused: called with the name and error of a rejected prompt if there are several; the others
        go on."""
        self.args, self.gguf, self.source = args, gguf, args.gguf or args.model
        self.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.name = args.name or Path(self.source).name
        self.origin = {"pretrained_model_name_or_path": args.model}
        if gguf:
            path = Path(args.gguf)
            self.origin = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        with one_line_errors():
            torch.empty(0, device=self.device)
            self.whole = transformers.AutoConfig.from_pretrained(**self.origin)
        self.config = self.whole.get_text_config()
        self.tokenizer = self._find_tokenizer(contents)
        self._choose_dtype(contents)
        self.prompts: list[Prompt] = []
        for name, source, content, out in contents:
            with going_on(args.several, name, refused):
                self.prompts.append(Prompt(self, name, source, content, out))
        if args.task:  # each sample has its own tokens, at most so many
            longest = getattr(self.config, "max_position_embeddings", None) or sys.maxsize
            self.tasks, args.decode = read_tasks(args, self.tokenizer, longest), 0
            self.answers = None if args.estimate else open_answers(self.tasks, args)
            self.longest = Prompt(self, "a question", args.task, [0] * (args.length or LENGTH), None)

    def _find_tokenizer(self, contents: list[Content]) -> Any:
        args = self.args
        if args.task or args.prompt or args.messages:
            with one_line_errors():
                return find_tokenizer(args.model, self.gguf, self.origin)
        with contextlib.suppress(Exception):  # labels of ids only
            found = find_tokenizer(args.model, self.gguf, self.origin)
            highest = max((max(content) for _, _, content, _ in contents if content), default=found.size)
            return found if highest < found.size else None  # an empty one may be found
        return None

    def _choose_dtype(self, contents: list[Content]) -> None:
        """The dtype of the files, and the model's compute dtype."""
        args = self.args
        own = getattr(self.config, "dtype", None) or getattr(self.whole, "dtype", None) or "float32"
        own = str(own).replace("torch.", "")
        whole = [out for *_, out in contents if args.resume and out and (out / "manifest.json").exists() and not is_incomplete(out)]
        self.dtype = args.dtype or (Dump(whole[0]).dtype if whole else own)
        known = "--dtype with one of " + ", ".join(FILE_DTYPES)
        require(self.dtype in FILE_DTYPES, "the checkpoint's dtype", known, own)
        self.compute = args.compute or (own if TOLERANCES.get(own, np.inf) <= TOLERANCES[self.dtype] else "float32")

    def load(self) -> torch.nn.Module:
        """The model with its weights, on its device."""
        capped = getattr(self.config, "attn_logit_softcapping", None)
        eager = {"attn_implementation": "eager"} if capped else {}  # sdpa has no soft cap
        with one_line_errors():
            model, loaded = auto_class(self.whole).from_pretrained(
                **self.origin, config=self.whole, dtype=getattr(torch, self.compute), output_loading_info=True, **eager)
        lacking = sorted(loaded["missing_keys"])
        found = f"none for {len(lacking)} of them ({', '.join(lacking[:2])} ...)"
        require(not lacking, self.source, "all of the model's weights", found)
        return model.to(self.device).eval()


# A prompt's name, its file, its content (a text, a conversation or token ids), and the folder of its dump.
Content = Tuple[str, str, Union[str, Conversation, List[int], None], Union[Path, None]]


def read_contents(args: argparse.Namespace, refused: Callable[[str, CaptureError], None]) -> list[Content]:
    """Reads the prompt files, before any file of the model. Content is None if a dump is resumed."""
    found: list[tuple[str, str, Any]] = []
    args.several = len(args.sources) > 1
    for kind, path in args.sources:
        with going_on(args.several, path, refused):
            contents = [read_ids(path)] if kind == "ids" else read_conversations(path) if kind == "messages" else [read_text(path)]
            if args.chat:
                contents = [Conversation.of_user(text.rstrip("\n")) for text in contents]
            stem, count = Path(path).stem, len(contents)
            found += [(f"{stem}-{number:02}" if count > 1 else stem, path, content) for number, content in enumerate(contents)]
    out = Path(args.out) if args.out else None
    if not args.sources and not args.task:
        return [(args.out, args.out, None, out)]
    names = [name for name, _, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, "--out", "prompts whose files have names of their own, which their dumps take", f"{twice} twice")
    args.several = args.several or len(found) > 1
    return [(name, path, content, out / name if out and args.several else out) for name, path, content in found]


@contextlib.contextmanager
def going_on(several: bool, name: str, refused: Callable[[str, CaptureError], None]) -> Iterator[None]:
    """Context: if one of several prompts is rejected, reports it by name and goes on with the others."""
    try:
        yield
    except CaptureError as error:
        if not several:
            raise
        refused(name, error)


def weights_size(source: str) -> str:
    """" (491 MB)", or "" for a model that is not on this machine yet."""
    path = Path(source)
    kinds = ("*.safetensors", "*.bin") if path.is_dir() else ()
    files = next((found for kind in kinds if (found := list(path.glob(kind)))), [path] if path.is_file() else [])
    size = sum(file.stat().st_size for file in files) / 1e6
    return f" ({size / 1e3:.1f} GB)" if size >= 1e3 else f" ({max(size, 1):.0f} MB)" if files else ""


def auto_class(config: Any) -> Any:
    """That loads the models of a configuration: an encoder need not have a causal one, nor any head."""
    named = (getattr(config, "architectures", None) or [""])[0]
    if named.endswith("Model") and is_encoder(config):
        return transformers.AutoModel
    classes = (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM)
    return next((kind for kind in classes if type(config) in kind._model_mapping), classes[0])


def is_encoder(config: Any) -> bool:
    text = config.get_text_config()
    masked = type(text) in transformers.AutoModelForMaskedLM._model_mapping
    return masked and not getattr(text, "is_decoder", False) or bool(getattr(text, "use_bidirectional_attention", False))


@contextlib.contextmanager
def one_line_errors():
    """What transformers says of a model that it cannot load, shortened to one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, TypeError, AssertionError) as error:
        raise CaptureError(" ".join(str(error).split())[:300]) from None

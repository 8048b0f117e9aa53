"""What kvcapture.py's arguments ask for: the model, the tokens that it is to read, the layers, the dtypes, the
gradients."""
from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from capture_tasks import LENGTH, read_tasks
from dump_files import FILE_DTYPES, TOLERANCES, CaptureError, read_layers, read_text, require
from gradient_progress import Dump, Job, plan
from model_attention import choose_layers
from prompt_tokens import find_tokenizer, read_ids, refuse_odd_prompt


class Request:
    """The arguments, checked against the model's configuration, before its weights are read."""

    def __init__(self, args: argparse.Namespace, gguf: Any):
        self.args, self.gguf, self.source = args, gguf, args.gguf or args.model
        self.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.name = args.name or Path(self.source).name
        self.origin = {"pretrained_model_name_or_path": args.model}
        if gguf:
            path = Path(args.gguf)
            self.origin = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        there = args.resume and not args.task and args.out and (Path(args.out) / "manifest.json").exists()
        self.resumed = Dump(Path(args.out)) if there else None
        with one_line_errors():
            self.whole = transformers.AutoConfig.from_pretrained(**self.origin)
            self._read_tokens()
        self.config = self.whole.get_text_config()
        if args.task:  # each sample has its own
            longest = getattr(self.config, "max_position_embeddings", None) or sys.maxsize
            self.tasks, self.prompt_len, self.decode = read_tasks(args, self.tokenizer, longest), args.length or LENGTH, 0
        else:
            self._choose_tokens(args.prompt or args.ids or args.out)
        if self.resumed:
            self.layers = self.resumed.layers
        else:
            chosen = None if args.layers is None else read_layers(args.layers, self.config.num_hidden_layers)
            self.layers = choose_layers(self.config, chosen, self.prompt_len, self.decode, args.window)
        own = getattr(self.config, "dtype", None) or getattr(self.whole, "dtype", None) or "float32"
        own = str(own).replace("torch.", "")
        self.dtype = args.dtype or (self.resumed.dtype if self.resumed else own)
        known = "--dtype with one of " + ", ".join(FILE_DTYPES)
        require(self.dtype in FILE_DTYPES, "the checkpoint's dtype", known, own)
        if self.resumed:
            require(self.dtype == self.resumed.dtype, "--dtype", f"the dump's {self.resumed.dtype}", self.dtype)
        self.compute = args.compute or (own if TOLERANCES.get(own, np.inf) <= TOLERANCES[self.dtype] else "float32")

    def _read_tokens(self) -> None:
        args, self.tokenizer, self.ids = self.args, None, []
        if args.task:
            self.tokenizer = find_tokenizer(args.model, self.gguf, self.origin)
        elif args.prompt:
            self.tokenizer = find_tokenizer(args.model, self.gguf, self.origin)
            text = read_text(args.prompt)
            self.ids = self._chat(text.rstrip("\n")) if args.chat else self.tokenizer.encode(text)
            if not args.any_prompt:
                refuse_odd_prompt(args.prompt, text, self.ids, args.decode, self.tokenizer)
        elif args.ids:
            self.ids = read_ids(args.ids)
            with contextlib.suppress(Exception):  # labels only
                found = find_tokenizer(args.model, self.gguf, self.origin)
                self.tokenizer = found if max(self.ids) < found.size else None  # an empty one may be found

    def _chat(self, text: str) -> list[int]:
        """The text as what a user says, up to where the model answers."""
        framed = self.tokenizer.chat(text)
        require(framed is not None, "--chat", "a tokenizer with a chat template", "none")
        return [i for i, _, _ in self.tokenizer.spans(framed)]

    def _choose_tokens(self, source: str) -> None:
        """prompt_len, decode and the ids, of which those behind the prompt are decoded."""
        args, resumed = self.args, self.resumed
        if resumed:
            asked = (self.ids or resumed.ids[:resumed.prompt_len])[:args.prompt_len]
            same = asked == resumed.ids[:resumed.prompt_len]
            require(same, source, f"the {resumed.prompt_len} tokens of the dump's prompt", f"{len(asked)} that differ")
            self.ids, self.prompt_len, self.decode = resumed.ids, resumed.prompt_len, resumed.T - resumed.prompt_len
            return
        ids, size = self.ids, self.config.vocab_size
        known = ids and 0 <= min(ids) <= max(ids) < size
        require(known, source, f"ids of 0 to {size - 1}", f"{min(ids)} to {max(ids)}" if ids else "nothing")
        self.prompt_len, self.decode = len(ids) if args.prompt_len is None else args.prompt_len, args.decode
        behind = len(ids) - self.prompt_len
        enough = 1 <= self.prompt_len <= len(ids) and (not behind or behind >= self.decode)
        require(enough, source, f"a prompt of 1 to {len(ids)} positions, and {self.decode} ids behind it or none",
                f"--prompt-len {self.prompt_len} of {len(ids)}")

    @property
    def queries(self) -> int:
        """Positions whose queries are in the dump: the last ones."""
        return self.resumed.T_q if self.resumed else (self.args.window or self.prompt_len) + self.decode

    def jobs(self) -> list[Job]:
        """The gradients that are asked for."""
        args, T = self.args, self.prompt_len + self.decode
        if args.gradients is None and not args.gradients_nll:
            return []
        require(args.gradients is None or args.gradients >= 1, "--gradients", "at least 1 sample", args.gradients)
        return plan(args.gradients or 0, args.rows or "future", args.gradients_nll, self.prompt_len, T, self.queries)

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
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, TypeError) as error:
        raise CaptureError(" ".join(str(error).split())[:300]) from None

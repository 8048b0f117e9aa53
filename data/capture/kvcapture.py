#!/usr/bin/env python3
"""Captures what the attention of a Hugging Face model saw, as a dump that kvreplay reads (data/DUMP-FORMAT.md).

  kvcapture.py --model PATH-or-ID --prompt FILE --decode 128 --out DUMP
  kvcapture.py --gguf FILE --prompt FILE --prompt-len 896 --decode 128 --out DUMP   (decodes the text behind the prompt)
  kvcapture.py --check DUMP

or around any code that runs the model:

  with capture(model, "DUMP", prompt_len=ids.shape[1], decode=128):
      model.generate(ids, max_new_tokens=129, do_sample=False)    # the last new token is never fed: 128 decoding steps

An attention function registered with the transformers attention interface stands in for the model's own in every layer: it rounds
q, k and v to the files' dtype, writes them, has the model's own (eager or sdpa) compute the output o from exactly these numbers, and
writes o, with which the model goes on. Before that, a probe of 16 equal tokens passes with every attention output replaced by the
values, so that a layer's keys differ by their rotation only. One layer's tensors are in memory at a time, besides model and cache.

Needs torch, numpy and transformers 4.56 or later (--check: numpy; --gguf: also gguf and accelerate), and the files beside
this one. A request that cannot be met is one line and exit status 2.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import io
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Tuple

import numpy as np

from dump_check import check, visible
from dump_files import (FILE_DTYPES, TOLERANCES, CaptureError, Shape, allocate, layer_files, npy_bytes, one_line,
                        prepare_folder, read_text, require, write_json)

MISSING = ""
try:
    import torch
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.pytorch_utils import Conv1D
except ImportError as missing:
    torch, MISSING = None, str(missing)

_ACTIVE: dict[int, capture] = {}  # by the id of the configuration that its attention modules share
Turn = Tuple[str, float, Tuple[float, ...]]  # of keys: half or interleaved, attention factor, inv_freq [rotary_dim / 2] (none: still)
PROBE_TOKENS = 16
FEWEST_TOKENS = 16  # of a prompt's text: fewer, and most scores have nothing to choose from
FEWEST_LETTERS = 32  # that tell a tokenizer which splits them all from a text that has few
PROBE_TOLERANCE = 2e-2  # bfloat16 cosines and keys come to 5e-3; a wrong rotation is off by about 1


class capture:
    """Writes a dump of all that the model's attention sees inside the `with` block, which feeds it one sequence, once: prompt_len
    positions, in one pass or several, then at most `decode` decoding steps with a growing cache. The dump has as many decoding steps
    as were made. layers: which, renumbered from 0 (default all). window: only the queries of the last that many prompt positions, and
    of the decoding steps. dtype: the files', by default the model's; not finer than the model's. name: the manifest's `model`.
    progress: called with a line that says how far the capture is.
    Raises CaptureError; where the block does not end normally, manifest.json keeps `"incomplete": true`."""

    def __init__(self, model: torch.nn.Module, out: str | os.PathLike, *, prompt_len: int, decode: int = 0,
                 layers: Iterable[int] | None = None, window: int | None = None, dtype: str | None = None,
                 force: bool = False, name: str | None = None, progress: Callable[[str], object] = lambda line: None):
        self.model, self.out, self.force, self.name, self.progress = model, Path(out), force, name, progress
        self.prompt_len, self.T = prompt_len, prompt_len + decode
        self.window = prompt_len if window is None else window
        self.config = model.config.get_text_config()
        self.chosen = choose_layers(self.config, layers, prompt_len, decode, window)
        self.compute = compute = str(model.dtype).replace("torch.", "")
        self.dtype = dtype or compute
        require({self.dtype, compute} <= FILE_DTYPES.keys(), "dtype", ", ".join(FILE_DTYPES), f"{self.dtype} for a model in {compute}")
        fine = TOLERANCES[compute] <= TOLERANCES[self.dtype]
        require(fine, f"dtype {self.dtype}", "a model that computes at least as finely", f"one in {compute}")

    def __enter__(self) -> "capture":
        self.layers: dict[int, Layer] = {}
        self.first: Layer | None = None  # until the probe has met all layers
        self.ids: list[int] | None = []  # None where the model was fed something else
        with contextlib.ExitStack() as stack:
            self._stand_in(stack)
            self._probe()
            size = len(self.chosen) * sum(npy_bytes(shape, dtype) for shape, dtype in self._files(self.T).values())
            prepare_folder(self.out, self.force, size)
            write_json(self.out / "manifest.json", {"incomplete": True, **self._manifest(self.T)})
            stack.callback(self.model.register_forward_pre_hook(self._note_ids, with_kwargs=True).remove)
            for layer in self.layers.values():
                if layer.block is not None:
                    stack.callback(layer.block.register_forward_pre_hook(layer.note_residual, with_kwargs=True).remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        self.stack.close()
        if kind is None:
            self._finish()

    def _stand_in(self, stack: contextlib.ExitStack) -> None:
        """Switches the decoder's configurations to the attention that captures, until the stack closes."""
        self.decoder = self.model.get_decoder() or self.model
        configs = {id(config): config for config in (getattr(m, "config", self.config) for m in self.decoder.modules())}
        require(not _ACTIVE.keys() & configs.keys(), "capture", "one of a model at a time", "another inside it")
        own = self.own = self.config._attn_implementation
        require(own in ("eager", "sdpa"), "attention implementation", "eager or sdpa (attn_implementation=...)", own)
        AttentionInterface.register(f"kvcapture_{own}", attention)
        AttentionMaskInterface.register(f"kvcapture_{own}", ALL_MASK_ATTENTION_FUNCTIONS[own])  # without it there is no causal mask
        for key, config in configs.items():
            _ACTIVE[key] = self
            stack.callback(_ACTIVE.pop, key)
            stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            config._attn_implementation = f"kvcapture_{own}"

    def _probe(self) -> None:
        """Fills self.layers, in their order."""
        count = min(PROBE_TOKENS, getattr(self.config, "max_position_embeddings", None) or PROBE_TOKENS)
        ids = torch.full((1, count), self.config.vocab_size // 2, device=self.decoder.get_input_embeddings().weight.device)
        with torch.no_grad():
            self.decoder(input_ids=ids, use_cache=False)
        missing = ", ".join(str(i) for i in self.chosen if i not in self.layers)
        found = f"none in layers {missing} (choose with --layers)" if self.layers else "nothing was captured"
        require(not missing, type(self.model).__name__, "attention through the transformers attention interface", found)
        self.layers = {i: self.layers[i] for i in self.chosen}
        self.first = self.layers[self.chosen[0]]
        for i, layer in self.layers.items():
            for what in ("shape", "scale", "softcap"):
                mine, firsts = getattr(layer, what), getattr(self.first, what)
                require(mine == firsts, f"layer {i}, {what}", f"layer {self.chosen[0]}'s {firsts}", mine)

    def _note_ids(self, _module, args, kwargs) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.ids = None if self.ids is None or ids is None else self.ids + ids[0].tolist()

    def _attend(self, module, query, key, value, mask, kwargs):
        """Stands in for the model's own attention of query [1, n_q, rows, d], key [1, n_kv, keys, d], value [1, n_kv, keys, d_v]."""
        index, own = module.layer_idx, own_attention(self.own, module)
        require(query.shape[0] == 1, "batch", "one sequence", query.shape[0])
        require(not kwargs.get("dropout"), f"layer {index}", "no dropout in attention (model.eval())", kwargs.get("dropout"))
        query, key, value = (x.to(getattr(torch, self.dtype)).to(x.dtype) for x in (query, key, value))
        if self.first is None:  # the probe
            if index in self.chosen:
                folder = self.out / f"layer_{self.chosen.index(index):02}"
                layer = self.layers[index] = Layer(folder, self.model, module, query, key, value, kwargs)
                fits = self.own == "eager" or not (layer.softcap or layer.sinks)
                require(fits, f"layer {index}", "eager attention for a soft cap or sinks (attn_implementation='eager')", "sdpa")
            return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2).contiguous(), None
        if index not in self.chosen:
            return own(module, query, key, value, mask, **kwargs)

        layer, rows, keys = self.layers[index], query.shape[2], key.shape[2]
        first, end = layer.seen, layer.seen + rows
        require(end <= self.T, f"layer {index}", f"at most {self.T} positions (prompt_len and decode)", end)
        fewest = min(first, layer.window - 1) + rows if layer.window else end
        require(fewest <= keys <= end, f"layer {index} at position {first}", f"a cache that grows by each position fed, {end} keys", keys)
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        check_mask(f"layer {index}, attention mask", mask, causal and self.own == "sdpa", first, rows, keys, layer.window)

        if not layer.files:
            layer.folder.mkdir()
            names = "qkvo" if layer.residual_norm is None else (*"qkvo", "residual_norm")
            layer.files = {name: allocate(layer.folder / f"{name}.npy", *self._files(self.T)[name]) for name in names}
            layer.turn = layer.rotation and layer.rotation()
        unwritten = max(self.prompt_len - self.window - first, 0)  # of these rows, the first have no query in the files
        row = max(first - (self.prompt_len - self.window), 0)
        self._write(index, "q", query[0, :, unwritten:], row)
        self._write(index, "k", key[0, :, keys - rows:], first)
        self._write(index, "v", value[0, :, keys - rows:], first)
        output, weights = own(module, query, key, value, mask, **kwargs)
        self._write(index, "o", output[0].transpose(0, 1)[:, unwritten:], row)
        if "residual_norm" in layer.files:
            norms = layer.residual_norm
            fits = norms is not None and len(norms) == rows and np.isfinite(norms).all()
            require(fits, f"layer {index}, residual_norm", f"{rows} finite numbers", norms)
            layer.files["residual_norm"][first:end] = norms
        layer.seen = end
        if rows > 1:
            layer_of = f"layer {self.chosen.index(index) + 1} of {len(self.chosen)}"
            self.progress(f"prompt to position {end} of {self.prompt_len}, {layer_of}")
        elif index == self.chosen[-1]:
            self.progress(f"decoding step {end - self.prompt_len} of {self.T - self.prompt_len}")
        return output, weights

    def _write(self, index: int, name: str, x: torch.Tensor, start: int) -> None:
        """x [heads, rows, channels] to rows start, start + 1, ... of the layer's file."""
        rows, files = x.shape[1], self.layers[index].files
        files[name][:, start:start + rows] = to_file(x, self.dtype, f"layer {index}, {name}")
        if rows > 1:  # a prompt's pages leave this process' memory with the map that wrote them
            files[name] = np.lib.format.open_memmap(files[name].filename, mode="r+")

    def _finish(self) -> None:
        seen = sorted({layer.seen for layer in self.layers.values()})
        require(len(seen) == 1 and seen[0] >= self.prompt_len, self.out, f"{self.prompt_len} to {self.T} positions in every layer", seen)
        kinds, notes = self._files(seen[0]), {}
        for i, layer in self.layers.items():
            for name, array in layer.files.items():
                array.flush()
                shape, dtype = kinds[name]
                if array.shape != shape:  # fewer decoding steps than there was room for
                    allocate(layer.folder / "shorter.npy", shape, dtype)[:] = array[tuple(map(slice, shape))]
                    os.replace(layer.folder / "shorter.npy", layer.folder / f"{name}.npy")
            layer.files = {}
            wo = output_projection(layer.module, layer.shape)
            if wo is None:
                notes = {"wo_note": f"no wo: layer {i} has no plain o_proj weight"}
            else:
                allocate(layer.folder / "wo.npy", *kinds["wo"])[:] = to_file(wo, self.dtype, f"layer {i}, wo")
        if self.ids is not None and len(self.ids) == seen[0]:
            write_json(self.out / "tokens.json", {"ids": self.ids})
        write_json(self.out / "manifest.json", {**self._manifest(seen[0]), **self._rope(), **notes})

    def _files(self, T: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return layer_files(self.first.shape, T, T - self.prompt_len + self.window, self.dtype)

    def _manifest(self, T: int) -> dict[str, Any]:
        shape, layers = self.first.shape, self.layers.values()
        windows, sinks = [layer.window for layer in layers], [layer.sinks for layer in layers]
        return {
            "model": self.name or self.config._name_or_path or type(self.model).__name__, "prompt_len": self.prompt_len, "total_len": T,
            "n_layers": len(layers), "n_q_heads": shape.n_q, "n_kv_heads": shape.n_kv, "head_dim": shape.d, "scale": self.first.scale,
            "causal": True, "dtype": self.dtype if self.dtype == "bfloat16" else None, "logit_softcap": self.first.softcap,
            "sliding_window": windows if any(windows) else None, "sink_logit": sinks if any(sinks) else None,
            "layers": self.chosen, "origin": f"kvcapture.py: torch {torch.__version__}, transformers {transformers.__version__}, "
                                             f"computed in {self.compute}, {self.own} attention"}

    def _rope(self) -> dict[str, Any]:
        """The manifest's `rope`, or a note why there is none."""
        for i, layer in self.layers.items():
            if layer.turn is None:
                return {"rope_note": f"no rope: the keys of layer {i} do not turn as any of the model's rotations would have them"}
            if layer.turn != layer.rotation():
                return {"rope_note": f"no rope: the rotation of layer {i} changed after the prompt"}
        turns = [layer.turn for layer in self.layers.values()]
        kinds = {(style, factor, len(inv_freq)) for style, factor, inv_freq in turns if inv_freq}
        if len(kinds) != 1:
            return {"rope_note": "no rope: " + ("the layers turn in several ways" if kinds else "no layer turns")}
        style, factor, half = kinds.pop()
        each = [inv_freq or (0.0,) * half for _, _, inv_freq in turns]
        theta = (getattr(self.config, "rope_parameters", None) or {}).get("rope_theta") or getattr(self.config, "rope_theta", None)
        alike = len(set(each)) == 1
        regular = alike and theta and np.allclose(each[0], float(theta) ** (-np.arange(half) / half), rtol=1e-6, atol=0)
        frequency = {"theta": float(theta)} if regular else {"inv_freq": each[0] if alike else each}
        return {"rope": {"style": style, "rotary_dim": 2 * half, "attention_factor": factor, **frequency}}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("--gguf", metavar="FILE", help="a GGUF file, dequantized (with --model: the tokenizer of that)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="FILE", help="text, for the model's own tokenizer")
    source.add_argument("--ids", metavar="FILE", help="token ids: a JSON list, a tokens.json, or numbers")
    parser.add_argument("--any-prompt", action="store_true", help="even a text of few, unknown or single-letter tokens")
    parser.add_argument("--prompt-len", type=int, metavar="N", help="the first N tokens are the prompt, the others decoded")
    parser.add_argument("--decode", type=int, default=128, metavar="N", help="decoding steps, greedy (default 128)")
    parser.add_argument("--sample", type=int, metavar="SEED", help="sample the decoding steps at temperature 1")
    parser.add_argument("--out", metavar="DUMP", help="the folder to write")
    parser.add_argument("--force", action="store_true", help="replace a dump in the folder")
    parser.add_argument("--layers", metavar="0,3-5", help="only these, renumbered from 0")
    parser.add_argument("--window", type=int, metavar="W", help="only the queries of the last W prompt positions and the decoding steps")
    parser.add_argument("--dtype", choices=FILE_DTYPES, help="of the files, and what q, k, v are rounded to (default the checkpoint's)")
    parser.add_argument("--compute", choices=FILE_DTYPES, help="what the model runs in (default the checkpoint's, if not coarser)")
    parser.add_argument("--device", help="cpu, cuda, ... (default cuda where there is one)")
    parser.add_argument("--name", help="the manifest's model name")
    parser.add_argument("--estimate", action="store_true", help="print the bytes it would write, and stop")
    parser.add_argument("--check", metavar="DUMP", help="which layers are whole, and does o follow from q, k, v? exit 1 if not")
    parser.error = refuse_arguments
    args = argparse.Namespace(out=None)
    try:
        parser.parse_args(arguments, args)
        if args.check:
            good = check(args.check)
            sys.stdout.flush()
            return 0 if good else 1
        if not ((args.model or args.gguf) and (args.prompt or args.ids) and (args.out or args.estimate)):
            parser.error("expected --check DUMP, or --model or --gguf, --prompt or --ids, and --out")
        with Progress() as progress:
            return run(args, progress)
    except (CaptureError, OSError) as error:
        print(f"kvcapture: {one_line(error)}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = None  # it may be what cannot be written, and would be tried again
        return 2
    except KeyboardInterrupt:
        begun = args.out and (Path(args.out) / "manifest.json").exists()
        print("kvcapture: interrupted" + (f", {one_line(args.out)} is incomplete" if begun else ""), file=sys.stderr)
        return 130


def refuse_arguments(message: str) -> None:
    raise CaptureError(f"{message} (--help lists the options)")


def run(args: argparse.Namespace, progress: Progress) -> int:
    """Captures, or estimates, what the arguments ask for; the exit status."""
    require(not MISSING, "packages", "torch and transformers (pip install torch transformers)", MISSING)
    transformers.utils.logging.set_verbosity_error()  # what matters of its warnings is refused below
    silence = contextlib.nullcontext()
    if not progress.terminal:
        transformers.utils.logging.disable_progress_bar()
        silence = contextlib.redirect_stderr(io.StringIO())  # not every bar heeds that
    progress(f"reading {args.gguf or args.model}")
    with one_line_errors():
        gguf = args.gguf and open_gguf(args.gguf)
        origin = {"pretrained_model_name_or_path": args.model}
        if gguf:
            origin = {"pretrained_model_name_or_path": str(Path(args.gguf).parent), "gguf_file": Path(args.gguf).name}
        whole = transformers.AutoConfig.from_pretrained(**origin)
        if args.prompt:
            tokenizer = find_tokenizer(args.model, gguf, origin)
            text = read_text(args.prompt)
            ids = tokenizer.encode(text)
            if not args.any_prompt:
                refuse_odd_prompt(args.prompt, text, ids, tokenizer)
        else:
            ids = read_ids(args.ids)
            tokenizer = None
            with contextlib.suppress(Exception):  # labels only
                found = find_tokenizer(args.model, gguf, origin)
                tokenizer = found if max(ids) < found.size else None  # a folder without one may give an empty one
    config = whole.get_text_config()
    source, prompt_len = args.prompt or args.ids, args.prompt_len or len(ids)
    known = ids and 0 <= min(ids) <= max(ids) < config.vocab_size
    require(known, source, f"ids of 0 to {config.vocab_size - 1}", f"{min(ids)} to {max(ids)}" if ids else "nothing")
    given = ids[prompt_len:]
    enough = 1 <= prompt_len <= len(ids) and (not given or len(given) >= args.decode)
    require(enough, source, f"a prompt of 1 to {len(ids)} positions, and {args.decode} ids behind it or none",
            f"--prompt-len {prompt_len} of {len(ids)}")
    chosen = args.layers and read_layers(args.layers, config.num_hidden_layers)
    layers = choose_layers(config, chosen, prompt_len, args.decode, args.window)
    own = str(getattr(config, "dtype", None) or getattr(whole, "dtype", None) or "float32").replace("torch.", "")
    dtype = args.dtype or own
    require(dtype in FILE_DTYPES, "the checkpoint's dtype", "--dtype with one of " + ", ".join(FILE_DTYPES), own)
    if args.estimate:
        T, T_q = prompt_len + args.decode, (args.window or prompt_len) + args.decode
        files = layer_files(config_shape(config), T, T_q, dtype)
        sizes = {name: len(layers) * npy_bytes(*kind) for name, kind in files.items()}
        for name, size in sizes.items():
            print(f"{name:<14}{len(layers)} x {str(list(files[name][0])):<24}{size:>20,} bytes")
        print(f"{'total':<38}{sum(sizes.values()):>20,} bytes in {dtype}, besides manifest.json and tokens.json")
        return 0
    compute = args.compute or (own if TOLERANCES.get(own, np.inf) <= TOLERANCES[dtype] else "float32")
    eager = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}  # sdpa has no soft cap
    progress.clear()
    with one_line_errors(), silence:
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(**origin, dtype=getattr(torch, compute),
                                                                          output_loading_info=True, **eager)
    lacking = sorted(loaded["missing_keys"])
    found = f"none for {len(lacking)} of them ({', '.join(lacking[:2])} ...)"
    require(not lacking, args.gguf or args.model, "all of the model's weights", found)
    model = model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    name = args.name or Path(args.gguf or args.model).name
    with capture(model, args.out, prompt_len=prompt_len, decode=args.decode, layers=layers, window=args.window, dtype=dtype,
                 force=args.force, name=name, progress=progress) as captured:
        print(f"{one_line(args.out)}: {len(layers)} layers, {prompt_len} + {args.decode} positions", file=sys.stderr)
        ends = ending_tokens(model, tokenizer, gguf)
        ended = feed(model, ids[:prompt_len], given, args.decode, args.sample, ends)
        progress.clear()
    if ended is not None:
        print(f"kvcapture: the model ended the text at decoding step {ended} of {args.decode}: "
              "what follows is not what it would write", file=sys.stderr)
    if tokenizer and captured.ids:
        texts = [tokenizer.text(i) for i in captured.ids]
        write_json(captured.out / "tokens.json", {"ids": captured.ids, "text": texts})
    return 0 if check(args.out) else 1


class Progress:
    """A line of the terminal that says how far things are; nothing where there is no terminal."""

    def __init__(self):
        self.terminal, self.said = sys.stderr.isatty(), 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def __call__(self, line: str) -> None:
        if self.terminal and time.monotonic() - self.said > 0.1:  # a terminal may be slow
            self.said = time.monotonic()
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{one_line(line)[:width]}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.said:
            self.said = 0.0
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Tokenizer:
    """What a prompt needs of a transformers tokenizer. gguf_file.Pieces has the same members."""

    def __init__(self, own: Any, begin: list[int] | None = None, ends: set[int] | None = None):
        """begin: what stands before a text (default: what the tokenizer puts there). ends: tokens that end one."""
        self._own, self._begin, self.size = own, begin, len(own)
        self.ends = {own.eos_token_id} - {None} if ends is None else ends
        self.unknown = None if own.unk_token_id is None else (own.unk_token_id, str(own.unk_token))

    def encode(self, text: str) -> list[int]:
        return (self._begin or []) + self._own(text, add_special_tokens=self._begin is None).input_ids

    def text(self, i: int) -> str:
        return self._own.decode([i])


def open_gguf(path: str):
    try:
        from gguf_file import GgufFile
    except ImportError as missing:
        raise CaptureError(f"--gguf: expected gguf_file.py beside kvcapture.py, found {missing}") from None
    return GgufFile(Path(path))


def find_tokenizer(model: str | None, gguf: Any, origin: dict[str, str]) -> Any:
    """The named model's, or else the GGUF file's."""
    if model:
        return Tokenizer(transformers.AutoTokenizer.from_pretrained(model))
    pieces = gguf.pieces()
    if pieces:
        return pieces
    own = transformers.AutoTokenizer.from_pretrained(**origin)
    if gguf.digits_apart:
        from tokenizers import pre_tokenizers as cut
        byte_level = cut.ByteLevel(add_prefix_space=False)
        own.backend_tokenizer.pre_tokenizer = cut.Sequence([cut.Digits(individual_digits=True), byte_level])
    return Tokenizer(own, gguf.begin, gguf.ends)


def refuse_odd_prompt(source: str, text: str, ids: list[int], tokenizer: Any) -> None:
    """Refuses what comes of a tokenizer that is missing, broken or another model's."""
    insist = "(--any-prompt takes it as it is)"
    found = f"{len(ids)} of {len(text)} characters"
    require(len(ids) >= FEWEST_TOKENS, source, f"a text of at least {FEWEST_TOKENS} tokens {insist}", found)
    if tokenizer.unknown:
        i, piece = tokenizer.unknown
        unknown = ids.count(i) - text.count(piece)  # where the text has it, it is meant
        found = f"{piece} for {unknown} of {len(ids)} tokens"
        require(unknown <= 0, source, f"a text that the tokenizer knows {insist}", found)
    letters = sum(c.isascii() and c.isalpha() for c in text)
    pieces = (tokenizer.text(i).strip() for i in ids)
    single = sum(len(piece) == 1 and piece.isascii() and piece.isalpha() for piece in pieces)
    found = f"a token of its own for {single} of {letters} letters"
    joins = letters < FEWEST_LETTERS or single < 0.9 * letters
    require(joins, source, f"a tokenizer that joins letters {insist}", found)


def ending_tokens(model: torch.nn.Module, tokenizer: Any, gguf: Any) -> set[int]:
    """Tokens with which the model ends a text. Of a GGUF file, transformers keeps its configuration's default."""
    if gguf:
        return gguf.ends
    known = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    known = set(known) if isinstance(known, list) else {known}
    return (known | (tokenizer.ends if tokenizer else set())) - {None}


def feed(model: torch.nn.Module, ids: list[int], given: list[int], decode: int, seed: int | None,
         ends: Iterable[int] = ()) -> int | None:
    """The prompt, then `decode` tokens one by one: the given ones, or the likeliest, or sampled. No token ends it.
    Returns the first step at which the model chose one of `ends`, if any."""
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    device = model.get_input_embeddings().weight.device
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    tokens, cache, ended = ids, None, None
    with torch.no_grad():
        for step in range(decode + 1):
            result = model(input_ids=torch.tensor([tokens], device=device), past_key_values=cache, use_cache=True, **keep)
            cache, logits = result.past_key_values, result.logits[0, -1].float().cpu()
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator) if generator else logits.argmax()
            tokens = [given[step] if step < len(given) else int(chosen)]
            if ended is None and len(given) <= step < decode and tokens[0] in ends:
                ended = step
    return ended


def read_ids(path: str) -> list[int]:
    """A JSON list, a tokens.json, or numbers between spaces or commas."""
    text = read_text(path)
    try:
        found = json.loads(text) if text.lstrip()[:1] in "[{" else [int(word) for word in text.replace(",", " ").split()]
        found = found["ids"] if isinstance(found, dict) else found
    except (ValueError, KeyError, RecursionError):
        found = None
    good = found and isinstance(found, list) and all(type(i) is int for i in found)
    require(good, path, "token ids: a JSON list, a tokens.json, or numbers", text[:30].strip() or "nothing")
    return found


def read_layers(text: str, count: int) -> list[int]:
    """0,3-5, of so many layers."""
    try:
        spans = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError:
        raise CaptureError(f"--layers: expected something like 0,3-5, found {text}") from None
    require(all(span[-1] < count for span in spans), "--layers", f"some of 0 to {count - 1}", text)
    return [layer for span in spans for layer in range(span[0], span[-1] + 1)]


@contextlib.contextmanager
def one_line_errors():
    """What transformers says of a model that it cannot load, shortened to one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, NotImplementedError) as error:
        raise CaptureError(" ".join(str(error).split())[:300]) from None


# ---------------------------------------------------------------- mechanics: the model, its rotations, files


def attention(module, query, key, value, attention_mask, **kwargs):
    return _ACTIVE[id(module.config)]._attend(module, query, key, value, attention_mask, kwargs)


def own_attention(implementation: str, module: torch.nn.Module) -> Callable:
    """What the module's forward() would call by itself; eager attention is the one beside it."""
    own = ALL_ATTENTION_FUNCTIONS.get(implementation)
    own = own or inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
    require(own, f"attention of {type(module).__name__}", "an eager_attention_forward beside it", "none")
    return own


class Layer:
    """One layer's attention as the probe's call of it shows it, then its files as they fill."""

    def __init__(self, folder: Path, model: torch.nn.Module, module: torch.nn.Module, query, key, value, called: dict[str, Any]):
        scale, sinks = called.get("scaling"), called.get("s_aux", getattr(module, "sinks", None))
        window = called.get("sliding_window", getattr(module, "sliding_window", None))
        softcap = called.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        self.folder, self.module = folder, module
        self.shape = Shape(query.shape[1], key.shape[1], key.shape[3], value.shape[3], module.config.hidden_size)
        self.scale = self.shape.d ** -0.5 if scale is None else float(scale)
        self.window = int(window) if window else None
        self.softcap = float(softcap) if softcap else None
        self.sinks = None if sinks is None else sinks.detach().float().cpu().tolist()
        self.rotation = fit_rotation(key[0].detach().double().cpu().numpy(), model)
        self.turn: Turn | None = None  # rotation() when the prompt was read
        self.block = residual_block(model, module)
        self.residual_norm: np.ndarray | None = None  # of the rows that the block was last called with
        self.files: dict[str, np.memmap] = {}
        self.seen = 0  # positions written

    def note_residual(self, _block, args, kwargs) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        stream = torch.is_tensor(x) and x.dim() == 3 and x.shape[2] == self.shape.d_model
        self.residual_norm = x[0].detach().float().norm(dim=-1).cpu().numpy() if stream else None


def choose_layers(config: Any, layers: Iterable[int] | None, prompt_len: int, decode: int, window: int | None) -> list[int]:
    """The layers to capture; refuses what the text model's configuration already tells."""
    require(prompt_len >= 1 and decode >= 0, "capture", "prompt_len of at least 1 and decode of at least 0", f"{prompt_len} and {decode}")
    require(window is None or 1 <= window <= prompt_len, "window", f"1 to the prompt's {prompt_len} positions", window)
    decoder_only = not getattr(config, "is_encoder_decoder", False)
    require(decoder_only, f"model type {config.model_type}", "a decoder-only model", "an encoder and a decoder")
    count = config.num_hidden_layers
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    require(chosen and 0 <= chosen[0] <= chosen[-1] < count, "layers", f"some of 0 to {count - 1}", chosen)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * count
    other = [f"{i} ({kinds[i]})" for i in chosen if not kinds[i].endswith("_attention") or kinds[i].startswith("linear")]
    require(not other, "layers", "softmax attention (choose with --layers)", ", ".join(other))
    longest = getattr(config, "max_position_embeddings", None) or np.inf
    require(prompt_len + decode <= longest, "prompt and decoding steps", f"at most the model's {longest} positions", prompt_len + decode)
    return chosen


def config_shape(config: Any) -> Shape:
    """What the configuration says of the shapes, for an estimate without the model."""
    n_q = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_q
    d = d_v = getattr(config, "head_dim", None) or config.hidden_size // n_q
    if getattr(config, "kv_lora_rank", None):  # latent attention: keys and values are expanded to all heads
        n_kv, d, d_v = n_q, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    return Shape(n_q, n_kv, d, d_v, config.hidden_size)


def residual_block(model: torch.nn.Module, attention: torch.nn.Module) -> torch.nn.Module | None:
    """The entry of the decoder's list of layers that holds an attention: what it is called with is the residual stream
    that the attention's output is added to, whatever norms stand before or behind the attention."""
    path = next((name for name, module in model.named_modules() if module is attention), "")
    while "." in path:
        path, _, last = path.rpartition(".")
        entry = model.get_submodule(f"{path}.{last}")
        if entry is not attention and isinstance(model.get_submodule(path), torch.nn.ModuleList):
            return entry
    return None


def output_projection(module: torch.nn.Module, shape: Shape) -> torch.Tensor | None:
    """wo [n_q, d_v, d_model], or None where the layer has no plain weight of that size."""
    for name in ("o_proj", "dense", "out_proj", "c_proj"):
        projection = getattr(module, name, None)
        weight = getattr(projection, "weight", None)
        if weight is not None and not weight.is_meta:
            weight = weight.detach() if isinstance(projection, Conv1D) else weight.detach().T  # [in, out]
            if tuple(weight.shape) == (shape.n_q * shape.d_v, shape.d_model):
                return weight.reshape(shape.n_q, shape.d_v, shape.d_model)
    return None


def check_mask(where: str, mask: torch.Tensor | None, causal: bool, first: int, rows: int, keys: int, window: int | None) -> None:
    """Refuses a mask [1, heads or 1, rows, at least keys] that is not the causal one (within the sliding window). The rows are
    positions first, first + 1, ..., the keys those up to the last row's. No mask stands for all keys, or for the causal ones where
    `causal` (what sdpa does by itself). Up to 16 rows are looked at."""
    if mask is None:
        all_seen = (rows == 1 or causal and rows == keys) and keys <= (window or keys)
        return require(all_seen, where, f"a causal mask{' of a sliding window' if window else ''}", "none")
    picked = np.unique(np.linspace(0, rows - 1, 16).astype(int))
    seen = mask[0][:, torch.as_tensor(picked, device=mask.device), :keys].detach().cpu()
    if seen.dtype != torch.bool:
        require(((seen == 0) | (seen <= torch.finfo(seen.dtype).min / 2)).all(), where, "a mask", "a bias on the logits")
        seen = seen == 0
    position = first + rows - keys + np.arange(keys)
    for at, expected, found in zip(first + picked, visible(position, first + picked, window), seen.numpy().swapaxes(0, 1)):
        want, count = position[expected], found[0].sum()
        require((found == expected).all(), f"{where} at position {at}", f"positions {want[0]} to {want[-1]}",
                f"{count} of them (padding, a prefix or chunks?)")


def rotation_now(owner: torch.nn.Module, buffer: str, style: str) -> Turn:
    """What the frequencies in one of the model's buffers are; they may change with the length of the prompt."""
    inv_freq = getattr(owner, buffer).detach().double().flatten().tolist()
    return style, float(getattr(owner, buffer.replace("inv_freq", "attention_scaling"), 1.0)), tuple(inv_freq)


def fit_rotation(k: np.ndarray, model: torch.nn.Module) -> Callable[[], Turn] | None:
    """How k [n_kv, n, d], equal but for its positions, turns from each position to the next, or None: as nothing in the model would."""

    def error(rotation: Callable[[], Turn]) -> float:
        style, _, inv_freq = rotation()
        r = 2 * len(inv_freq)
        if r > k.shape[2]:
            return np.inf
        first, second = (slice(0, r // 2), slice(r // 2, r)) if style == "half" else (slice(0, r, 2), slice(1, r, 2))
        pairs = k[..., first] + 1j * k[..., second]
        turned = pairs[:, :1] * np.exp(1j * np.arange(k.shape[1])[:, None] * np.array(inv_freq))
        still = k[..., r:] - k[:, :1, r:]  # channels behind the pairs stay as they are
        return np.hypot(np.linalg.norm(turned - pairs), np.linalg.norm(still)) / np.linalg.norm(k)

    buffers = [(owner, name) for owner in model.modules() for name, _ in owner.named_buffers(recurse=False)
               if name.endswith("inv_freq") and "original" not in name]
    turning = [functools.partial(rotation_now, owner, name, style) for owner, name in buffers for style in ("half", "interleaved")]
    best = min([lambda: ("half", 1.0, ()), *turning], key=error)
    return best if error(best) < PROBE_TOLERANCE else None


def to_file(x: torch.Tensor, dtype: str, where: str) -> np.ndarray:
    x = x.detach().to(getattr(torch, dtype))
    require(torch.isfinite(x).all(), where, f"numbers that are finite in {dtype}", "a NaN or an infinity")
    x = x.cpu().contiguous()
    return x.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else x.numpy()


if __name__ == "__main__":
    sys.exit(main())

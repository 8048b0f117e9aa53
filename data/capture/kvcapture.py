#!/usr/bin/env python3
"""Captures what the attention of a Hugging Face model saw, as a dump that kvreplay reads (data/DUMP-FORMAT.md).

  kvcapture.py --model PATH-or-ID --prompt FILE --decode 128 --out DUMP
  kvcapture.py --model PATH-or-ID --ids FILE --prompt-len 896 --decode 128 --out DUMP   (ids decoded as given)
  kvcapture.py --check DUMP

or around any code that runs the model:

  with capture(model, "DUMP", prompt_len=ids.shape[1], decode=128):
      model.generate(ids, max_new_tokens=129, do_sample=False)    # the last new token is never fed: 128 decoding steps

An attention function registered with the transformers attention interface stands in for the model's own, in every layer: it rounds
q, k and v to the files' dtype, writes them, lets the model's own attention (eager or sdpa) compute the output o from exactly these
numbers, and writes o, with which the model goes on. Before that, a probe of 16 equal tokens goes through the model with every
attention output replaced by the values, so that the keys of a layer differ by their rotation only and say which it is. One layer's
tensors are in memory at a time, besides the model and its cache.

Needs torch, numpy and transformers 4.56 or later (--check: numpy). A request that cannot be met is one line and exit status 2.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, Tuple

import numpy as np

try:
    import torch
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError as missing:
    torch, MISSING = None, str(missing)

FILE_DTYPES = {"bfloat16": np.dtype(np.uint16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}  # coarse to fine
TOLERANCES = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4}  # of o's row norm, as `kvreplay verify` has them
NPY_HEADER = 128  # bytes, of an array of three dimensions
Turn = Tuple[str, float, Tuple[float, ...]]  # of keys: half or interleaved, attention factor, inv_freq [rotary_dim / 2] (none: still)
PROBE_TOKENS = 16
PROBE_TOLERANCE = 2e-2  # bfloat16 cosines and keys come to 5e-3; a wrong rotation is off by about 1


class CaptureError(Exception):
    """Something that cannot be captured or checked, in one line."""


def refuse(what: object, expected: object, found: object) -> None:
    raise CaptureError(f"{what}: expected {expected}, found {found}")


class capture:
    """Writes a dump of all that the model's attention sees inside the `with` block.

    The block feeds one sequence, once: prompt_len positions, in one pass or several, then at most `decode` decoding steps with a
    growing cache. The dump has as many decoding steps as were made. layers: which, renumbered from 0 (default all). window: only the
    queries of the last that many prompt positions, and of the decoding steps. dtype: the files', by default the model's; not finer
    than the model's. name: the manifest's `model`. Raises CaptureError; where the block does not end normally, manifest.json keeps
    `"incomplete": true`."""

    def __init__(self, model: torch.nn.Module, out: str | os.PathLike, *, prompt_len: int, decode: int = 0,
                 layers: Iterable[int] | None = None, window: int | None = None, dtype: str | None = None,
                 force: bool = False, name: str | None = None):
        self.model, self.out, self.force, self.name = model, Path(out), force, name
        self.prompt_len, self.T = prompt_len, prompt_len + decode
        self.window = prompt_len if window is None else window
        self.config = model.config.get_text_config()
        self.chosen = choose_layers(self.config, layers, prompt_len, decode, self.window)
        compute, order = str(model.dtype).replace("torch.", ""), list(FILE_DTYPES)
        self.dtype = dtype or compute
        if self.dtype not in order or compute not in order:
            refuse("dtype", ", ".join(order), f"{self.dtype} for a model in {compute}")
        if order.index(self.dtype) > order.index(compute):
            refuse(f"dtype {self.dtype}", "a model that computes at least as finely", f"one in {compute}")
        self.origin = f"kvcapture.py: torch {torch.__version__}, transformers {transformers.__version__}, computed in {compute}"
        self.layers: dict[int, Layer] = {}
        self.ids: list[int] | None = []  # None where the model was fed something else
        self.probing = False

    def __enter__(self) -> "capture":
        with contextlib.ExitStack() as stack:
            self._stand_in(stack)
            self._probe()
            size = len(self.chosen) * sum(npy_bytes(shape, self.dtype) for shape in self._shapes(self.T).values())
            prepare_folder(self.out, self.force, size)
            write_json(self.out / "manifest.json", {"incomplete": True, **self._manifest(self.T)})
            stack.callback(self.model.register_forward_pre_hook(self._note_ids, with_kwargs=True).remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        self.stack.close()
        if kind is None:
            self._finish()

    def _stand_in(self, stack: contextlib.ExitStack) -> None:
        """Switches the decoder's configurations to the attention that captures, until the stack closes."""
        decoder = self.decoder = self.model.get_decoder() or self.model
        configs = {id(config): config for config in (getattr(m, "config", self.config) for m in [decoder, *decoder.modules()])}
        if _ACTIVE.keys() & configs.keys():
            refuse("capture", "one of a model at a time", "another inside it")
        own = self.config._attn_implementation
        if own not in ("eager", "sdpa"):
            refuse("attention implementation", "eager or sdpa (attn_implementation=...)", own)
        for key, config in configs.items():
            _ACTIVE[key] = self
            stack.callback(_ACTIVE.pop, key)
            stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            config._attn_implementation = register(own)
        self.origin += f", {own} attention"

    def _probe(self) -> None:
        """Fills self.layers (see _meet)."""
        count = min(PROBE_TOKENS, getattr(self.config, "max_position_embeddings", None) or PROBE_TOKENS)
        ids = torch.full((1, count), self.config.vocab_size // 2, device=self.decoder.get_input_embeddings().weight.device)
        self.probing = True
        with torch.no_grad():
            self.decoder(input_ids=ids, use_cache=False)
        self.probing = False
        missing = ", ".join(str(i) for i in self.chosen if i not in self.layers)
        if missing:
            found = f"none in layers {missing} (choose with --layers)" if self.layers else "nothing was captured"
            refuse(type(self.model).__name__, "attention through the transformers attention interface", found)
        first = self.layers[self.chosen[0]]
        for i in self.chosen:
            for what in ("shape", "scale", "softcap"):
                if getattr(self.layers[i], what) != getattr(first, what):
                    refuse(f"layer {i}, {what}", f"layer {self.chosen[0]}'s {getattr(first, what)}", getattr(self.layers[i], what))

    def _note_ids(self, _module, args, kwargs) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.ids = None if self.ids is None or ids is None else self.ids + ids[0].tolist()

    def _attend(self, own, module, query, key, value, mask, kwargs):
        """Takes the place of own(module, query [1, n_q, rows, d], key [1, n_kv, keys, d], value [1, n_kv, keys, d_v], ...)."""
        index = module.layer_idx
        if query.shape[0] != 1:
            refuse("batch", "one sequence", query.shape[0])
        if kwargs.get("dropout"):
            refuse(f"layer {index}", "no dropout in attention (model.eval())", kwargs["dropout"])
        query, key, value = (x.to(getattr(torch, self.dtype)).to(x.dtype) for x in (query, key, value))
        if self.probing:
            return self._meet(own, module, query, key, value, kwargs)
        if index not in self.chosen:
            return own(module, query, key, value, mask, **kwargs)

        layer, rows, keys = self.layers[index], query.shape[2], key.shape[2]
        first, end = layer.seen, layer.seen + rows
        if end > self.T:
            refuse(f"layer {index}", f"at most {self.T} positions (prompt_len and decode)", end)
        fewest = min(first, layer.window - 1) + rows if layer.window else end
        if not fewest <= keys <= end:
            refuse(f"layer {index} at position {first}", f"a cache that grows by each position fed, {end} keys", keys)
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        own_mask = causal and own is ALL_ATTENTION_FUNCTIONS["sdpa"]
        check_mask(f"layer {index}, attention mask", mask, own_mask, first, rows, keys, layer.window)

        if layer.files is None:
            self._folder(index).mkdir()
            shapes = self._shapes(self.T)
            layer.files = {name: allocate(self._folder(index) / f"{name}.npy", shapes[name], self.dtype) for name in "qkvo"}
            layer.turn = layer.rotation and layer.rotation()
        unwritten = max(self.prompt_len - self.window - first, 0)  # of these rows, the first have no query in the files
        row = max(first - (self.prompt_len - self.window), 0)
        self._write(index, "q", query[0, :, unwritten:], row)
        self._write(index, "k", key[0, :, keys - rows:], first)
        self._write(index, "v", value[0, :, keys - rows:], first)
        output, weights = own(module, query, key, value, mask, **kwargs)
        self._write(index, "o", output[0].transpose(0, 1)[:, unwritten:], row)
        layer.seen = end
        return output, weights

    def _meet(self, own, module, query, key, value, kwargs):
        """The probe: notes how the layer attends; its output is its values."""
        n_q, n_kv, index = query.shape[1], key.shape[1], module.layer_idx
        if index in self.chosen:
            sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
            softcap = kwargs.get("softcap") or getattr(module, "attn_logit_softcapping", None)
            if own is ALL_ATTENTION_FUNCTIONS["sdpa"] and (softcap or sinks is not None):
                refuse(f"layer {index}", "eager attention for a soft cap or sinks (attn_implementation='eager')", "sdpa")
            shape = Shape(n_q, n_kv, key.shape[3], value.shape[3], self.config.hidden_size)
            scale = kwargs.get("scaling")
            window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
            self.layers[index] = Layer(
                module, shape, shape.d ** -0.5 if scale is None else float(scale), int(window) if window else None,
                float(softcap) if softcap else None, None if sinks is None else sinks.detach().float().cpu().tolist(),
                fit_rotation(key[0].detach().double().cpu().numpy(), self.model))
        return value.repeat_interleave(n_q // n_kv, dim=1).transpose(1, 2).contiguous(), None

    def _write(self, index: int, name: str, x: torch.Tensor, start: int) -> None:
        """x [heads, rows, channels] to rows start, start + 1, ... of the layer's file."""
        rows, files = x.shape[1], self.layers[index].files
        if rows == 0:
            return
        if not bool(torch.isfinite(x.to(getattr(torch, self.dtype))).all()):
            refuse(f"layer {index}, {name}", f"numbers that are finite in {self.dtype}", "a NaN or an infinity")
        files[name][:, start:start + rows] = to_file(x, self.dtype)
        if rows > 1:  # a prompt's pages leave this process' memory with the map that wrote them
            files[name] = np.lib.format.open_memmap(files[name].filename, mode="r+")

    def _finish(self) -> None:
        seen = sorted({self.layers[i].seen for i in self.chosen})
        if len(seen) > 1 or seen[0] < self.prompt_len:
            refuse(str(self.out), f"{self.prompt_len} to {self.T} positions in every layer", seen)
        shapes, notes = self._shapes(seen[0]), {}
        for i in self.chosen:
            layer, folder = self.layers[i], self._folder(i)
            for name, array in layer.files.items():
                array.flush()
                if array.shape != shapes[name]:  # fewer decoding steps than there was room for
                    allocate(folder / "shorter.npy", shapes[name], self.dtype)[:] = array[:, :shapes[name][1]]
                    os.replace(folder / "shorter.npy", folder / f"{name}.npy")
            layer.files = {}
            wo = output_projection(layer.module, layer.shape)
            if wo is None:
                notes = {"wo_note": f"no wo: layer {i} has no plain o_proj weight"}
            else:
                allocate(folder / "wo.npy", tuple(wo.shape), self.dtype)[:] = to_file(wo, self.dtype)
        if self.ids is not None and len(self.ids) == seen[0]:
            write_json(self.out / "tokens.json", {"ids": self.ids})
        write_json(self.out / "manifest.json", {**self._manifest(seen[0]), **self._rope(), **notes})

    def _folder(self, index: int) -> Path:
        return self.out / f"layer_{self.chosen.index(index):02}"

    def _shapes(self, T: int) -> dict[str, tuple[int, ...]]:
        return self.layers[self.chosen[0]].shape.arrays(T, T - self.prompt_len + self.window)

    def _manifest(self, T: int) -> dict[str, Any]:
        layers = [self.layers[i] for i in self.chosen]
        windows, sinks, shape = [layer.window for layer in layers], [layer.sinks for layer in layers], layers[0].shape
        return {
            "model": self.name or self.config._name_or_path or type(self.model).__name__, "prompt_len": self.prompt_len, "total_len": T,
            "n_layers": len(layers), "n_q_heads": shape.n_q, "n_kv_heads": shape.n_kv, "head_dim": shape.d, "scale": layers[0].scale,
            "causal": True, "dtype": self.dtype if self.dtype == "bfloat16" else None, "logit_softcap": layers[0].softcap,
            "sliding_window": windows if any(windows) else None, "sink_logit": sinks if any(sinks) else None,
            "layers": self.chosen, "origin": self.origin}

    def _rope(self) -> dict[str, Any]:
        """The manifest's `rope`, or a note why there is none."""
        layers = [self.layers[i] for i in self.chosen]
        for i, layer in zip(self.chosen, layers):
            if layer.turn is None:
                return {"rope_note": f"no rope: the keys of layer {i} do not turn as any of the model's rotations would have them"}
            if layer.turn != layer.rotation():
                return {"rope_note": f"no rope: the rotation of layer {i} changed after the prompt"}
        kinds = {(style, factor, len(inv_freq)) for style, factor, inv_freq in (layer.turn for layer in layers) if inv_freq}
        if len(kinds) != 1:
            return {"rope_note": "no rope: " + ("the layers turn in several ways" if kinds else "no layer turns")}
        style, factor, half = kinds.pop()
        rope: dict[str, Any] = {"style": style, "rotary_dim": 2 * half, "attention_factor": factor}
        each = [layer.turn[2] or (0.0,) * half for layer in layers]
        theta = (getattr(self.config, "rope_parameters", None) or {}).get("rope_theta") or getattr(self.config, "rope_theta", None)
        if len(set(each)) > 1:
            rope["inv_freq"] = each
        elif theta and np.allclose(each[0], float(theta) ** (-np.arange(half) / half), rtol=1e-6, atol=0):
            rope["theta"] = float(theta)
        else:
            rope["inv_freq"] = each[0]
        return {"rope": rope}


def check(folder: str | os.PathLike) -> bool:
    """Prints which layers of a dump are whole, and how far o is from what q, k and v give. True where all is well."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"{folder / 'manifest.json'}: {error}") from None
    fine = not manifest.get("incomplete")
    if not fine:
        print(f"{folder}: incomplete, the capture was interrupted")
    for layer in range(manifest.get("n_layers") or len(list(folder.glob("layer_*")))):
        good, line = check_layer(folder / f"layer_{layer:02}", layer, manifest)
        fine = fine and good
        print(f"layer {layer}: {line}")
    for key in ("rope_note", "wo_note"):
        if key in manifest:
            print(manifest[key])
    return fine


# ---------------------------------------------------------------- command line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, or a name on the Hugging Face hub")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="FILE", help="text, for the model's own tokenizer")
    source.add_argument("--ids", metavar="FILE", help="token ids: a JSON list, a tokens.json, or numbers")
    parser.add_argument("--prompt-len", type=int, metavar="N", help="the first N ids are the prompt, the others are fed as decoding steps")
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
    args = parser.parse_args(arguments)
    if not args.check and not (args.model and (args.prompt or args.ids) and (args.out or args.estimate)):
        parser.error("expected --check DUMP, or --model, --prompt or --ids, and --out")
    try:
        return (0 if check(args.check) else 1) if args.check else run(args)
    except (CaptureError, OSError) as error:
        print(f"kvcapture: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        begun = args.out and (Path(args.out) / "manifest.json").exists()
        print("kvcapture: interrupted" + (f", {args.out} is incomplete" if begun else ""), file=sys.stderr)
        return 130


def run(args: argparse.Namespace) -> int:
    """Captures, or estimates, what the arguments ask for; the exit status."""
    if torch is None:
        refuse("packages", "torch and transformers (pip install torch transformers)", MISSING)
    with one_line_errors():
        whole = transformers.AutoConfig.from_pretrained(args.model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model) if args.prompt else None
        ids = tokenizer(Path(args.prompt).read_text(encoding="utf-8")).input_ids if args.prompt else read_ids(args.ids)
    config = whole.get_text_config()
    if not ids or max(ids) >= config.vocab_size or min(ids) < 0:
        refuse(args.prompt or args.ids, f"ids of 0 to {config.vocab_size - 1}", f"{min(ids)} to {max(ids)}" if ids else "nothing")
    prompt_len = args.prompt_len or len(ids)
    given = ids[prompt_len:]
    if not 1 <= prompt_len <= len(ids) or (given and len(given) < args.decode):
        expected = f"a prompt of 1 to {len(ids)} positions, and {args.decode} ids behind it or none"
        refuse(args.prompt or args.ids, expected, f"--prompt-len {prompt_len} of {len(ids)}")
    window = prompt_len if args.window is None else args.window
    layers = choose_layers(config, args.layers and read_layers(args.layers), prompt_len, args.decode, window)

    own = str(getattr(config, "dtype", None) or getattr(whole, "dtype", None) or "float32").replace("torch.", "")
    dtype, order = args.dtype or own, list(FILE_DTYPES)
    if dtype not in order:
        refuse("the checkpoint's dtype", "--dtype with one of " + ", ".join(order), own)
    if args.estimate:
        arrays = config_shape(config).arrays(prompt_len + args.decode, window + args.decode)
        sizes = {name: len(layers) * npy_bytes(shape, dtype) for name, shape in arrays.items()}
        for name, size in sizes.items():
            print(f"{name:<3}{len(layers)} x {str(list(arrays[name])):<24}{size:>20,} bytes")
        print(f"{'total':<27}{sum(sizes.values()):>20,} bytes in {dtype}, besides manifest.json and tokens.json")
        return 0
    compute = args.compute or (own if own in order and order.index(own) >= order.index(dtype) else "float32")
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    eager = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}  # sdpa has no soft cap
    with one_line_errors():
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, compute), **eager)
    model = model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    captured = capture(model, args.out, prompt_len=prompt_len, decode=args.decode, layers=layers, window=window, dtype=dtype,
                       force=args.force, name=args.name or Path(args.model).name)
    with captured:
        print(f"{args.out}: {len(layers)} layers, {prompt_len} + {args.decode} positions", file=sys.stderr)
        feed(model, ids[:prompt_len], given, args.decode, args.sample)
    if tokenizer and captured.ids:
        write_json(captured.out / "tokens.json", {"ids": captured.ids, "text": [tokenizer.decode([i]) for i in captured.ids]})
    return 0 if check(args.out) else 1


def feed(model: torch.nn.Module, ids: list[int], given: list[int], decode: int, seed: int | None) -> None:
    """The prompt, then `decode` tokens one by one: the given ones, or the likeliest, or sampled. No token ends it."""
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    device = model.get_input_embeddings().weight.device
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    tokens, cache = ids, None
    with torch.no_grad():
        for step in range(decode + 1):
            result = model(input_ids=torch.tensor([tokens], device=device), past_key_values=cache, use_cache=True, **keep)
            cache, logits = result.past_key_values, result.logits[0, -1].float().cpu()
            if step < decode and given:
                tokens = [given[step]]
            elif generator:
                tokens = [int(torch.multinomial(logits.softmax(-1), 1, generator=generator))]
            else:
                tokens = [int(logits.argmax())]


def read_ids(path: str) -> list[int]:
    """A JSON list, a tokens.json, or numbers between spaces or commas."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        found = json.loads(text) if text.lstrip()[:1] in "[{" else [int(word) for word in text.replace(",", " ").split()]
        found = found["ids"] if isinstance(found, dict) else found
        if not found or not all(isinstance(i, int) for i in found):
            raise ValueError
    except (ValueError, KeyError):
        refuse(path, "token ids: a JSON list, a tokens.json, or numbers", text[:30].strip() or "nothing")
    return found


def read_layers(text: str) -> list[int]:
    """0,3-5"""
    try:
        spans = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        refuse("--layers", "something like 0,3-5", text)
    return [layer for span in spans for layer in range(span[0], span[-1] + 1)]


@contextlib.contextmanager
def one_line_errors():
    """What transformers says of a model that it cannot load, shortened to one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CaptureError(" ".join(str(error).split())[:300]) from None


# ---------------------------------------------------------------- mechanics: the model, its rotations, files

_ACTIVE: dict[int, capture] = {}  # by the id of the configuration that its attention modules share


def register(implementation: str) -> str:
    """The interface's name of the attention that captures, and then does what `implementation` does."""

    def attention(module, query, key, value, attention_mask, **kwargs):
        if implementation == "sdpa":
            own = ALL_ATTENTION_FUNCTIONS["sdpa"]
        else:  # what the model's own forward() would fall back to
            own = inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
            if own is None:
                refuse(f"attention of {type(module).__name__}", "an eager_attention_forward beside it", "none")
        return _ACTIVE[id(module.config)]._attend(own, module, query, key, value, attention_mask, kwargs)

    name = f"kvcapture_{implementation}"
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])  # without it there is no causal mask
    return name


class Shape(NamedTuple):
    """n_q query heads over n_kv KV heads, d channels a key, d_v a value, d_model the width that wo projects to."""

    n_q: int
    n_kv: int
    d: int
    d_v: int
    d_model: int

    def arrays(self, T: int, T_q: int) -> dict[str, tuple[int, ...]]:
        q, k, v = (self.n_q, T_q, self.d), (self.n_kv, T, self.d), (self.n_kv, T, self.d_v)
        return {"q": q, "k": k, "v": v, "o": (self.n_q, T_q, self.d_v), "wo": (self.n_q, self.d_v, self.d_model)}


@dataclass
class Layer:
    """One layer's attention as the probe met it, then its files as they fill."""

    module: torch.nn.Module
    shape: Shape
    scale: float
    window: int | None
    softcap: float | None
    sinks: list[float] | None
    rotation: Callable[[], Turn] | None  # None where the keys turn in no known way
    files: dict[str, np.memmap] | None = None
    seen: int = 0  # positions written
    turn: Turn | None = None  # rotation() when the prompt was read


def choose_layers(config: Any, layers: Iterable[int] | None, prompt_len: int, decode: int, window: int) -> list[int]:
    """The layers to capture; refuses what the text model's configuration already tells."""
    if prompt_len < 1 or decode < 0:
        refuse("capture", "prompt_len of at least 1 and decode of at least 0", f"{prompt_len} and {decode}")
    if not 1 <= window <= prompt_len:
        refuse("window", f"1 to the prompt's {prompt_len} positions", window)
    if getattr(config, "is_encoder_decoder", False):
        refuse(f"model type {config.model_type}", "a decoder-only model", "an encoder and a decoder")
    count = config.num_hidden_layers
    chosen = list(range(count)) if layers is None else sorted(set(layers))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count:
        refuse("layers", f"some of 0 to {count - 1}", chosen)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * count
    other = [f"{i} ({kinds[i]})" for i in chosen if not kinds[i].endswith("_attention") or kinds[i].startswith("linear")]
    if other:
        refuse("layers", "softmax attention (choose with --layers)", ", ".join(other))
    longest = getattr(config, "max_position_embeddings", None)
    if longest and prompt_len + decode > longest:
        refuse("prompt and decoding steps", f"at most the model's {longest} positions", prompt_len + decode)
    return chosen


def config_shape(config: Any) -> Shape:
    """What the configuration says of the shapes, for an estimate without the model."""
    n_q = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_q
    d = d_v = getattr(config, "head_dim", None) or config.hidden_size // n_q
    if getattr(config, "kv_lora_rank", None):  # latent attention: keys and values are expanded to all heads
        n_kv, d, d_v = n_q, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    return Shape(n_q, n_kv, d, d_v, config.hidden_size)


def output_projection(module: torch.nn.Module, shape: Shape) -> torch.Tensor | None:
    """wo [n_q, d_v, d_model], or None where the layer has no plain weight of that size."""
    for name in ("o_proj", "dense", "out_proj"):
        weight = getattr(getattr(module, name, None), "weight", None)
        if weight is not None and tuple(weight.shape) == (shape.d_model, shape.n_q * shape.d_v) and not weight.is_meta:
            return weight.detach().T.reshape(shape.n_q, shape.d_v, shape.d_model)
    return None


def check_mask(where: str, mask: torch.Tensor | None, causal: bool, first: int, rows: int, keys: int, window: int | None) -> None:
    """Refuses a mask [1, heads or 1, rows, at least keys] that is not the causal one (within the sliding window).

    The rows are positions first, first + 1, ..., the keys those up to the last row's. No mask stands for all keys, or for the
    causal ones where `causal` (what sdpa does by itself). Up to 16 rows are looked at."""
    if mask is None:
        if (rows > 1 and not (causal and rows == keys)) or (window and keys > window):
            refuse(where, f"a causal mask{' of a sliding window' if window else ''}", "none")
        return
    picked = np.unique(np.linspace(0, rows - 1, 16).astype(int))
    seen = mask[0][:, torch.as_tensor(picked, device=mask.device), :keys].detach().cpu()
    if seen.dtype != torch.bool:
        if bool(((seen != 0) & (seen > torch.finfo(seen.dtype).min / 2)).any()):
            refuse(where, "a mask", "a bias on the logits")
        seen = seen == 0
    position, query = first + rows - keys + np.arange(keys), (first + picked)[:, None]
    expected = visible(position, query, window)
    wrong = np.flatnonzero((seen.numpy() != expected).any(axis=(0, 2)))
    if len(wrong):
        row = int(wrong[0])
        want, got = position[expected[row]], int(seen[0, row].sum())
        refuse(f"{where} at position {query[row, 0]}", f"positions {want[0]} to {want[-1]}", f"{got} of them (padding, a prefix or chunks?)")


def visible(key: np.ndarray, query: np.ndarray, window: int | None) -> np.ndarray:
    """Which positions of `key` [keys] a query at `query` [rows, 1] attends to."""
    return (key <= query) & (key > query - window) if window else key <= query


def rotation_now(owner: torch.nn.Module, buffer: str, style: str) -> Turn:
    """What the frequencies in one of the model's buffers are; they may change with the length of the prompt."""
    inv_freq = getattr(owner, buffer).detach().double().flatten().tolist()
    return style, float(getattr(owner, buffer.replace("inv_freq", "attention_scaling"), 1.0)), tuple(inv_freq)


def fit_rotation(k: np.ndarray, model: torch.nn.Module) -> Callable[[], Turn] | None:
    """How k [n_kv, n, d], equal but for its positions, turns from each position to the next, or None: as nothing in the model would."""

    def error(style: str, _factor: float, inv_freq: tuple[float, ...]) -> float:
        r = 2 * len(inv_freq)
        if r > k.shape[2]:
            return np.inf
        first, second = (slice(0, r // 2), slice(r // 2, r)) if style == "half" else (slice(0, r, 2), slice(1, r, 2))
        pairs = k[..., first] + 1j * k[..., second]
        turned = pairs[:, :1] * np.exp(1j * np.arange(k.shape[1])[:, None] * np.array(inv_freq))
        still = k[..., r:] - k[:, :1, r:]  # channels behind the pairs stay as they are
        return np.hypot(np.linalg.norm(turned - pairs), np.linalg.norm(still)) / np.linalg.norm(k)

    buffers = [(owner, name) for owner in model.modules() for name, _ in owner.named_buffers(recurse=False)]
    choices = [lambda: ("half", 1.0, ())] + [functools.partial(rotation_now, owner, name, style) for owner, name in buffers
                                            if name.endswith("inv_freq") and "original" not in name for style in ("half", "interleaved")]
    errors = [error(*choice()) for choice in choices]
    best = int(np.argmin(errors))
    return choices[best] if errors[best] < PROBE_TOLERANCE else None


def prepare_folder(folder: Path, force: bool, size: int) -> None:
    """An empty folder with room for `size` bytes. With force, a former dump in it is removed (its own files, nothing else)."""
    if folder.exists() and not folder.is_dir():
        refuse(folder, "a folder", "a file")
    if force and folder.is_dir():
        former = [path for name in "q k v o wo".split() for path in folder.glob(f"layer_*/{name}.npy")]
        for path in [*former, *folder.glob("layer_*/shorter.npy"), folder / "manifest.json", folder / "tokens.json"]:
            path.unlink(missing_ok=True)
        for path in folder.glob("layer_*"):
            with contextlib.suppress(OSError):  # holds something else: reported below
                path.rmdir()
    left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if left:
        refuse(folder, "an empty folder" + ("" if force else " (or --force)"), f"{left[0]} in it")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        refuse(folder, f"{size:,} bytes of free disk", f"{free:,}")


def npy_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """The size of a .npy file of three dimensions."""
    return NPY_HEADER + int(np.prod(shape, dtype=np.int64)) * FILE_DTYPES[dtype].itemsize


def allocate(path: Path, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """A .npy file of zeros whose space is taken now: a full disk is an error here, not a crash when a page is written."""
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=FILE_DTYPES[dtype], shape=shape)
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        refuse(path, f"room for {npy_bytes(shape, dtype):,} bytes", error.strerror or error)
    return array


def to_file(x: torch.Tensor, dtype: str) -> np.ndarray:
    x = x.detach().to(getattr(torch, dtype)).cpu().contiguous()
    return x.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else x.numpy()


def from_file(x: np.ndarray, bfloat16: bool) -> np.ndarray:
    """float64"""
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) if bfloat16 else x.astype(np.float64)


def write_json(path: Path, value: object) -> None:
    """All of it or nothing: an interruption leaves the former file."""
    new, text = path.with_suffix(".new"), json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        refuse(path, f"room for {len(text.encode()):,} bytes", error.strerror or error)


def check_layer(folder: Path, layer: int, manifest: dict[str, Any]) -> tuple[bool, str]:
    """Is the layer whole and does o follow from q, k and v? And a line that says so."""
    arrays = {}
    for name in "qkvo":
        try:
            arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            return False, f"{name}.npy: {'missing' if isinstance(error, FileNotFoundError) else error}"
    q, k, v, o = arrays.values()
    T, bfloat16 = k.shape[1], manifest.get("dtype") == "bfloat16"
    if T != manifest.get("total_len", T) or v.shape[1] != T or q.shape[:2] != o.shape[:2]:
        return False, f"expected {manifest.get('total_len', T)} positions, found q {q.shape}, k {k.shape}, v {v.shape}, o {o.shape}"
    if not all(np.any(array[:, -1]) for array in arrays.values()):
        rows = min(int(np.flatnonzero(np.any(x, axis=(0, 2))).max(initial=-1)) + 1 for x in (k, v))  # zeros are not yet written
        return False, f"incomplete, {rows} of {T} positions"

    window, sinks = manifest.get("sliding_window"), manifest.get("sink_logit")
    window = window[layer] if isinstance(window, list) else window
    sinks = np.full(len(q), -np.inf) if not sinks or not sinks[layer] else np.array(sinks[layer])
    scale, cap, worst, group = manifest.get("scale") or q.shape[2] ** -0.5, manifest.get("logit_softcap"), 0.0, len(q) // len(k)
    rows = np.unique([0, *np.linspace(0, q.shape[1] - 1, 8).astype(int)])
    for g in range(len(k)):
        heads, keys, values = slice(g * group, (g + 1) * group), from_file(k[g], bfloat16), from_file(v[g], bfloat16)
        z = scale * from_file(q[heads][:, rows], bfloat16) @ keys.T  # [G, rows, T]
        z = cap * np.tanh(z / cap) if cap else z
        z = np.where(visible(np.arange(T), T - q.shape[1] + rows[:, None], window), z, -np.inf)
        sink = sinks[heads, None, None]
        largest = np.maximum(z.max(axis=-1, keepdims=True), sink)
        weight = np.exp(z - largest)
        found = weight @ values / (weight.sum(axis=-1, keepdims=True) + np.exp(sink - largest))
        off = np.linalg.norm(found - from_file(o[heads][:, rows], bfloat16), axis=-1) / np.linalg.norm(found, axis=-1)
        worst = max(worst, float(np.where(np.isfinite(off), off, np.inf).max()))
    tolerance = TOLERANCES["bfloat16" if bfloat16 else k.dtype.name]
    line = f"o of {len(rows)} rows x {q.shape[0]} heads {'within' if worst <= tolerance else 'off by'} {worst:.1e} of its norm"
    return worst <= tolerance, f"whole, {T} positions, {line} (tolerance {tolerance:g})"


if __name__ == "__main__":
    sys.exit(main())

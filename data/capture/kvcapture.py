#!/usr/bin/env python3
"""Captures what the attention of a Hugging Face model saw, as a dump that kvreplay reads (data/DUMP-FORMAT.md).

  kvcapture.py --model PATH-or-ID --prompt FILE --decode 128 --out DUMP
  kvcapture.py --model PATH-or-ID --ids FILE --prompt-len 896 --decode 128 --out DUMP   (ids decoded as given)
  kvcapture.py --check DUMP

or around any code that runs the model:

  with capture(model, "DUMP", prompt_len=ids.shape[1], decode=128):
      model.generate(ids, max_new_tokens=129, do_sample=False)    # the last new token is never fed: 128 decoding steps

An attention function registered with the transformers attention interface stands in for the model's own: it rounds q, k and v to
the files' dtype, writes them, lets the model's own attention (eager or sdpa) compute the output o from exactly these numbers, and
writes o. So o follows from the files to its own rounding, and the model goes on with that o. All layers are rounded, also those
that --layers leaves out. One layer's tensors are in memory at a time, besides the model and its cache.

Before that, a probe of 16 equal tokens goes through the model with every attention output replaced by the values, so that no
layer can tell the positions apart but by their rotation: the keys then say which rotation each layer has.

Needs torch, numpy and transformers 4.56 or later (--check: numpy). A request that cannot be met is one line and exit status 2.
"""
from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Optional

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
PROBE_TOKENS = 16
PROBE_TOLERANCE = 2e-2  # bfloat16 cosines and keys come to 5e-3; a wrong rotation is off by about 1


class CaptureError(Exception):
    """Something that cannot be captured or checked, in one line."""


def refuse(what: str, expected: object, found: object) -> None:
    raise CaptureError(f"{what}: expected {expected}, found {found}")


# ---------------------------------------------------------------- files


@dataclass(frozen=True)
class Shape:
    """n_q query heads over n_kv KV heads, d channels a key, d_v a value, d_model the width that wo projects to."""

    n_q: int
    n_kv: int
    d: int
    d_v: int
    d_model: int

    def arrays(self, T: int, T_q: int) -> dict[str, tuple[int, ...]]:
        q, k, v = (self.n_q, T_q, self.d), (self.n_kv, T, self.d), (self.n_kv, T, self.d_v)
        return {"q": q, "k": k, "v": v, "o": (self.n_q, T_q, self.d_v), "wo": (self.n_q, self.d_v, self.d_model)}


def npy_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """The size of a .npy file."""
    header = io.BytesIO()
    fields = {"descr": FILE_DTYPES[dtype].str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return len(header.getvalue()) + int(np.prod(shape, dtype=np.int64)) * FILE_DTYPES[dtype].itemsize


def allocate(path: Path, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """A .npy file of zeros whose space is taken now: a full disk is an error here, not a crash when a page is written."""
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=FILE_DTYPES[dtype], shape=shape)
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        refuse(str(path), f"room for {npy_bytes(shape, dtype):,} bytes", error.strerror or error)
    return array


def to_file(x: torch.Tensor, dtype: str) -> np.ndarray:
    x = x.detach().to(getattr(torch, dtype)).cpu().contiguous()
    return x.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else x.numpy()


def from_file(x: np.ndarray, bfloat16: bool) -> np.ndarray:
    """float64"""
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) if bfloat16 else x.astype(np.float64)


def write_json(path: Path, value: object) -> None:
    """All of it or nothing: an interruption leaves the former file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, path)


def prepare_folder(folder: Path, force: bool, size: int) -> None:
    """An empty folder with room for `size` bytes. With force, a former dump in it is removed (its own files, nothing else)."""
    if folder.exists() and not folder.is_dir():
        refuse(str(folder), "a folder", "a file")
    if force and folder.is_dir():
        names = [name + ".npy" for name in "q k v o wo".split()]
        former = [path for path in folder.glob("layer_*/*.npy") if path.name in names]
        for path in [*former, folder / "manifest.json", folder / "tokens.json"]:
            path.unlink(missing_ok=True)
        for path in folder.glob("layer_*"):
            with contextlib.suppress(OSError):  # holds something else: reported below
                path.rmdir()
    left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if left:
        refuse(str(folder), "an empty folder" + ("" if force else " (or --force)"), f"{left[0]} in it")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        refuse(str(folder), f"{size:,} bytes of free disk", f"{free:,}")


# ---------------------------------------------------------------- models


def check_config(config: Any, layers: Optional[Iterable[int]], T: int) -> list[int]:
    """The layers to capture; refuses what the configuration already tells. `config` is that of the text model."""
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
    if longest and T > longest:
        refuse("prompt and decoding steps", f"at most the model's {longest} positions", T)
    return chosen


def config_shape(config: Any) -> Shape:
    """What the configuration says of the shapes, for an estimate without the model."""
    n_q = config.num_attention_heads
    n_kv = getattr(config, "num_key_value_heads", None) or n_q
    d = d_v = getattr(config, "head_dim", None) or config.hidden_size // n_q
    if getattr(config, "kv_lora_rank", None):  # latent attention: keys and values are expanded to all heads
        n_kv, d, d_v = n_q, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    return Shape(n_q, n_kv, d, d_v, config.hidden_size)


def output_projection(module: torch.nn.Module, shape: Shape) -> Optional[torch.Tensor]:
    """wo [n_q, d_v, d_model], or None where the layer has no plain weight of that size."""
    for name in ("o_proj", "dense", "out_proj"):
        weight = getattr(getattr(module, name, None), "weight", None)
        if weight is not None and tuple(weight.shape) == (shape.d_model, shape.n_q * shape.d_v) and not weight.is_meta:
            return weight.detach().T.reshape(shape.n_q, shape.d_v, shape.d_model)
    return None


@dataclass(frozen=True)
class Rotation:
    """A buffer of rotation frequencies somewhere in the model; it may change with the length of the prompt."""

    owner: torch.nn.Module
    buffer: str

    def inv_freq(self) -> np.ndarray:
        return getattr(self.owner, self.buffer).detach().float().cpu().numpy().astype(np.float64)

    def factor(self) -> float:
        return float(getattr(self.owner, self.buffer.replace("inv_freq", "attention_scaling"), 1.0))


def rotations(model: torch.nn.Module) -> list[Rotation]:
    buffers = [(owner, name) for owner in model.modules() for name, _ in owner.named_buffers(recurse=False)]
    return [Rotation(owner, name) for owner, name in buffers if name.endswith("inv_freq") and "original" not in name]


def rotate(k: np.ndarray, inv_freq: np.ndarray, style: str, positions: int) -> np.ndarray:
    """k [n_kv, d] at each of the positions: [n_kv, positions, d]. Channels past 2 len(inv_freq) stay."""
    r = 2 * len(inv_freq)
    first, second = (slice(0, r // 2), slice(r // 2, r)) if style == "half" else (slice(0, r, 2), slice(1, r, 2))
    angle = np.arange(positions)[:, None] * inv_freq
    turned = np.repeat(k[:, None, :], positions, axis=1)
    a, b = k[:, None, first], k[:, None, second]
    turned[..., first], turned[..., second] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return turned


def fit_rotation(k: np.ndarray, choices: list[Rotation]) -> Optional[tuple[str, Optional[Rotation]]]:
    """The style and frequencies that turn k[:, 0] into all of k [n_kv, n, d]; (style, None) where k does not turn."""
    tried = [("half", None), *((style, choice) for choice in choices for style in ("half", "interleaved"))]
    errors = []
    for style, choice in tried:
        inv_freq = np.zeros(1) if choice is None else choice.inv_freq()
        fits = 2 * len(inv_freq) <= k.shape[2]
        errors.append(np.linalg.norm(rotate(k[:, 0], inv_freq, style, k.shape[1]) - k) / np.linalg.norm(k) if fits else np.inf)
    best = int(np.argmin(errors))
    return tried[best] if errors[best] < PROBE_TOLERANCE else None


def check_mask(where: str, mask: Optional[torch.Tensor], causal: bool, first: int, rows: int, keys: int, window: Optional[int]) -> None:
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
    position = first + rows - keys + np.arange(keys)
    query = (first + picked)[:, None]
    expected = (position <= query) & (position > query - (window or position[-1] + 1))
    wrong = np.flatnonzero((seen.numpy() != expected).any(axis=(0, 2)))
    if len(wrong):
        row = int(wrong[0])
        want, got = position[expected[row]], position[seen[0, row].numpy()]
        found = f"{len(got)} of them" if len(got) else "none"
        refuse(f"{where} at position {query[row, 0]}", f"positions {want[0]} to {want[-1]}", f"{found} (padding, a prefix or chunks?)")


# ---------------------------------------------------------------- capture


_ACTIVE: dict[int, "capture"] = {}  # by the id of the configuration that its attention modules share


def _register(implementation: str) -> str:
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


@dataclass
class Layer:
    """One layer's attention as the probe met it, then its files as they fill."""

    module: torch.nn.Module
    shape: Shape
    scale: float
    window: Optional[int]
    softcap: Optional[float]
    sinks: Optional[list[float]]
    rotation: Optional[tuple[str, Optional[Rotation]]]
    files: Optional[dict[str, np.memmap]] = None
    seen: int = 0  # positions written
    inv_freq: Optional[np.ndarray] = None  # as it was when the prompt was read


class capture:
    """Writes a dump of all that the model's attention sees inside the `with` block.

    The block feeds one sequence, once: prompt_len positions, in one pass or several, then at most `decode` decoding steps with a
    growing cache. The dump has as many decoding steps as were made. layers: which, renumbered from 0 (default all). window: only the
    queries of the last that many prompt positions, and of the decoding steps. dtype: the files', by default the model's; not finer
    than the model's. name: the manifest's `model`. Raises CaptureError; where the block does not end normally, manifest.json keeps
    `"incomplete": true`."""

    def __init__(self, model: torch.nn.Module, out: str | os.PathLike, *, prompt_len: int, decode: int = 0,
                 layers: Optional[Iterable[int]] = None, window: Optional[int] = None, dtype: Optional[str] = None,
                 force: bool = False, name: Optional[str] = None):
        self.model, self.out, self.force, self.name = model, Path(out), force, name
        self.prompt_len, self.T = prompt_len, prompt_len + decode
        self.config = model.config.get_text_config()
        if prompt_len < 1 or decode < 0:
            refuse("capture", "prompt_len of at least 1 and decode of at least 0", f"{prompt_len} and {decode}")
        self.window = prompt_len if window is None else window
        if not 1 <= self.window <= prompt_len:
            refuse("window", f"1 to the prompt's {prompt_len} positions", window)
        self.chosen = check_config(self.config, layers, self.T)
        compute = str(model.dtype).replace("torch.", "")
        self.dtype = dtype or compute
        if self.dtype not in FILE_DTYPES or compute not in FILE_DTYPES:
            refuse("dtype", ", ".join(FILE_DTYPES), f"{self.dtype} for a model in {compute}")
        if list(FILE_DTYPES).index(self.dtype) > list(FILE_DTYPES).index(compute):
            refuse(f"dtype {self.dtype}", "a model that computes at least as finely", f"one in {compute}")
        self.origin = f"kvcapture.py: torch {torch.__version__}, transformers {transformers.__version__}, computed in {compute}"
        self.layers: dict[int, Layer] = {}
        self.ids: Optional[list[int]] = []  # None where the model was fed something else
        self.probing = False

    # -- around the block

    def __enter__(self) -> "capture":
        with contextlib.ExitStack() as stack:
            self._stand_in(stack)
            self._probe()
            shapes = self._shape().arrays(self.T, self._rows(self.T))
            size = len(self.chosen) * sum(npy_bytes(shape, self.dtype) for shape in shapes.values())
            prepare_folder(self.out, self.force, size)
            write_json(self.out / "manifest.json", {"incomplete": True, **self._manifest(self.T)})
            hook = self.model.register_forward_pre_hook(self._note_ids, with_kwargs=True)
            stack.callback(hook.remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        self.stack.close()
        if kind is None:
            self._finish()

    def _stand_in(self, stack: contextlib.ExitStack) -> None:
        """Switches the decoder's configurations to the attention that captures, until the stack closes."""
        decoder = self.decoder = self.model.get_decoder() or self.model
        configs = {id(m.config): m.config for m in [decoder, *decoder.modules()] if hasattr(m, "config")}
        configs[id(self.config)] = self.config
        if _ACTIVE.keys() & configs.keys():
            refuse("capture", "one of a model at a time", "another inside it")
        own = self.config._attn_implementation
        if own not in ("eager", "sdpa"):
            refuse("attention implementation", "eager or sdpa (attn_implementation=...)", own)
        name = _register(own)
        for key, config in configs.items():
            _ACTIVE[key] = self
            stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            stack.callback(_ACTIVE.pop, key)
            config._attn_implementation = name
        self.origin += f", {own} attention"

    def _probe(self) -> None:
        count = min(PROBE_TOKENS, getattr(self.config, "max_position_embeddings", None) or PROBE_TOKENS)
        ids = torch.full((1, count), self.config.vocab_size // 2, device=self.decoder.get_input_embeddings().weight.device)
        self.probing = True
        with torch.no_grad():
            self.decoder(input_ids=ids, use_cache=False)
        self.probing = False
        if not self.layers:
            refuse(type(self.model).__name__, "attention through the transformers attention interface", "nothing was captured")
        missing = [i for i in self.chosen if i not in self.layers]
        if missing:
            refuse("layers", "attention through the interface (choose with --layers)", f"none in {', '.join(map(str, missing))}")
        first = self.layers[self.chosen[0]]
        for i in self.chosen:
            for what in ("shape", "scale", "softcap"):
                if getattr(self.layers[i], what) != getattr(first, what):
                    refuse(f"layer {i}, {what}", f"layer {self.chosen[0]}'s {getattr(first, what)}", getattr(self.layers[i], what))

    def _note_ids(self, _module, args, kwargs) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        known = self.ids is not None and ids is not None
        self.ids = self.ids + ids[0].tolist() if known else None

    # -- inside the model

    def _attend(self, own, module, query, key, value, mask, kwargs):
        """Takes the place of own(module, query [1, n_q, rows, d], key [1, n_kv, keys, d], value [1, n_kv, keys, d_v], ...)."""
        if query.shape[0] != 1:
            refuse("batch", "one sequence", query.shape[0])
        if kwargs.get("dropout"):
            refuse(f"layer {module.layer_idx}", "no dropout in attention (model.eval())", kwargs["dropout"])
        rounded = getattr(torch, self.dtype)
        query, key, value = (x.to(rounded).to(x.dtype) for x in (query, key, value))
        index = module.layer_idx
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
            shapes = layer.shape.arrays(self.T, self._rows(self.T))
            folder = self._folder(index)
            folder.mkdir()
            layer.files = {name: allocate(folder / f"{name}.npy", shapes[name], self.dtype) for name in "qkvo"}
            layer.inv_freq = self._inv_freq(layer)
        skipped = self.T - self._rows(self.T)  # positions without a query row
        self._write(index, "q", query[0, :, max(skipped - first, 0):], max(first - skipped, 0))
        self._write(index, "k", key[0, :, keys - rows:], first)
        self._write(index, "v", value[0, :, keys - rows:], first)
        output, weights = own(module, query, key, value, mask, **kwargs)
        self._write(index, "o", output[0].transpose(0, 1)[:, max(skipped - first, 0):], max(first - skipped, 0))
        layer.seen = end
        return output, weights

    def _meet(self, own, module, query, key, value, kwargs):
        """The probe: notes how the layer attends; its output is its values."""
        n_q, n_kv = query.shape[1], key.shape[1]
        index, where = module.layer_idx, f"layer {module.layer_idx}"
        sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
        softcap = kwargs.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        if index in self.chosen:
            if own is ALL_ATTENTION_FUNCTIONS["sdpa"] and (softcap or sinks is not None):
                refuse(where, "eager attention for a soft cap or sinks (attn_implementation='eager')", "sdpa")
            shape = Shape(n_q, n_kv, key.shape[3], value.shape[3], self.config.hidden_size)
            scale = kwargs.get("scaling")
            window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
            self.layers[index] = Layer(
                module, shape, shape.d ** -0.5 if scale is None else float(scale), int(window) if window else None,
                float(softcap) if softcap else None, None if sinks is None else sinks.detach().float().cpu().tolist(),
                fit_rotation(key[0].detach().double().cpu().numpy(), rotations(self.model)))
        return value.repeat_interleave(n_q // n_kv, dim=1).transpose(1, 2).contiguous(), None

    def _write(self, index: int, name: str, x: torch.Tensor, start: int) -> None:
        """x [heads, rows, channels] to rows start, start + 1, ... of the layer's file."""
        if x.shape[1] == 0:
            return
        if not bool(torch.isfinite(x.to(getattr(torch, self.dtype))).all()):
            refuse(f"layer {index}, {name}", f"numbers that are finite in {self.dtype}", "a NaN or an infinity")
        self.layers[index].files[name][:, start:start + x.shape[1]] = to_file(x, self.dtype)

    # -- the end

    def _finish(self) -> None:
        counts = {i: self.layers[i].seen for i in self.chosen}
        T = counts[self.chosen[0]]
        if T < self.prompt_len or any(count != T for count in counts.values()):
            refuse(str(self.out), f"{self.prompt_len} to {self.T} positions in every layer", sorted(set(counts.values())))
        notes = {}
        for i in self.chosen:
            layer, folder = self.layers[i], self._folder(i)
            rows = {"q": self._rows(T), "k": T, "v": T, "o": self._rows(T)}
            for name, array in layer.files.items():
                if rows[name] < array.shape[1]:  # fewer decoding steps than there was room for
                    np.save(folder / "shorter.npy", array[:, :rows[name]])
                    os.replace(folder / "shorter.npy", folder / f"{name}.npy")
                else:
                    array.flush()
            layer.files = {}
            wo = output_projection(layer.module, layer.shape)
            if wo is None:
                notes = {"wo_note": f"no wo: layer {i} has no plain o_proj weight"}
            else:
                allocate(folder / "wo.npy", tuple(wo.shape), self.dtype)[:] = to_file(wo, self.dtype)
        if self.ids is not None and len(self.ids) == T:
            write_json(self.out / "tokens.json", {"ids": self.ids})
        write_json(self.out / "manifest.json", {**self._manifest(T), **self._rope(), **notes})

    def _folder(self, index: int) -> Path:
        return self.out / f"layer_{self.chosen.index(index):02}"

    def _rows(self, T: int) -> int:
        return T - self.prompt_len + self.window

    def _shape(self) -> Shape:
        return self.layers[self.chosen[0]].shape

    def _manifest(self, T: int) -> dict[str, Any]:
        layers, shape = [self.layers[i] for i in self.chosen], self._shape()
        manifest = {
            "model": self.name or self.config._name_or_path or type(self.model).__name__, "prompt_len": self.prompt_len, "total_len": T,
            "n_layers": len(layers), "n_q_heads": shape.n_q, "n_kv_heads": shape.n_kv, "head_dim": shape.d, "scale": layers[0].scale,
            "causal": True, "dtype": self.dtype if self.dtype == "bfloat16" else None, "logit_softcap": layers[0].softcap,
            "sliding_window": [layer.window for layer in layers], "sink_logit": [layer.sinks for layer in layers],
            "layers": self.chosen, "origin": self.origin}
        for key in ("sliding_window", "sink_logit"):
            if all(entry is None for entry in manifest[key]):
                manifest[key] = None
        return manifest

    def _inv_freq(self, layer: Layer) -> Optional[np.ndarray]:
        """[rotary_dim / 2], None for a layer that does not turn."""
        return layer.rotation[1].inv_freq() if layer.rotation and layer.rotation[1] else None

    def _rope(self) -> dict[str, Any]:
        """The manifest's `rope`, or a note why there is none."""
        layers = [self.layers[i] for i in self.chosen]
        for i, layer in zip(self.chosen, layers):
            if layer.rotation is None:
                return {"rope_note": f"no rope: the keys of layer {i} do not turn as any of the model's rotations would have them"}
            if layer.inv_freq is not None and not np.array_equal(layer.inv_freq, self._inv_freq(layer)):
                return {"rope_note": f"no rope: the rotation of layer {i} changed after the prompt"}
        turning = [layer for layer in layers if layer.inv_freq is not None]
        kinds = {(layer.rotation[0], len(layer.inv_freq), layer.rotation[1].factor()) for layer in turning}
        if len(kinds) != 1:
            return {"rope_note": "no rope: " + ("the layers turn in several ways" if kinds else "no layer turns")}
        style, half, factor = kinds.pop()
        rope: dict[str, Any] = {"style": style, "rotary_dim": 2 * half, "attention_factor": factor}
        each = [np.zeros(half) if layer.inv_freq is None else layer.inv_freq for layer in layers]
        if not all(np.array_equal(each[0], other) for other in each):
            return {"rope": {**rope, "inv_freq": [one.tolist() for one in each]}}
        theta = (getattr(self.config, "rope_parameters", None) or {}).get("rope_theta") or getattr(self.config, "rope_theta", None)
        if theta and np.allclose(each[0], float(theta) ** (-np.arange(half) / half), rtol=1e-6, atol=0):
            return {"rope": {**rope, "theta": float(theta)}}
        return {"rope": {**rope, "inv_freq": each[0].tolist()}}


# ---------------------------------------------------------------- check


def written(array: np.ndarray) -> int:
    """How many rows of [heads, rows, channels] were written, in order, into a file of zeros."""
    low, high = 0, array.shape[1]
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if np.any(array[:, middle]) else (low, middle)
    return low


def recompute(q: np.ndarray, k: np.ndarray, v: np.ndarray, i: int, window: Optional[int], scale: float, cap: Optional[float],
              sink: Optional[float]) -> np.ndarray:
    """The output [d_v] of query q [d] at position i, from k [T, d] and v [T, d_v], in float64."""
    begin = max(i + 1 - window, 0) if window else 0
    z = scale * (k[begin:i + 1] @ q)
    z = cap * np.tanh(z / cap) if cap else z
    largest = z.max() if sink is None else max(z.max(), sink)
    weight = np.exp(z - largest)
    return weight @ v[begin:i + 1] / (weight.sum() + (0 if sink is None else np.exp(sink - largest)))


def check_layer(folder: Path, layer: int, manifest: dict[str, Any]) -> tuple[bool, str]:
    """Is the layer whole and does o follow from q, k and v? And a line that says so."""
    arrays = {}
    for name in "qkvo":
        try:
            arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
        except (OSError, ValueError) as error:
            return False, f"{name}.npy: {'missing' if isinstance(error, FileNotFoundError) else error}"
    q, k, v, o = (arrays[name] for name in "qkvo")
    T, bfloat16 = k.shape[1], manifest.get("dtype") == "bfloat16"
    if T != manifest.get("total_len", T) or v.shape[1] != T or q.shape[:2] != o.shape[:2]:
        return False, f"expected {manifest.get('total_len', T)} positions, found q {q.shape}, k {k.shape}, v {v.shape}, o {o.shape}"
    if not all(np.any(array[:, -1]) for array in arrays.values()):
        return False, f"incomplete, {min(written(k), written(v))} of {T} positions"
    window, sinks = manifest.get("sliding_window"), manifest.get("sink_logit")
    window = window[layer] if isinstance(window, list) else window
    sinks = sinks[layer] if sinks else None
    rows = np.unique([0, *np.linspace(0, q.shape[1] - 1, 8).astype(int)])
    tolerance = TOLERANCES["bfloat16" if bfloat16 else k.dtype.name]
    scale, cap, worst = manifest.get("scale") or q.shape[2] ** -0.5, manifest.get("logit_softcap"), 0.0
    for g in range(k.shape[0]):
        keys, values, group = from_file(k[g], bfloat16), from_file(v[g], bfloat16), q.shape[0] // k.shape[0]
        for h in range(g * group, (g + 1) * group):
            for r in rows:
                sink = sinks[h] if sinks else None
                found = recompute(from_file(q[h, r], bfloat16), keys, values, T - q.shape[1] + int(r), window, scale, cap, sink)
                error = np.linalg.norm(found - from_file(o[h, r], bfloat16)) / np.linalg.norm(found)
                worst = max(worst, error if np.isfinite(error) else np.inf)
    line = f"o of {len(rows)} rows x {q.shape[0]} heads {'within' if worst <= tolerance else 'off by'} {worst:.1e} of its norm"
    return worst <= tolerance, f"whole, {T} positions, {line} (tolerance {tolerance:g})"


def check(folder: str | os.PathLike) -> bool:
    """Prints which layers of a dump are whole, and how far o is from what q, k and v give. True where all is well."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"{folder / 'manifest.json'}: {error}") from None
    incomplete = bool(manifest.get("incomplete"))
    fine = not incomplete
    if incomplete:
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


def estimate(shape: Shape, layers: int, T: int, T_q: int, dtype: str) -> int:
    """Prints the bytes of a dump's arrays and returns their sum."""
    total = 0
    for name, dims in shape.arrays(T, T_q).items():
        size = layers * npy_bytes(dims, dtype)
        total += size
        print(f"{name:<3}{layers} x {str(list(dims)):<24}{size:>20,} bytes")
    print(f"{'total':<27}{total:>20,} bytes in {dtype}, besides manifest.json and tokens.json")
    return total


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


def feed(model: torch.nn.Module, ids: list[int], given: list[int], decode: int, seed: Optional[int]) -> None:
    """The prompt, then `decode` tokens one by one: the given ones, or the likeliest, or sampled. No token ends it."""
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    device = model.get_input_embeddings().weight.device
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    tokens, cache = ids, None
    with torch.no_grad():
        for step in range(decode + 1):
            result = model(input_ids=torch.tensor([tokens], device=device), past_key_values=cache, use_cache=True, **keep)
            cache, logits = result.past_key_values, result.logits[0, -1].float().cpu()
            if step == decode:
                break
            likeliest = int(logits.argmax())
            drawn = int(torch.multinomial(logits.softmax(-1), 1, generator=generator)) if generator else likeliest
            tokens = [given[step] if given else drawn]


def run(args: argparse.Namespace) -> int:
    if torch is None:
        refuse("kvcapture", "torch and transformers (pip install torch transformers)", MISSING)
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
    T, window = prompt_len + args.decode, args.window or prompt_len
    layers = check_config(config, args.layers and read_layers(args.layers), T)

    own = str(getattr(config, "dtype", None) or getattr(whole, "dtype", None) or "float32").replace("torch.", "")
    dtype, order = args.dtype or own, list(FILE_DTYPES)
    if dtype not in order:
        refuse("the checkpoint's dtype", "--dtype with one of " + ", ".join(order), own)
    if args.estimate:
        estimate(config_shape(config), len(layers), T, T - prompt_len + min(window, prompt_len), dtype)
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


def main(arguments: Optional[list[str]] = None) -> int:
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
    if args.decode < 0 or (args.window is not None and args.window < 1):
        parser.error("expected --decode of at least 0 and --window of at least 1")
    try:
        return (0 if check(args.check) else 1) if args.check else run(args)
    except (CaptureError, OSError) as error:
        print(f"kvcapture: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"kvcapture: interrupted, {args.out} is incomplete", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""The tensors of a dump in float64 and its manifest's settings, as the golden scripts read them.

Letters: n_q query heads, n_kv KV heads, T positions, l prompt positions, d head dimension, w window rows;
h a query head, g its KV head, i a row (query position), p a column (key position).
"""
import json
from pathlib import Path

import numpy as np

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "samples" / "pystdlib-lm"


def load_array(path, dtype, rank):
    """One .npy as float64, without a leading batch dimension of 1."""
    x = np.load(path)
    bits = x.dtype.kind == "V" and x.dtype.itemsize == 2
    if bits or (x.dtype == np.uint16 and dtype == "bfloat16"):
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if x.ndim == rank + 1 and x.shape[0] == 1:
        x = x[0]
    if x.ndim != rank:
        raise SystemExit(f"{path}: expected {rank} dimensions, found shape {x.shape}")
    return x.astype(np.float64)


def per_layer(setting, layer):
    """A manifest setting that is one value or a list with one per layer."""
    return setting[layer] if isinstance(setting, list) else setting


class Layer:
    """q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], wo [n_q, d_v, d_model] or None, and the manifest's settings;
    residual_norm [T] or None; gradients {"future", "window": (first position, [n_q, S, R, d_v]), "nll": [n_q, R, d_v]}."""

    residual_norm = None
    gradients: dict = {}

    def __init__(self, q, k, v, wo=None, manifest=None, index=0, prompt_len=None):
        m = manifest or {}
        self.q, self.k, self.v, self.wo = q, k, v, wo
        self.n_q, self.n_kv, self.T = q.shape[0], k.shape[0], k.shape[1]
        self.group = self.n_q // self.n_kv
        self.l = prompt_len or m.get("prompt_len") or self.T
        self.first_row = self.T - q.shape[1]  # position of the first query in the dump
        self.scale = m.get("scale") or q.shape[2] ** -0.5
        self.causal = m.get("causal", True)
        self.sliding = per_layer(m.get("sliding_window"), index)
        self.cap = m.get("logit_softcap")
        sinks = m.get("sink_logit")
        self.sinks = None if sinks is None else np.asarray(sinks, np.float64)[index]
        self.inv_freq, self.interleaved, self.attention_factor = rope_settings(m.get("rope"), index, q.shape[2])

    def heads_of(self, g):
        return range(g * self.group, (g + 1) * self.group)

    def window_rows(self, w):
        return range(max(self.l - w, self.first_row, 0), self.l)

    def future_rows(self):
        return range(max(self.l, self.first_row), self.T)


def rope_settings(rope, index, d):
    """(inv_freq [rotary_dim / 2] or None, interleaved, attention_factor)"""
    if not rope:
        return None, False, 1.0
    if rope.get("inv_freq") is not None:
        inv_freq = rope["inv_freq"]
        inv_freq = np.asarray(inv_freq[index] if isinstance(inv_freq[0], list) else inv_freq, np.float64)
    else:
        rotary = rope.get("rotary_dim") or d
        inv_freq = rope.get("theta", 10000.0) ** (-np.arange(0, rotary, 2) / rotary)
    return inv_freq, rope.get("style", "half") == "interleaved", rope.get("attention_factor") or 1.0


def read_manifest(dump):
    path = dump / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else {}


def layer_folders(dump):
    found = sorted(dump.glob("layer_*/q.npy"))
    if not found:
        raise SystemExit(f"{dump}: expected layer_00/q.npy, found none")
    return {int(path.parent.name.split("_")[1]): path.parent for path in found}


def load_layer(dump, index, prompt_len=None):
    manifest = read_manifest(dump)
    folder = layer_folders(dump)[index]
    q, k, v = (load_array(folder / f"{name}.npy", manifest.get("dtype"), 3) for name in "qkv")
    wo = folder / "wo.npy"
    wo = load_array(wo, manifest.get("dtype"), 3) if wo.exists() else None
    layer = Layer(q, k, v, wo, manifest, index, prompt_len)
    if (folder / "residual_norm.npy").exists():
        layer.residual_norm = np.load(folder / "residual_norm.npy").astype(np.float64)
    layer.gradients = {}
    for name, rank in (("future", 4), ("window", 4), ("nll", 3)):
        if (folder / f"g_{name}.npy").exists():
            g = load_array(folder / f"g_{name}.npy", manifest.get("dtype"), rank)
            end = manifest.get("prompt_len") or layer.T if name == "window" else layer.T
            layer.gradients[name] = (end - g.shape[-2], g)
    return layer


def layer_list(text, dump):
    if not text:
        return list(layer_folders(dump))
    chosen = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen

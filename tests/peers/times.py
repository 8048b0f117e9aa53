"""The same questions put to PyTorch (kvpress' presses, scores written in eager PyTorch) and to kvreplay's Python package, in turns, on
the same float32 tensors."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import kvpress
import kvreplay
import numpy as np
import obcache
import presses
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

D = 128
THETA = 10000.0
RATIO = 0.5
PAUSE = 0.2  # seconds between turns, in which the other side's threads stop spinning
METRICS = ("attn", "attn_sq", "value", "key", "joint", "caote", "fastcaote", "exact_value", "exact_key", "exact_joint", "exact_remove")


@dataclass(frozen=True)
class Shape:
    """One KV head with G query heads, l prompt positions, the last w of them the window."""

    l: int
    w: int
    G: int

    def __str__(self):
        return f"l = {self.l}, w = {self.w}, G = {self.G}"


class Tensors:
    """A random head group, float32: queries (of deviation 2) without and with their rotation [G, l, d], k and v [1, l, d]."""

    def __init__(self, shape):
        normal = torch.Generator().manual_seed(1)
        self.shape, self.config = shape, presses.model_config(shape.G, 1, D, 1, THETA)
        self.unrotated = 2 * torch.randn(shape.G, shape.l, D, generator=normal)
        self.k, self.v = (torch.randn(1, shape.l, D, generator=normal) for _ in range(2))
        self.rotary = LlamaRotaryEmbedding(self.config)
        cos, sin = self.rotary(self.unrotated, torch.arange(shape.l)[None])
        self.q = self.unrotated * cos + rotate_half(self.unrotated) * sin

    def layer(self):
        """For kvreplay, which takes the tensors where they lie."""
        return kvreplay.Layer(self.q, self.k, self.v, rope={"style": "half", "theta": THETA})

    def to(self, device):
        for name in ("unrotated", "q", "k", "v", "rotary"):
            setattr(self, name, getattr(self, name).to(device))
        return self


@dataclass
class Question:
    name: str
    ours: object  # kvreplay's: the positions kept or channels pruned, bool [1, l or d], or scores
    run: object  # PyTorch's: the same, as positions; or None
    gigabytes: float = 0  # that PyTorch has alive at once, where that is much
    on_device: bool = True  # whether kvreplay has a kernel for it


def questions(tensors, layer, threads, backend):
    """What is asked at a shape: kept sets and scores on the window, or with all rows as window what needs every row."""
    shape, l, how = tensors.shape, tensors.shape.l, {"threads": threads, "backend": backend}
    keep = int(l * (1 - RATIO))
    inputs = presses.Inputs(tensors.unrotated, tensors.k, tensors.v, None, 0, tensors.config, tensors.rotary)
    module, hidden_states, keys, values, _, kwargs = inputs.arguments(False)
    scratch = keys.clone()

    def kept(press):
        return lambda: press.score(module, hidden_states, keys, values, None, kwargs).topk(keep, dim=-1).indices[0]

    def observed():
        press = kvpress.ObservedAttentionPress(RATIO)
        hidden = torch.ones(l, l, dtype=torch.bool, device=keys.device).triu(1)

        def run():
            attentions = presses.attention_weights(tensors.q, tensors.k, hidden)[None]
            return press.score(module, hidden_states, keys, values, attentions, kwargs).topk(keep, dim=-1).indices[0]

        return run

    def think():
        press = kvpress.ThinKPress(RATIO, window_size=shape.w)

        def run():
            returned, _ = press.compress(module, hidden_states, scratch, values, None, kwargs)  # zeroes the same channels again
            return [torch.nonzero(returned[0, 0, 0] == 0)[:, 0]]

        return run

    def eager(score, *block):
        def run():
            score(tensors.q[:, l - shape.w :], tensors.k[0], tensors.v[0], l - shape.w, *block)

        return run

    def evict(policy, **options):
        return lambda: kvreplay.evict(layer, policy=policy, sigma=RATIO, semantics="kvpress", **options, **how).kept

    def pruned():
        found = kvreplay.channel_interaction(layer, diagonal=True, semantics="kvpress", window=shape.w, **how)
        return kvreplay.select_channels(found, method="think", ratio=RATIO).pruned

    def scores(*names):
        return lambda: kvreplay.token_metrics(layer, metrics=names, window=shape.w, **how)

    matrix = 4e-9 * shape.w * l  # gigabytes
    if shape.w < l:
        yield Question("StreamingLLMPress", evict("streaming"), kept(kvpress.StreamingLLMPress(RATIO)), on_device=False)
        yield Question("KnormPress", evict("knorm"), kept(kvpress.KnormPress(RATIO)), on_device=False)
        yield Question("KeyDiffPress", evict("keydiff"), kept(kvpress.KeyDiffPress(RATIO)), on_device=False)
        yield Question("TOVAPress", evict("tova"), kept(kvpress.TOVAPress(RATIO)))
        yield Question("SnapKVPress", evict("snapkv", window=shape.w), kept(kvpress.SnapKVPress(RATIO, window_size=shape.w)))
        expected = kept(kvpress.ExpectedAttentionPress(RATIO))
        yield Question("ExpectedAttentionPress", evict("expected_attention"), expected, on_device=False)
        yield Question("ThinKPress", pruned, think())
    else:
        yield Question("ObservedAttentionPress and its attention", evict("h2o"), observed, 3 * shape.G * matrix)
    yield Question("OBCache, 5 scores", scores(*obcache.NAMES), lambda: eager(obcache.scores, shape.w), obcache.MATRICES * matrix)
    yield Question("CAOTE", scores("caote"), lambda: eager(obcache.caote), 4 * matrix)
    yield Question("exact error of a removal", scores("exact_remove"), lambda: eager(obcache.exact_remove, shape.w), 6 * matrix)
    yield Question("all 11, 4 of them exact errors", scores(*METRICS), None)


def gigabytes_free(device):
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] / 1e9
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1.024e-6


def in_common(theirs, ours):
    """The share of what PyTorch keeps or prunes that kvreplay does too."""
    pairs = [(set(one.tolist()), set(np.flatnonzero(other).tolist())) for one, other in zip(theirs, ours)]
    return sum(len(one & other) for one, other in pairs) / sum(len(one) for one, _ in pairs)


def turns(question, device, rounds, seconds):
    """One question, PyTorch and kvreplay in turns: medians in ms, and what they have in common."""
    result = {"question": question.name, "peer_ms": None, "kvreplay_ms": None, "ratio": None, "in_common": None, "note": ""}
    free, run = gigabytes_free(device), question.run
    if run is not None and question.gigabytes > free / 2:
        result["note"] = f"PyTorch: not run, {question.gigabytes:.0f} GB at once, {free:.0f} GB free"
        run = None
    elif run is not None and question.gigabytes:
        run = run()
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    theirs, ours = [], []
    with torch.no_grad():
        given = run() if run else None
        for _ in range(rounds):
            if run:
                theirs += obcache.timed(run, synchronize, 1, seconds)
                time.sleep(PAUSE)
            ours += obcache.timed(question.ours, lambda: None, 1, seconds)
            time.sleep(PAUSE)
    result["kvreplay_ms"] = 1e3 * statistics.median(ours)
    if theirs:
        result["peer_ms"] = 1e3 * statistics.median(theirs)
        result["ratio"] = result["peer_ms"] / result["kvreplay_ms"]
    if given is not None:
        result["in_common"] = in_common(given, question.ours())
    return result


def measure(shape, threads, device="cpu", rounds=5, seconds=0.3):
    """Every question at a shape, one result after the other."""
    tensors = Tensors(shape)
    layer = tensors.layer()
    tensors.to(device)
    for question in questions(tensors, layer, threads, device):
        if device == "cpu" or question.on_device:
            yield {"l": shape.l, "w": shape.w, "G": shape.G, "device": device, **turns(question, device, rounds, seconds)}

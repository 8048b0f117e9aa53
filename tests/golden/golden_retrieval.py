#!/usr/bin/env python3
"""What every decoding step reads under the policies that keep the whole prompt, its error and its bytes, from their definitions
(sim/eviction/POLICIES.md, "Retrieval") in float64.

  golden_retrieval.py --check DIR [--dump DUMP]   compare a result folder of `kvreplay evict`; exit 1 on a miss
  golden_retrieval.py --selftest                  a result folder's choices, tampered with

A choice must be the same but for tokens or pages whose score is within 1e-9 (relative) of the cut.
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import re
import sys
from pathlib import Path

import numpy as np
from golden_dump import SAMPLE, Layer, layer_folders, load_layer
from golden_evictions import ELEMENT_BYTES
from golden_evictions_policies import Attention, masked_softmax, visible

READS = ("top_k", "top_p", "quest", "sparq", "double_sparsity")
TIE = 1e-9


def policy_of(name):
    """("quest", {"page": 4}) of quest[page=4]."""
    base, _, rest = name.partition("[")
    return base, {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", rest)}


def by_channels(layer, g, rows, queries):
    """[heads, r, T]: weights, and logits, by queries [heads, r, d] in place of the group's own."""
    z = layer.scale * queries @ layer.k[g].T
    z = layer.cap * np.tanh(z / layer.cap) if layer.cap else z
    seen = visible(layer, rows, np.arange(layer.T))
    sinks = [None] * len(z) if layer.sinks is None else layer.sinks[list(layer.heads_of(g))]
    return np.stack([masked_softmax(one, seen, sink) for one, sink in zip(z, sinks)]), z


def scores(layer, g, base, own, semantics, rows):
    """[r, pages of the prompt]: larger is read first."""
    heads, d = list(layer.heads_of(g)), layer.k.shape[2]
    q, r = layer.q[heads][:, rows - layer.first_row], own.get("r", max(d // 4, 1))
    if base in ("top_k", "top_p"):
        return by_channels(layer, g, rows, q)[0].sum(axis=0)[:, : layer.l]
    if base == "quest":
        size = own.get("page", 16)
        pages = [layer.k[g, first : min(first + size, layer.l)] for first in range(0, layer.l, size)]
        return np.stack([(q[:, :, None] * page[None, None]).max(axis=2).sum(axis=(0, 2)) for page in pages], axis=1)
    if base == "sparq":
        chosen = np.zeros(q.shape[1:], bool)
        np.put_along_axis(chosen, np.argsort(-np.abs(q).sum(axis=0), axis=-1, kind="stable")[:, :r], True, axis=-1)
        share = np.sqrt(np.abs(q * chosen).sum(axis=-1) / np.abs(q).sum(axis=-1))
        weights, logits = by_channels(layer, g, rows, q * chosen / share[..., None])
        return (logits if semantics == "official" else weights).sum(axis=0)[:, : layer.l]
    of_prompt = np.arange(max(layer.first_row, 0), layer.l)
    heavy = np.abs(layer.q[heads][:, of_prompt - layer.first_row] * layer.k[g, of_prompt]).sum(axis=(0, 1))
    mask = np.isin(np.arange(d), np.argsort(-heavy, kind="stable")[:r])
    return by_channels(layer, g, rows, q * mask)[0].sum(axis=0)[:, : layer.l]


class Judge:
    def __init__(self):
        self.missed, self.checked = [], 0

    def check(self, right, what):
        self.checked += 1
        if not right:
            self.missed.append(what)

    def choices(self, layer, g, base, own, semantics, rows, kept, read, what):
        """read [steps, l]"""
        size, all_scores = own.get("page", 16 if base == "quest" else 1), scores(layer, g, base, own, semantics, rows)
        if base == "top_p":
            return self.shares(layer, g, rows, all_scores, kept, read, what)
        recent = own.get("recent", kept // 4 if base == "sparq" else 0)
        seen = visible(layer, rows, np.arange(layer.l))
        for step in range(len(rows)):
            there = np.flatnonzero(np.add.reduceat(seen[step], np.arange(0, layer.l, size)))
            pages = np.add.reduceat(read[step], np.arange(0, layer.l, size)) > 0
            whole = np.array_equal(read[step], np.repeat(pages, size)[: layer.l])
            self.check(whole and pages.sum() == min(kept // size, len(there)), f"{what}, step {step}: pages")
            last = np.flatnonzero(seen[step])
            pinned = {p // size for p in [*range(own.get("sinks", 0)), *last[len(last) - min(recent, len(last)) :]]} & set(there)
            self.check(all(pages[p] for p in pinned), f"{what}, step {step}: what is pinned")
            of = all_scores[step]
            free = np.setdiff1d(there, list(pinned)).astype(int)
            inside, outside = of[free[pages[free]]], of[there[~pages[there]]]
            right = not len(inside) or not len(outside) or inside.min() >= outside.max() - TIE * abs(outside.max())
            self.check(right, f"{what}, step {step}: the largest scores")

    def shares(self, layer, g, rows, weights, kept, read, what):
        """The largest weights of each step, of one share that they all reach with the fewest tokens."""
        more_than, at_most = 0.0, 1.0
        seen, heads = visible(layer, rows, np.arange(layer.l)), layer.group
        for step, of in enumerate(weights):
            mine = read[step] & seen[step]
            outside = of[seen[step] & ~mine]
            self.check(not mine.any() or not len(outside) or of[mine].min() >= outside.max() * (1 - TIE), f"{what}, step {step}: order")
            mass = 1 - of[seen[step]].sum() / heads + of[mine].sum() / heads
            if mine.any():
                more_than = max(more_than, mass - of[mine].min() / heads)
            if len(outside):
                at_most = min(at_most, mass)
        self.check(more_than <= at_most + 1e-12, f"{what}: one share")
        n, most = (read & seen).sum(), kept * len(rows)
        self.check(most - 1 < n <= most, f"{what}: reads {n} of {most} tokens")

    def error(self, layer, g, rows, read):
        """Squared change and norm of the group's outputs."""
        columns = np.arange(layer.T)
        seen = visible(layer, rows, columns)
        reads = np.concatenate([read, np.ones((len(rows), layer.T - layer.l), bool)], axis=1)
        change = full = 0.0
        for h in layer.heads_of(g):
            whole = Attention(layer, h, rows, columns)
            sink = None if layer.sinks is None else layer.sinks[h]
            change += ((masked_softmax(whole.z, seen & reads, sink) @ layer.v[g] - whole.o) ** 2).sum()
            full += (whole.o**2).sum()
        return change, full


def index_bytes(base, own, layer, element):
    """What is read to choose by."""
    d, size = layer.k.shape[2], own.get("page", 16)
    r = own.get("r", max(d // 4, 1))
    return element * {"quest": 2 * d * -(-layer.l // size), "sparq": r * layer.l, "double_sparsity": r * layer.l}.get(base, 0)


def check(folder, dump):
    judge, bytes_of = Judge(), ELEMENT_BYTES
    with open(folder / "evictions.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if policy_of(line["policy"])[0] in READS]
    figures = {(line["layer"], line["kv_head"], line["policy"], line["semantics"], line["budget"], line["metric"]): float(line["value"])
               for line in lines if line["metric"] == "bytes_read" or line["metric"] == "output_error" and line["rows"] == "future"}
    cases = dict.fromkeys((line["policy"], line["semantics"], line["budget"], int(line["kept"])) for line in lines)
    if not cases:
        raise SystemExit(f"{folder}: expected policies of {', '.join(READS)}, found none")
    whole = {case: np.zeros(2) for case in cases}
    for place in sorted(folder.glob("layer_*/read")):
        index = int(place.parent.name.split("_")[1])
        layer = load_layer(dump, index)
        rows = np.array(layer.future_rows())
        for case in cases:
            name, semantics, budget, kept = case
            base, own = policy_of(name)
            packed = np.load(place / f"{name}-{semantics}-prefill-{kept}.npy")
            read = np.unpackbits(packed, axis=-1, count=layer.l, bitorder="little").astype(bool)
            for g in range(layer.n_kv):
                what, dense = f"layer {index}, head {g}, {name} {semantics} {budget}", index < own.get("dense", 0) or kept >= layer.l
                if dense:
                    judge.check(read[g].all(), f"{what}: all of it")
                else:
                    judge.choices(layer, g, base, own, semantics, rows, kept, read[g], what)
                change, full = judge.error(layer, g, rows, read[g])
                whole[case] += change, full
                found = lambda metric: figures[str(index), str(g), name, semantics, budget, metric]  # noqa: E731
                judge.check(abs(found("output_error") - change / full) <= 1e-9 * change / full, f"{what}: output_error")
                token = bytes_of[0] * layer.k.shape[2] + bytes_of[1] * layer.v.shape[2]
                tokens = (read[g] & visible(layer, rows, np.arange(layer.l))).sum(axis=1).mean()
                wanted = token * tokens + (0 if dense else index_bytes(base, own, layer, bytes_of[0]))
                judge.check(abs(found("bytes_read") - wanted) <= 1e-9 * wanted, f"{what}: bytes_read")
    for (name, semantics, budget, _), (change, full) in whole.items():
        found = figures["", "", name, semantics, budget, "output_error"]
        judge.check(abs(found - change / full) <= 1e-9 * change / full, f"{name} {semantics} {budget}: output_error of the model")
    return judge


def selftest():
    rng = np.random.default_rng(1)
    layer = Layer(*(rng.standard_normal((n, 44, 8)) for n in (4, 2, 2)), manifest={"prompt_len": 40})
    rows = np.array(layer.future_rows())
    for base in READS[:1] + READS[2:]:
        size = 4 if base == "quest" else 1
        of = scores(layer, 0, base, {"page": size}, "paper", rows)
        best = np.zeros(of.shape, bool)
        np.put_along_axis(best, np.argsort(-of, axis=1)[:, : 8 // size], True, axis=1)
        right = np.repeat(best, size, axis=1)
        wrong = right.copy()
        wrong[1] = np.roll(wrong[1], size)
        for read, misses in ((right, False), (wrong, True)):
            judge = Judge()
            judge.choices(layer, 0, base, {"page": size, "recent": 0}, "paper", rows, 8, read, base)
            assert bool(judge.missed) == misses, (base, judge.missed)
    everything = np.ones((len(rows), 40), bool)
    assert Judge().error(layer, 0, rows, everything)[0] < 1e-24
    print("self-test passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--selftest", action="store_true")
    args = parser.parse_args()
    if args.selftest:
        return selftest()
    judge = check(args.check, args.dump)
    for what in judge.missed[:20]:
        print(f"MISSED {what}")
    print(f"{args.check}: {judge.checked - len(judge.missed)} of {judge.checked} as they should be")
    return 1 if judge.missed else 0


if __name__ == "__main__":
    sys.exit(main())

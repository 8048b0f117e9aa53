#!/usr/bin/env python3
"""Golden values of the token metrics, computed from their definitions in float64.

Nothing here shares code or closed forms with the C++ toolkit: an exact error is found by changing the
cache (key zeroed, value zeroed, token removed), computing the attention again and comparing the outputs.

  make_golden.py                          write the golden files of data/samples/pystdlib-lm
  make_golden.py --check DIR [--dump D]   compare a result folder of `kvreplay tokens` with a fresh computation
  make_golden.py --out DIR --dump D       write golden files of another dump
  make_golden.py --selftest               small cases with known answers

Letters: n_q query heads, n_kv KV heads, T positions, l prompt positions, d head dimension, w window rows;
h a query head, g its KV head, i a row (query position), p a column (key position).
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one core, and sums in a fixed order

import argparse
import csv
import json
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parent.parent / "data" / "samples" / "pystdlib-lm"

SCORES = ["attn", "attn_sq", "value", "key", "joint", "caote", "fastcaote", "knorm", "keydiff", "expected_attention"]
EXACT = ["exact_value", "exact_key", "exact_joint", "exact_remove"]
ORACLES = ["oracle_next", "oracle_future", "oracle_importance"]
METRICS = SCORES + EXACT + ORACLES

# Their unit is the squared change of the output, so a difference of two of them means something.
SQUARED_CHANGE = {"value", "key", "joint", "oracle_next", "oracle_future", *EXACT}

RESERVES = (0, 32)
EXPECTED_SKIP = 4  # first positions that expected_attention leaves out
EXPECTED_AHEAD = 512  # future positions over which it averages the rotation
EXPECTED_EPSILON = 0.02


# ---------------------------------------------------------------- the dump


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
    """q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], wo [n_q, d_v, d_model] or None, and the manifest's settings."""

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
    return Layer(q, k, v, wo, manifest, index, prompt_len)


# ---------------------------------------------------------------- one row of attention


class Row:
    """What query head h at position i sees.

    cols [n] visible positions; z [n or n+1] logits, a sink logit last; v [the same, d_v] values, 0 for a sink logit;
    taylor [n] the factor that the Taylor scores use for z; c: the first c columns are candidates.
    """

    def __init__(self, layer, h, i):
        lowest = max(0, i - layer.sliding + 1) if layer.sliding else 0
        end = i + 1 if layer.causal else layer.T
        g = h // layer.group
        self.cols = np.arange(lowest, end)
        self.c = int(np.count_nonzero(self.cols < layer.l))
        raw = layer.scale * (layer.k[g, lowest:end] @ layer.q[h, i - layer.first_row])
        self.z, self.taylor = raw, raw
        if layer.cap:
            self.z = layer.cap * np.tanh(raw / layer.cap)
            self.taylor = raw * (1 - (self.z / layer.cap) ** 2)
        self.v = layer.v[g, lowest:end]
        if layer.sinks is not None:
            self.z = np.append(self.z, layer.sinks[h])
            self.v = np.vstack([self.v, np.zeros(self.v.shape[1])])
        self.a = softmax(self.z)
        # Outputs are compared relative to o. `centred` holds v - o and `residue` what rounding left of sum a (v - o) = 0,
        # so that a difference of two outputs is accurate even where one column has nearly all of the weight.
        self.o = self.a @ self.v
        self.centred = self.v - self.o
        self.residue = self.a @ self.centred

    def candidates(self):
        return self.cols[: self.c]


def softmax(z):
    """Over the last axis; -inf is a hidden column."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def squared_norm(x):
    return np.einsum("...d,...d->...", x, x)


# ---------------------------------------------------------------- exact errors, by recomputation


def altered_logits(row, value):
    """[c, n]: line p holds the row's logits with that of candidate p replaced."""
    z = np.tile(row.z, (row.c, 1))
    np.fill_diagonal(z, value)
    return z


def output_change(row, weights, own_value):
    """[c, d_v]: output under line p of `weights` [c, n], token p having `own_value` [c, d_v], less the original output."""
    own = np.diagonal(weights).copy()
    np.fill_diagonal(weights, 0.0)
    change = weights @ row.centred + own[:, None] * (own_value - row.o) - row.residue
    np.fill_diagonal(weights, own)
    return change


def removal_error(row):
    """[c] squared change of the output when one candidate leaves and the rest is renormalised."""
    if len(row.z) == 1:  # nothing is left: the output becomes 0
        return squared_norm(row.o + row.residue)[None] if row.c else np.zeros(0)
    weights = softmax(altered_logits(row, -np.inf))
    return squared_norm(weights @ row.centred - row.residue)


def exact_errors(row):
    """Four arrays [c], in the order of EXACT."""
    own, zero = row.v[: row.c], np.zeros((row.c, row.v.shape[1]))
    unchanged = np.tile(row.a, (row.c, 1))
    key_zeroed = softmax(altered_logits(row, 0.0))
    return [
        squared_norm(output_change(row, unchanged, zero)),
        squared_norm(output_change(row, key_zeroed, own)),
        squared_norm(output_change(row, key_zeroed, zero)),
        removal_error(row),
    ]


# ---------------------------------------------------------------- token scores


def add_row_scores(row, sums):
    """Adds one row to the scores that are sums over rows; sums[name] is [l]."""
    at, c = row.candidates(), row.c
    a, z, v = row.a[:c], row.taylor[:c], row.v[:c]
    from_output = row.centred[:c] - row.residue  # v_p - o_i
    sums["attn"][at] += a
    sums["attn_sq"][at] += a**2
    sums["value"][at] += a**2 * squared_norm(v)
    sums["key"][at] += (a * z) ** 2 * squared_norm(from_output)
    sums["joint"][at] += a**2 * squared_norm(v + z[:, None] * from_output)


def caote(attn, v, block=64):
    """(caote, fastcaote) [l] of one query head from its attention sums [l] and the candidates' values [l, d_v]."""
    total = attn.sum()
    s = attn / total if total > 0 else attn
    mean = v.mean(axis=0)
    full, fast = np.zeros(len(s)), np.zeros(len(s))
    for start in range(0, len(s), block):
        p = np.arange(start, min(start + block, len(s)))
        others = np.tile(s, (len(p), 1))
        others[np.arange(len(p)), p] = 0.0
        rest = others.sum(axis=1)  # 1 - s_p without its cancellation
        # sum_m s_m v_m - v_p = sum_m s_m (v_m - v_p), because the shares sum to 1
        difference = np.einsum("pm,pmd->pd", others, v[None, :, :] - v[p, None, :])
        alone = rest == 0
        ratio = s[p] / np.where(alone, 1.0, rest)
        full[p] = ratio * np.sqrt(squared_norm(difference))
        fast[p] = ratio * np.sqrt(squared_norm(mean - v[p]))
        # s_p ||m' - v_p|| with the others' mean m' := 0; without others the plain mean is v_p itself
        full[p[alone]] = s[p[alone]] * np.sqrt(squared_norm(v[p[alone]]))
        fast[p[alone & (s[p] > 0) & (fast[p] > 0)]] = np.inf
    return full, fast


def keydiff(k):
    """[l] minus the cosine between each key and the mean of the normalised keys; a zero vector has cosine 0."""

    def unit(x):
        norm = np.sqrt(squared_norm(x))[..., None]
        return x / np.where(norm > 0, norm, 1.0)

    return -(unit(k) @ unit(unit(k).mean(axis=0)))


def rotation(layer, position):
    """[d, d] matrix that RoPE applies to a vector at this position; columns beyond the rotary width stay."""
    half = len(layer.inv_freq)
    j = np.arange(half)
    first, second = (2 * j, 2 * j + 1) if layer.interleaved else (j, j + half)
    angle = position * layer.inv_freq
    matrix = np.eye(layer.q.shape[2])
    matrix[first, first] = matrix[second, second] = layer.attention_factor * np.cos(angle)
    matrix[first, second] = -layer.attention_factor * np.sin(angle)
    matrix[second, first] = layer.attention_factor * np.sin(angle)
    return matrix


def expected_attention(layer, g):
    """[l], or None where the rotation or a prompt query is missing."""
    l, skip = layer.l, EXPECTED_SKIP
    if layer.inv_freq is None or layer.first_row > 0 or l <= skip:
        return None
    ahead = np.mean([rotation(layer, l + j) for j in range(EXPECTED_AHEAD)], axis=0)
    undo = [np.linalg.inv(rotation(layer, i)) for i in range(skip, l)]
    k = layer.k[g, skip:l]
    share = np.zeros(l - skip)
    for h in layer.heads_of(g):
        q = np.stack([undo[r] @ layer.q[h, skip + r] for r in range(l - skip)])
        mu = q.mean(axis=0)
        sigma = (q - mu).T @ (q - mu) / len(q)
        e = layer.scale * (k @ (ahead @ mu))
        e += layer.scale**2 / 2 * np.einsum("pc,cd,pd->p", k, ahead @ sigma @ ahead.T, k)
        share += softmax(e) / layer.group
    score = (share + EXPECTED_EPSILON) * np.sqrt(squared_norm(layer.v[g, skip:l]))
    return np.concatenate([np.full(skip, score.max()), score])


# ---------------------------------------------------------------- all metrics of a KV head


def window_metrics(layer, g, w):
    """Scores and exact errors of KV head g on the window: {name: [l]}."""
    l = layer.l
    names = ["attn", "attn_sq", "value", "key", "joint", "caote", "fastcaote", *EXACT]
    total = {name: np.zeros(l) for name in names}
    for h in layer.heads_of(g):
        sums = {name: np.zeros(l) for name in names}
        for i in layer.window_rows(w):
            row = Row(layer, h, i)
            add_row_scores(row, sums)
            for name, error in zip(EXACT, exact_errors(row)):
                sums[name][row.candidates()] += error
        sums["caote"], sums["fastcaote"] = caote(sums["attn"], layer.v[g, :l])
        for name in names:
            total[name] += sums[name]
    return total


def oracle_metrics(layer, g):
    """{name: [l]} on the decoding steps; empty without any."""
    l, rows = layer.l, layer.future_rows()
    if len(rows) == 0:
        return {}
    total = {name: np.zeros(l) for name in ORACLES}
    for h in layer.heads_of(g):
        v = layer.v[g, :l]
        norm = np.sqrt(squared_norm(v if layer.wo is None else v @ layer.wo[h]))
        largest = np.zeros(l)
        for i in rows:
            row = Row(layer, h, i)
            at = row.candidates()
            error = removal_error(row)
            total["oracle_future"][at] += error
            if i == l:
                total["oracle_next"][at] += error
            largest[at] = np.maximum(largest[at], row.a[: row.c] * norm[at])
        total["oracle_importance"] += largest
    if rows[0] != l:
        del total["oracle_next"]
    return total


def head_metrics(layer, g, w):
    """Every available metric of KV head g: {name: [l]} in the order of METRICS."""
    k = layer.k[g, : layer.l]
    found = window_metrics(layer, g, w) if len(layer.window_rows(w)) else {}
    found["knorm"] = -np.sqrt(squared_norm(k))
    found["keydiff"] = keydiff(k)
    found["expected_attention"] = expected_attention(layer, g)
    found.update(oracle_metrics(layer, g))
    return {name: found[name] for name in METRICS if found.get(name) is not None}


# ---------------------------------------------------------------- agreement


def mid_ranks(x):
    """Ranks from 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    return (first + (counts - 1) / 2)[inverse]


def spearman(s, e):
    a, b = mid_ranks(s), mid_ranks(e)
    a, b = a - a.mean(), b - b.mean()
    norm = np.sqrt((a @ a) * (b @ b))
    return a @ b / norm if norm > 0 else np.nan


def top(x, k):
    """Positions of the k largest; among equals the lower position comes first."""
    return np.argsort(-x, kind="stable")[:k]


def cuts(n):
    """{label: k}: 40 and 1, 5, 10, 20 % of n, without those above n."""
    ks = {"40": 40}
    for percent in (1, 5, 10, 20):
        ks[f"{percent}%"] = max(1, (2 * percent * n + 100) // 200)  # floor(x n / 100 + 1/2)
    return {label: k for label, k in ks.items() if k <= n}


def agreement(s, e, same_unit):
    """{metric: value}; nan where a figure is undefined (no error at all, or all ranks equal)."""
    whole = e.sum()
    figures = {}
    if same_unit:
        figures["rel_l1"] = np.abs(s - e).sum() / whole if whole > 0 else np.nan
    figures["spearman"] = spearman(s, e)
    ks = cuts(len(s))
    for label, k in ks.items():
        figures[f"recall@{label}"] = len(np.intersect1d(top(s, k), top(e, k))) / k
    for label, k in ks.items():
        figures[f"mass@{label}"] = e[top(s, k)].sum() / whole if whole > 0 else np.nan
    return figures


def head_agreement(metrics, reserve):
    """Yields (score, reference, {metric: value}) for every pair of one KV head."""
    for score in SCORES:
        for reference in EXACT + ORACLES:
            if score in metrics and reference in metrics:
                n = len(metrics[score]) - reserve
                same_unit = score in SQUARED_CHANGE and reference in SQUARED_CHANGE
                if n > 0:
                    yield score, reference, agreement(metrics[score][:n], metrics[reference][:n], same_unit)


# ---------------------------------------------------------------- golden files


def sampled_positions(l):
    """Both ends, the edge of a window of 32, and 17 positions spread over the prompt."""
    wanted = {0, 1, 2, 3, l - 33, l - 32, l - 2, l - 1}
    wanted.update(j * (l - 1) // 16 for j in range(17))
    return sorted(p for p in wanted if 0 <= p < l)


def token_lines(index, g, metrics):
    for name, x in metrics.items():
        peak = int(top(x, 1)[0])
        yield [index, g, name, "sum", "", repr(float(x.sum()))]
        yield [index, g, name, "max", peak, repr(float(x[peak]))]
        for p in sampled_positions(len(x)):
            yield [index, g, name, "token", p, repr(float(x[p]))]


def agreement_lines(index, g, metrics):
    for reserve in RESERVES:
        for score, reference, figures in head_agreement(metrics, reserve):
            for name, value in figures.items():
                yield [index, g, score, reference, reserve, name, f"{value:.12g}"]


def write_csv(path, header, lines):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
    print(f"{path}: {path.stat().st_size} bytes")


def write_golden(dump, out, window, layers, prompt_len):
    tokens, figures = [], []
    for index in layers:
        started = time.time()
        layer = load_layer(dump, index, prompt_len)
        for g in range(layer.n_kv):
            metrics = head_metrics(layer, g, window)
            tokens += token_lines(index, g, metrics)
            figures += agreement_lines(index, g, metrics)
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    stem = f"{dump.name}.w{min(window, layer.l)}"
    write_csv(out / f"{stem}.tokens.csv", ["layer", "kv_head", "metric", "what", "position", "value"], tokens)
    header = ["layer", "kv_head", "score", "reference", "reserve", "metric", "value"]
    write_csv(out / f"{stem}.agreement.csv", header, figures)


# ---------------------------------------------------------------- checking a result folder

# (of the head's largest value, relative on tokens above floor, floor as a share of the largest).
# float32 rounds at 6e-8; the square of a change that is 1e-3 of the largest keeps three digits.
TOLERANCES = {np.dtype(np.float64): (1e-9, 1e-6, 1e-12), np.dtype(np.float32): (1e-4, 1e-3, 1e-6)}


class Worst:
    """Largest deviation of a metric in units of its tolerance, and where it was."""

    def __init__(self):
        self.absolute = self.relative = self.units = 0.0
        self.where = ""
        self.heads = 0

    def add(self, absolute, relative, units, where):
        """nan counts as a miss."""
        self.heads += 1
        self.absolute = max(self.absolute, absolute)
        self.relative = max(self.relative, relative)
        if not units <= self.units:
            self.units, self.where = (np.inf if np.isnan(units) else units), where


def compare_tokens(got, want, tolerance):
    """(worst share of the largest, worst relative, worst in units of the tolerance, its position)"""
    of_largest, relative, floor = tolerance
    if not np.isfinite(got).all():
        return np.inf, np.inf, np.inf, int(np.argmin(np.isfinite(got)))
    size, difference = np.abs(want), np.abs(got - want)
    largest = size.max() if size.max() > 0 else 1.0
    counted = size > floor * largest
    share = difference / largest
    rel = np.where(counted, difference / np.where(counted, size, 1.0), 0.0)
    units = np.maximum(share / of_largest, rel / relative)
    return share.max(), rel.max(), units.max(), int(units.argmax())


def edge(x, k, relative):
    """(swaps, positions): how many of the top k could change places if every value moved by `relative`, and which.

    Exact ties do not count: the lower position comes first.
    """
    kth = x[top(x, k)[-1]]
    near = np.abs(x - kth) <= 2 * relative * abs(kth)
    if (x[near] == kth).all():
        return 0, []
    inside = np.zeros(len(x), bool)
    inside[top(x, k)] = True
    return min(np.count_nonzero(near & inside), np.count_nonzero(near & ~inside)), np.flatnonzero(near)


def rank_slack(s, e, tolerance, trials=4):
    """How far Spearman's rho may move when rounding decides the order of near ties, found by adding seeded noise.

    Near ties are not rare: zeroing the key of any token with a negligible weight changes the output by almost the same
    amount. A recomputed output is off by about 1e-16, its square by 1e-32 of the largest; float32 ends at 1e-38.
    """
    relative = tolerance[0]
    smallest = 1e-37 if relative > 1e-6 else 0.0
    generator = np.random.default_rng(0)

    def disturbed(x):
        noise = generator.uniform(-1, 1, (2, len(x)))
        return x * (1 + relative * noise[0]) + max(1e-31 * np.abs(x).max(), smallest) * noise[1]

    def has_near_tie(x):
        x = np.sort(x)
        gap = np.diff(x)
        return ((gap > 0) & (gap <= 2 * relative * np.abs(x[1:]))).any()

    rho = spearman(s, e)
    one_swap = 12 / len(s) ** 2 if has_near_tie(s) or has_near_tie(e) else 0.0  # a few trials may miss a lone pair
    return one_swap + 3 * max(abs(spearman(disturbed(s), disturbed(e)) - rho) for _ in range(trials))


def figure_tolerance(name, s, e, tolerance):
    """Slack of an agreement figure when scores and errors move within `tolerance`: near ties may swap at the edge of the top k."""
    _, relative, _ = tolerance
    if name == "rel_l1":
        return relative
    if name == "spearman":
        return relative + rank_slack(s, e, tolerance)
    kind, label = name.split("@")
    k = cuts(len(s))[label]
    swaps, near = edge(s, k, relative)
    if kind == "recall":
        return 1e-9 + (swaps + edge(e, k, relative)[0]) / k
    return relative + (swaps * np.ptp(e[near]) / e.sum() if swaps else 0.0)


def read_agreement(path):
    """{(layer, kv_head, score, reference, reserve, metric): value}, errors on window rows and oracles on future rows."""
    found = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            rows = "future" if line["reference"] in ORACLES else "window"
            key = (int(line["layer"]), int(line["kv_head"]), line["score"], line["reference"], int(line["reserve"]), line["metric"])
            if key not in found or line.get("rows") == rows:
                found[key] = float(line["value"]) if line["value"] else np.nan
    return found


def read_heads(path):
    with open(path, newline="") as file:
        return {(int(line["layer"]), int(line["kv_head"])): line for line in csv.DictReader(file)}


class Check:
    def __init__(self, folder, names):
        self.folder, self.names = folder, names
        self.tokens, self.sums, self.figures = {}, {}, {}
        self.misses = []
        self.heads = read_heads(folder / "heads.csv")
        path = folder / "agreement.csv"
        self.agreement = read_agreement(path) if path.exists() else {}
        if not path.exists():
            self.misses.append(f"{path} is missing")
        self.reserves = sorted({key[4] for key in self.agreement} or {0})

    def layer(self, index, layer, heads):
        """heads: the metrics of every KV head of the layer."""
        tolerance = self.arrays(index, layer, heads)
        if tolerance:
            for g, metrics in enumerate(heads):
                self.head_sums(index, g, metrics, tolerance)
                self.head_figures(index, g, metrics, tolerance)

    def arrays(self, index, layer, heads):
        """Compares layer_XX/tokens/*.npy; returns the tolerance of their type."""
        tolerance = None
        for name in self.names:
            path = self.folder / f"layer_{index:02d}" / "tokens" / f"{name}.npy"
            available = name in heads[0]
            if path.exists() != available:
                self.misses.append(f"{path} {'is missing' if available else 'should be unavailable'}")
            if not (path.exists() and available):
                continue
            got = np.load(path)
            if got.shape != (layer.n_kv, layer.l) or got.dtype not in TOLERANCES:
                self.misses.append(f"{path}: expected float [{layer.n_kv}, {layer.l}], found {got.dtype} {got.shape}")
                continue
            tolerance = TOLERANCES[got.dtype]
            for g, metrics in enumerate(heads):
                absolute, relative, units, p = compare_tokens(got[g].astype(np.float64), metrics[name], tolerance)
                where = f"layer {index} head {g} token {p}"
                self.tokens.setdefault(name, Worst()).add(absolute, relative, units, where)
        return tolerance

    def head_sums(self, index, g, metrics, tolerance):
        line = self.heads.get((index, g), {})
        for name in self.names:
            if name not in metrics:
                continue
            want, scale = metrics[name].sum(), np.abs(metrics[name]).sum() or 1.0
            share = abs(float(line.get(name) or "nan") - want) / scale
            self.sums.setdefault(name, Worst()).add(share, 0.0, share / tolerance[0], f"layer {index} head {g}")

    def head_figures(self, index, g, metrics, tolerance):
        for reserve in self.reserves:
            for score, reference, figures in head_agreement(metrics, reserve):
                if score not in self.names or reference not in self.names:
                    continue
                n = len(metrics[score]) - reserve
                for name, want in figures.items():
                    got = self.agreement.pop((index, g, score, reference, reserve, name), None)
                    if np.isnan(want) and (got is None or np.isnan(got)):
                        continue
                    where = f"layer {index} head {g} {score} ~ {reference} reserve {reserve}"
                    if got is None:
                        self.misses.append(f"agreement.csv: {where}: {name} is missing")
                        continue
                    slack = figure_tolerance(name, metrics[score][:n], metrics[reference][:n], tolerance)
                    slack *= max(1.0, abs(want))
                    self.figures.setdefault(name, Worst()).add(abs(got - want), 0.0, abs(got - want) / slack, where)

    def report(self):
        """Prints the tables; True when everything is within tolerance."""
        good = not self.misses
        tables = [("token metric", self.tokens), ("sum over tokens (heads.csv)", self.sums), ("agreement", self.figures)]
        for title, table in tables:
            print(f"\n{title:<28} {'compared':>8} {'worst':>10} {'relative':>10} {'/ tolerance':>12}  where")
            for name, worst in table.items():
                missed = worst.units > 1
                good = good and not missed
                print(f"{name:<28} {worst.heads:>8} {worst.absolute:>10.2e} {worst.relative:>10.2e} {worst.units:>12.3g}"
                      f"  {worst.where}{'  MISS' if missed else ''}")
        for miss in self.misses[:20]:
            print(f"MISS {miss}")
        if len(self.misses) > 20:
            print(f"... and {len(self.misses) - 20} more")
        print("within tolerance" if good else "NOT within tolerance")
        return good


def check_result(folder, dump, window, layers, prompt_len, names):
    check = Check(folder, names)
    for index in layers:
        layer = load_layer(dump, index, prompt_len)
        check.layer(index, layer, [head_metrics(layer, g, window) for g in range(layer.n_kv)])
        print(f"layer {index} computed", file=sys.stderr, flush=True)
    return check.report()


# ---------------------------------------------------------------- small cases with known answers


def near(got, want, relative=1e-12, absolute=1e-14):
    np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)


def line_of_keys(logits, values, **manifest):
    """One head, one query on the last of len(logits) prompt tokens, with these logits (d = 1, scale 1)."""
    q = np.ones((1, 1, 1))
    k = np.asarray(logits, np.float64)[None, :, None]
    v = np.asarray(values, np.float64).reshape(1, len(logits), -1)
    return Layer(q, k, v, manifest={"scale": 1.0, **manifest})


def closed_forms(row):
    """The closed forms of the four exact errors per row, as written, in extended precision."""
    z, v = row.z.astype(np.longdouble), row.v.astype(np.longdouble)
    e = np.exp(z - z.max())
    a = (e / e.sum())[: row.c]
    o = (e / e.sum()) @ v
    rest = np.array([np.delete(e, p).sum() for p in range(row.c)]) / e.sum()  # 1 - a
    r, v = np.exp(-z[: row.c]), v[: row.c]
    t = a * (r - 1)
    return [
        a**2 * squared_norm(v),
        (t / (1 + t)) ** 2 * squared_norm(v - o),
        (a / (1 + t)) ** 2 * squared_norm(v + (r - 1)[:, None] * o),
        (a / rest) ** 2 * squared_norm(v - o),
    ]


def test_two_equal_tokens():
    """Logits 0 and 0, values 1 and 3: the output is 2, zeroing a key changes nothing."""
    m = head_metrics(line_of_keys([0, 0], [1, 3]), 0, 1)
    near(m["attn"], [0.5, 0.5])
    near(m["value"], [0.25, 2.25])
    near(m["key"], [0, 0])
    near(m["joint"], [0.25, 2.25])
    near(m["caote"], [1, 1])
    near(m["fastcaote"], [1, 1])
    near(m["exact_value"], [0.25, 2.25])
    near(m["exact_key"], [0, 0])
    near(m["exact_joint"], [0.25, 2.25])
    near(m["exact_remove"], [1, 1])


def test_three_tokens():
    """Weights 1/8, 2/8, 5/8 and values 8, 16, 0: the output is 5."""
    row = Row(line_of_keys(np.log([1, 2, 5]), [8, 16, 0]), 0, 2)
    value, key, joint, remove = exact_errors(row)
    near(value, [1, 16, 0])
    near(key, [0, (24 / 7 - 5) ** 2, 5**2], 1e-12, 1e-13)  # token 1: weights 1, 1, 5; token 2: 1, 2, 1 and output 40 / 4
    near(joint, [1, (8 / 7 - 5) ** 2, 5**2])
    near(remove, [(32 / 7 - 5) ** 2, (8 / 6 - 5) ** 2, (40 / 3 - 5) ** 2])


def test_one_token():
    """Removing the only token leaves the output 0."""
    m = head_metrics(line_of_keys([0.7], [3.0]), 0, 1)
    near(m["exact_remove"], [9])
    near(m["exact_value"], [9])
    near(m["exact_key"], [0])
    near(m["caote"], [3])
    near(m["fastcaote"], [0])
    with_sink = exact_errors(Row(line_of_keys([0.0], [4.0], sink_logit=[[0.0]]), 0, 0))
    near(with_sink, [[4], [0], [4], [4]])


def test_hidden_tokens():
    m = head_metrics(line_of_keys([1, 2, 3, 4], [5, 6, 7, 8], sliding_window=2), 0, 1)
    for name in ["attn", "value", "key", "joint", "caote", *EXACT]:
        assert (m[name][:2] == 0).all() and (m[name][2:] > 0).all(), name


def test_sink_near_one():
    """Weight 1 - 1e-9 on the first token, with a positive and with a negative logit."""
    generator = np.random.default_rng(7)
    for shift in (0.0, -40.0):
        z = np.array([np.log(2e9), 0.0, 0.0]) + shift
        row = Row(line_of_keys(z, generator.normal(size=(3, 5)) + 10), 0, 2)
        assert abs(1 - row.a[0] - 1e-9) < 1e-12
        for got, want in zip(exact_errors(row), closed_forms(row)):
            near(got, want.astype(np.float64), 1e-6, 1e-26)
        # The same sink twice as far from 0: v_p - o_i keeps its digits.
        sums = {name: np.zeros(3) for name in SCORES}
        add_row_scores(row, sums)
        others = row.v[1:].mean(axis=0)
        near(sums["key"][0], (row.a[0] * z[0] * 1e-9) ** 2 * squared_norm(row.v[0] - others), 1e-6, 0)
        full, _ = caote(sums["attn"], row.v)
        near(full[0], row.a[0] * np.sqrt(squared_norm(row.v[0] - others)))


def test_closed_forms():
    """Brute force against the closed forms: causal, sliding, capped, with sink logits, not causal, few queries."""
    settings = [{}, {"sliding_window": 5}, {"logit_softcap": 3.0}, {"sink_logit": [[1.0, -2.0, 0.5, 3.0]]}, {"causal": False}]
    generator = np.random.default_rng(1)
    for manifest in settings:
        q, k = 2 * generator.normal(size=(4, 9, 6)), 2 * generator.normal(size=(2, 13, 6))
        layer = Layer(q, k, generator.normal(size=(2, 13, 3)), manifest=manifest, prompt_len=10)
        assert list(layer.window_rows(32)) == [4, 5, 6, 7, 8, 9] and list(layer.future_rows()) == [10, 11, 12]
        for h in range(4):
            for i in range(4, 13):
                row = Row(layer, h, i)
                for got, want in zip(exact_errors(row), closed_forms(row)):
                    near(got, want.astype(np.float64), 1e-9, 1e-13)


def test_taylor_scores():
    """`key` and `joint` are the squared first-order change of the output: a small step of the raw logit shows it."""
    generator = np.random.default_rng(2)
    for cap in (None, 2.0):
        raw, v = generator.normal(size=4), generator.normal(size=(4, 3))

        def output(x):
            return softmax(x if cap is None else cap * np.tanh(x / cap)) @ v

        row = Row(line_of_keys(raw, v, logit_softcap=cap), 0, 3)
        sums = {name: np.zeros(4) for name in SCORES}
        add_row_scores(row, sums)
        for p in range(4):
            step = np.eye(4)[p] * 1e-6
            slope = raw[p] * (output(raw + step) - output(raw - step)) / 2e-6
            near(sums["key"][p], squared_norm(slope), 1e-7)
            near(sums["joint"][p], squared_norm(row.a[p] * v[p] + slope), 1e-7)


def test_group_and_oracles():
    generator = np.random.default_rng(3)
    q, k, v = (generator.normal(size=shape) for shape in [(4, 12, 4), (2, 12, 4), (2, 12, 4)])
    wo = generator.normal(size=(4, 4, 7))
    both = head_metrics(Layer(q, k, v, wo, prompt_len=8), 1, 3)
    parts = [head_metrics(Layer(q[h : h + 1], k[1:], v[1:], wo[h : h + 1], prompt_len=8), 0, 3) for h in (2, 3)]
    for name in ["attn", "joint", "caote", *EXACT, *ORACLES]:
        near(both[name], parts[0][name] + parts[1][name])
    near(both["attn"].sum(), 6)
    # Row l by hand: softmax without the token against softmax with it.
    z = 0.5 * k[1, :9] @ q[2, 8]
    full, without = softmax(z) @ v[1, :9], softmax(np.delete(z, 4)) @ np.delete(v[1, :9], 4, axis=0)
    near(parts[0]["oracle_next"][4], squared_norm(full - without))
    assert "oracle_next" not in head_metrics(Layer(q, k, v, wo), 0, 3)


def test_keydiff():
    near(keydiff(np.array([[2.0, 0], [0, 3.0], [0, 0]])), [-(0.5**0.5), -(0.5**0.5), 0])
    near(keydiff(np.array([[1.0], [-2.0]])), [0, 0])


def test_expected_attention():
    """Both styles un-rotate what they rotate, and equal queries have a score known by hand."""
    for style in ("half", "interleaved"):
        rope = {"style": style, "theta": 100.0, "rotary_dim": 4, "attention_factor": 1.5}
        generator = np.random.default_rng(4)
        k, v = generator.normal(size=(1, 9, 6)), generator.normal(size=(1, 9, 2))
        layer = Layer(np.zeros((1, 9, 6)), k, v, manifest={"rope": rope})
        query = generator.normal(size=6)
        layer.q[0] = [rotation(layer, i) @ query for i in range(9)]
        ahead = np.mean([rotation(layer, 9 + j) @ query for j in range(512)], axis=0)
        want = (softmax(k[0, 4:] @ ahead / 6**0.5) + 0.02) * np.linalg.norm(v[0, 4:], axis=1)
        got = expected_attention(layer, 0)
        near(got[4:], want)
        near(got[:4], want.max())
    # (x, y) -> (x cos - y sin, y cos + x sin) on the pair (0, 2) of four; the pair (0, 1) when interleaved
    quarter = {"inv_freq": [np.pi / 2, 0.0]}
    layer = Layer(np.zeros((1, 1, 4)), np.zeros((1, 1, 4)), np.zeros((1, 1, 1)), manifest={"rope": quarter})
    near(rotation(layer, 1) @ [1, 2, 3, 4], [-3, 2, 1, 4])
    layer.interleaved = True
    near(rotation(layer, 1) @ [1, 2, 3, 4], [-2, 1, 3, 4])


def test_agreement():
    near(mid_ranks(np.array([5, 1, 5, 0])), [2.5, 1, 2.5, 0])
    near(spearman(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])), 0.5)
    assert list(top(np.array([1.0, 3, 3, 2]), 2)) == [1, 2]
    assert cuts(50) == {"40": 40, "1%": 1, "5%": 3, "10%": 5, "20%": 10}
    assert cuts(30) == {"1%": 1, "5%": 2, "10%": 3, "20%": 6}
    figures = agreement(np.array([4.0, 3, 2, 1, 0] * 2), np.array([1.0, 2, 3, 4, 10] * 2), True)
    near(figures["rel_l1"], 36 / 40)  # 3 + 1 + 1 + 3 + 10, twice, of 2 (1 + 2 + 3 + 4 + 10)
    near(figures["recall@20%"], 0)
    near(figures["mass@20%"], 2 / 40)
    assert "recall@40" not in figures


def selftest():
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
        print(f"ok {test.__name__}")


# ---------------------------------------------------------------- the command line


def layer_list(text, dump):
    if not text:
        return list(layer_folders(dump))
    chosen = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE, help="folder with layer_XX/{q,k,v}.npy (default: the sample dump)")
    parser.add_argument("--out", type=Path, help="write golden files of --dump here")
    parser.add_argument("--check", type=Path, metavar="DIR", help="result folder to compare; exit 1 on a miss")
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--layers", help="such as 0,3-5 (default: all)")
    parser.add_argument("--prompt-len", type=int, help="split the dump here instead")
    parser.add_argument("--metrics", help="compare these only, comma-separated")
    parser.add_argument("--selftest", action="store_true")
    args = parser.parse_args()

    if args.selftest:
        selftest()
    elif args.check:
        names = args.metrics.split(",") if args.metrics else METRICS
        layers = layer_list(args.layers, args.dump)
        sys.exit(0 if check_result(args.check, args.dump, args.window, layers, args.prompt_len, names) else 1)
    elif args.out:
        write_golden(args.dump, args.out, args.window, layer_list(args.layers, args.dump), args.prompt_len)
    else:
        write_golden(SAMPLE, HERE, 32, range(6), None)
        write_golden(SAMPLE, HERE, 896, [0, 5], None)


if __name__ == "__main__":
    main()

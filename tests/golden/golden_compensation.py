#!/usr/bin/env python3
"""Judges `kvreplay evict --compensate` (float64, reference rows `shifted` or `window`) by NumPy alone.

  golden_compensation.py --check DIR... --dump DUMP [--layers 0,3-5] [--prompt-len N]
  golden_compensation.py --selftest

Definitions: sim/compensation/COMPENSATION.md. It fits mass, values, both and a mean slot anew, with ridges chosen anew, and
compares the caches in layer_XX/compensated/ (float32) and the lines of compensation.csv of every KV head; kept sets of `leverage`
and `greedy_leverage` are sought anew. Exit 1 on a miss.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from golden_dump import layer_list, load_layer
from golden_evictions import Report, read_lines
from golden_evictions_policies import rotation, visible

SHIFTED, APART, LEAST_WEIGHT, LEVERAGE_ROWS, LEVERAGE_RIDGE = 64, 4, 1e-3, 4096, 1e-3
METHODS = {"none": (False, False), "mass": (True, False), "values": (False, True), "fit": (True, True)}  # biases, values


class Rows:
    """Queries of one KV head's query heads: logits z [n, columns], what each sees, its sink's logit; columns are the prompt
    and, where asked for, what was decoded."""

    def __init__(self, layer, g, queries, seen, l):
        raw = layer.scale * np.concatenate(queries) @ layer.k[g, : seen[0].shape[1]].T
        self.z = np.where(np.concatenate(seen), layer.cap * np.tanh(raw / layer.cap) if layer.cap else raw, -np.inf)
        sinks = np.full(layer.group, -np.inf) if layer.sinks is None else layer.sinks[list(layer.heads_of(g))]
        self.sink, self.l, self.v = np.repeat(sinks, len(queries[0])), l, layer.v[g, : seen[0].shape[1]]
        self.a, self.out = self.attend(np.arange(l))

    def attend(self, tokens, bias=0.0, values=None, key_logits=None):
        """Weights of `tokens` [n, m], and outputs, of the softmax over them, what was decoded and the sink."""
        own = self.z[:, tokens] if key_logits is None else key_logits
        z = np.concatenate([own + bias, self.z[:, self.l :], self.sink[:, None]], axis=1)
        peak = np.where(np.isfinite(z.max(1)), z.max(1), 0.0)[:, None]
        e = np.exp(z - peak)
        total = e.sum(1, keepdims=True)
        a = e / np.where(total > 0, total, 1)
        m = own.shape[1]
        held = self.v[tokens] if values is None else values
        return a[:, :m], a[:, :m] @ held + a[:, m:-1] @ self.v[self.l :]

    def some(self, which):
        part = object.__new__(Rows)
        part.__dict__ = {**self.__dict__, **{name: getattr(self, name)[which] for name in ("z", "sink", "a", "out")}}
        return part


def reference(layer, g, kind, most, window):
    """The reference rows of KV head g, and which of them are held out."""
    l, first = layer.l, layer.first_row
    begin = first if kind == "shifted" else layer.window_rows(window)[0]
    count = min(l - begin, most)
    at = [begin + r * (l - begin) // count for r in range(count)]
    queries = []
    for h in layer.heads_of(g):
        q = layer.q[h, np.array(at) - first]
        if kind == "shifted":
            q = np.stack([rotation(layer, l + i % SHIFTED) @ np.linalg.solve(rotation(layer, i), x) for i, x in zip(at, q)])
        queries.append(q)
    seen = visible(layer, at, np.arange(l))
    if kind == "shifted":
        to = np.array([l + i % SHIFTED for i in at])[:, None]
        seen = np.arange(l)[None] > to - (layer.sliding or l + SHIFTED)
    apart = np.tile(np.arange(count) % APART == APART - 1, layer.group)
    return Rows(layer, g, queries, [seen] * layer.group, l), apart


def nonnegative(H, f):
    """argmin over w >= 0 of w H w / 2 - f w: the active set of Lawson and Hanson."""
    w, inside = np.zeros(len(f)), np.zeros(len(f), bool)
    for _ in range(20 * len(f) + 100):
        slope = f - H @ w
        slope[inside] = -np.inf
        if inside.all() or slope.max() <= 1e-11 * np.abs(f).max():
            return w
        inside[np.argmax(slope)] = True
        while True:
            s = np.zeros(len(f))
            s[inside] = np.linalg.solve(H[np.ix_(inside, inside)], f[inside])
            if s[inside].min() > 0:
                break
            back = inside & (s <= 0)
            step = (w[back] / (w[back] - s[back])).min()
            w = w + step * (s - w)
            inside &= w > 1e-14 * np.abs(w).max()
            w[~inside] = 0
        w = s
    raise RuntimeError("nonnegative least squares did not end")


class Fits:
    """What the methods make of one kept set."""

    def __init__(self, rows, apart, tokens, ridges):
        self.rows, self.apart, self.tokens, self.ridges = rows, apart, tokens, ridges
        self.fitted, self.held_out = rows.some(~apart), rows.some(apart)

    def masses(self):
        """Weights [m], by every ridge that is as good as the best on the rows held out, and which these are."""
        def of(rows, ridge):
            X = rows.a[:, self.tokens]
            H, f = X.T @ X, X.T @ rows.a.sum(1)
            ridge = ridge * np.diag(H).mean()
            return np.maximum(nonnegative(H + ridge * np.eye(len(H)), f + ridge), LEAST_WEIGHT)

        judge = self.held_out if self.apart.any() else self.fitted
        errors = [((judge.attend(self.tokens, np.log(of(self.fitted, r)))[1] - judge.out) ** 2).sum() for r in self.ridges]
        return [of(self.rows, r) for r, e in zip(self.ridges, errors) if e <= min(errors) * (1 + 1e-9)]

    def values(self, bias):
        """Values [m, d_v] likewise."""
        def of(rows, ridge):
            X, out = rows.attend(self.tokens, bias)
            H = X.T @ X
            ridge = ridge * np.diag(H).mean()
            return rows.v[self.tokens] + np.linalg.solve(H + ridge * np.eye(len(H)), X.T @ (rows.out - out))

        if not self.apart.any():
            return [of(self.rows, 1.0)]
        errors = [((self.held_out.attend(self.tokens, bias, of(self.fitted, r))[1] - self.held_out.out) ** 2).sum()
                  for r in self.ridges]
        return [of(self.rows, r) for r, e in zip(self.ridges, errors) if e <= min(errors) * (1 + 1e-9)]


def figures(rows, tokens, bias, values):
    """Of one KV head on some rows."""
    full = (rows.out**2).sum()
    out = rows.attend(tokens, bias, values)[1]
    found = {"output_error": ((out - rows.out) ** 2).sum() / full}
    plain = rows.a[:, tokens]
    share = plain.sum(1, keepdims=True)
    decoded = rows.out - rows.a @ rows.v[: rows.l]
    with_mass = rows.attend(tokens, bias)[1]
    kept = rows.a.sum(1, keepdims=True) * (plain @ rows.v[tokens]) / np.where(share > 0, share, 1) + decoded
    for name, change in (("selection", kept - rows.out), ("mass", with_mass - kept), ("values", out - with_mass)):
        found[name] = (change**2).sum() / full
    if len(out) > len(tokens):
        X, fixed = rows.attend(tokens, bias, np.zeros_like(rows.v[tokens]))
        D = np.linalg.lstsq(X, rows.out - fixed, rcond=1e-9)[0]
        found["bound"] = ((rows.out - fixed - X @ D) ** 2).sum() / full
    return found


def leverage_matrix(layer, g):
    rows, _ = reference(layer, g, "shifted", max(LEVERAGE_ROWS // layer.group, 1), None)
    G = rows.a.T @ rows.a
    return G + LEVERAGE_RIDGE * np.diag(G).mean() * np.eye(len(G))


def lost(G, V, kept):
    """min E where what is not kept is 0."""
    out = ~kept
    S = G[np.ix_(out, out)]
    if kept.any():
        S = S - G[np.ix_(out, kept)] @ np.linalg.solve(G[np.ix_(kept, kept)], G[np.ix_(kept, out)])
    return float((V[out] * (S @ V[out])).sum())


def greedy(G, V, keep):
    P, C, kept = np.linalg.inv(G), V.copy(), np.ones(len(V), bool)
    for _ in range(len(V) - keep):
        cost = np.where(kept, (C**2).sum(1) / np.where(kept, np.diag(P), 1), np.inf)
        p = len(cost) - 1 - int(np.argmin(cost[::-1]))
        C = C - np.outer(P[:, p] / P[p, p], C[p])
        P = P - np.outer(P[:, p], P[p] / P[p, p])
        kept[p] = False
    return kept


def check(report, folder, dump, indices, prompt_len) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    options = summary["options"]["evict"]
    if summary["precision"] != "f64" or options["reference"] not in ("shifted", "window"):
        raise SystemExit(f"{folder}: expected float64 results with reference rows shifted or window")
    window = options.get("window", 32)
    lines = {}
    for line in read_lines(folder / "compensation.csv"):
        if line["layer"] and line["kv_head"]:
            run = tuple(line[key] for key in ("policy", "semantics", "phase", "kept"))
            lines.setdefault((int(line["layer"]), int(line["kv_head"])), {}).setdefault(run, {})[
                line["method"], line["rows"], line["metric"]] = float(line["value"])
    for index in indices:
        layer = load_layer(dump, index, prompt_len)
        for g in range(layer.n_kv):
            for run, found in lines.get((index, g), {}).items():
                check_head(report, folder / f"layer_{index:02d}", layer, g, run, found, options, window, f"layer {index} KV head {g} {run}")


def check_head(report, folder, layer, g, run, found, options, window, where) -> None:
    name, l = "-".join(run), layer.l
    kept = np.load(folder / "kept" / f"{name}.npy")[g].astype(bool)
    tokens = np.flatnonzero(kept)
    if run[0] in ("leverage", "greedy_leverage"):
        G, V = leverage_matrix(layer, g), layer.v[g, :l]
        if run[0] == "leverage":
            score = (V**2).sum(1) / np.diag(np.linalg.inv(G))
            least, most = score[kept].min(), score[~kept].max()
            report.add("leverage: least kept over most evicted", float(max(most / least, 1)), 1.0, 1e-6, where)
        else:
            report.add("greedy_leverage: what is lost", lost(G, V, kept), lost(G, V, greedy(G, V, len(tokens))),
                       1e-6 * lost(G, V, kept), where)
    own, apart = reference(layer, g, options["reference"], options["reference_rows"], window)
    rows = {"reference": own}
    for which, at in (("window", layer.window_rows(window)), ("future", layer.future_rows())):
        if len(at):
            queries = [layer.q[h, np.array(at) - layer.first_row] for h in layer.heads_of(g)]
            rows[which] = Rows(layer, g, queries, [visible(layer, at, np.arange(layer.T))] * layer.group, l)
    fits = Fits(own, apart, tokens, options["ridges"])
    for method in dict.fromkeys(key[0] for key in found):
        if method == "mean":
            check_mean(report, folder / "compensated" / f"{name}-mean", layer, g, kept, rows, found, window, where)
        if method not in METHODS:
            continue
        with_bias, with_values = METHODS[method]
        bias, values = np.zeros(len(tokens)), layer.v[g, tokens]
        if method != "none":
            held = folder / "compensated" / f"{name}-{method}"
            report.add("tokens", float((np.load(held / f"tokens_{g}.npy") != tokens).sum()), 0.0, 0.0, where)
            if with_bias:
                bias = np.load(held / f"bias_{g}.npy").astype(float)
                off = min(np.abs(np.log(w) - bias).max() for w in fits.masses())
                report.add("biases", float(off), 0.0, 1e-5, f"{where} {method}")
            if with_values:
                values = np.load(held / f"values_{g}.npy").astype(float)
                off = min(np.abs(c - values).max() for c in fits.values(bias))
                report.add("values", float(off), 0.0, 1e-6 * np.abs(values).max(), f"{where} {method}")
        for which, some in rows.items():
            for metric, want in figures(some, tokens, bias, values).items():
                got = found.get((method, which, metric))
                if got is not None:
                    # The program's bound is by normal equations: good to 5e-6 of the outputs' energy.
                    tolerance = 1e-3 * want + 5e-6 if metric == "bound" else 1e-6 * want + 1e-14
                    report.add(f"{metric}, {which}", got, want, tolerance, f"{where} {method}")


def check_mean(report, path, layer, g, kept, rows, found, window, where) -> None:
    l, evicted = layer.l, np.flatnonzero(~kept)
    held = {what: np.load(path / f"{what}_{g}.npy") for what in ("tokens", "keys", "values")}
    place = evicted[-1] if layer.sliding else evicted[0]
    tokens = np.sort(np.append(np.flatnonzero(kept), place))
    report.add("mean: tokens", float((held["tokens"] != tokens).sum()), 0.0, 0.0, where)
    slot = int(np.searchsorted(tokens, place))
    key, value = layer.k[g, evicted].mean(0), layer.v[g, evicted].mean(0)
    report.add("mean: key and value", float(max(np.abs(held["keys"][slot] - key).max(),
                                                np.abs(held["values"][slot] - value).max())), 0.0, 1e-5, where)
    bias, values = np.where(tokens == place, np.log(len(evicted)), 0.0), layer.v[g, tokens].copy()
    values[slot] = value
    for which in ("window", "future"):
        if which not in rows or ("mean", which, "output_error") not in found:
            continue
        some, at = rows[which], np.array(layer.window_rows(window) if which == "window" else layer.future_rows())
        raw = layer.scale * np.concatenate([layer.q[h, at - layer.first_row] for h in layer.heads_of(g)]) @ key
        logits = some.z[:, tokens].copy()
        z = layer.cap * np.tanh(raw / layer.cap) if layer.cap else raw
        logits[:, slot] = np.where(np.isfinite(logits[:, slot]), z, -np.inf)
        out = some.attend(tokens, bias, values, logits)[1]
        want = ((out - some.out) ** 2).sum() / (some.out**2).sum()
        report.add(f"mean: output_error, {which}", found["mean", which, "output_error"], want, 1e-7 * want, where)


def selftest() -> None:
    generator = np.random.default_rng(1)
    A = generator.normal(size=(30, 12))
    H, f = A.T @ A, generator.normal(size=12)
    w = nonnegative(H, f)
    slope = H @ w - f
    assert (w >= 0).all() and (slope >= -1e-9).all() and abs(w @ slope) < 1e-9 and (w == 0).any() and (w > 0).any()
    X, V = np.abs(generator.normal(size=(40, 15))), generator.normal(size=(15, 4))
    G = X.T @ X + 0.01 * np.eye(15)
    kept = np.ones(15, bool)
    kept[[3, 7]] = False
    C = np.zeros_like(V)
    C[kept] = np.linalg.solve(G[np.ix_(kept, kept)], (G @ V)[kept])  # of |X (C - V)|^2 + mu |C - V|^2
    assert np.isclose(((C - V) * (G @ (C - V))).sum(), lost(G, V, kept))
    for p in range(15):
        alone = np.arange(15) != p
        assert np.isclose(lost(G, V, alone), (V[p] ** 2).sum() / np.linalg.inv(G)[p, p])
    first = greedy(G, V, 14)
    assert np.isclose(lost(G, V, first), min(lost(G, V, np.arange(15) != p) for p in range(15)))
    print("selftest passed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--layers")
    parser.add_argument("--prompt-len", type=int)
    parser.add_argument("--selftest", action="store_true")
    args = parser.parse_args()
    if args.selftest:
        selftest()
    passed = True
    for folder in args.check or ():
        report = Report()
        check(report, folder, args.dump, layer_list(args.layers, args.dump), args.prompt_len)
        print(folder)
        passed = report.print() and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""`kvreplay evict --channels --bits`: kept sets whose keys lose channels and whose cache is quantized, again in float64.

The program is golden_channels.py. KIVI's scheme: keys in groups of consecutive kept tokens, a channel at a time; values in groups
of neighbouring channels, a token at a time; the last `residual` tokens stay as they are.
"""
from collections import defaultdict

import numpy as np
from golden_channels_choice import Problem, channels_pruned, outputs, row_sets, scaled, slack_of, through_output
from golden_dump import layer_folders, load_layer
from golden_evictions import DEFAULT_WINDOW, budget_of, ELEMENT_BYTES, run_of, with_tolerance
from golden_evictions_policies import Attention, Unknown
from golden_tokens import squared_norm

RECENT, WINDOW = 32, 32  # last kept tokens whose keys stay whole; queries that choose channels
GROUP, RESIDUAL = 32, 128


def quantize(x, live, bits):
    """(x', numbers, groups) of groups [..., n] along the last axis; entries that are not `live` take no part."""
    low, high = np.where(live, x, np.inf).min(axis=-1), np.where(live, x, -np.inf).max(axis=-1)
    some = live.any(axis=-1)
    low, high = np.where(some, low, 0.0)[..., None], np.where(some, high, 0.0)[..., None]
    step = (high - low) / (2**bits - 1)
    level = np.floor((x - low) / np.where(step > 0, step, 1.0) + 0.5)
    return np.where(live, low + step * level, x), int(live.sum()), int(some.sum())


class Compression:
    """What options.evict says of it."""

    def __init__(self, given, slack):
        self.method, _, ratio = (given.get("channels") or "").rpartition(":")
        self.ratio, self.slack = float(ratio or 0), slack
        self.bits = given.get("bits") or 0
        self.group = GROUP if given.get("group") is None else given["group"]
        self.residual = RESIDUAL if given.get("residual") is None else given["residual"]
        self.asked_recent, self.protect = given.get("recent"), given.get("protect")

    def recent(self, semantics):
        return self.asked_recent if self.asked_recent is not None else 0 if semantics == "kvpress" else RECENT

    def pruned_channels(self, layer, g, kept, semantics="paper"):
        """bool [d] for the kept positions [n]"""
        m, d = max(len(kept) - self.recent(semantics), 0), layer.k.shape[2]
        count = channels_pruned(self.ratio, d, semantics)
        if not self.method or m == 0:
            return np.zeros(d, bool)
        rows = layer.window_rows(min(WINDOW, layer.l))
        problem = Problem(layer, list(layer.heads_of(g)), rows, layer.k[g, kept if semantics == "official" else kept[:m]], kept, m, self.slack,
                          self.protect)
        return problem.select(self.method, count)[0]

    def cache(self, layer, g, kept, width, semantics="paper"):
        """(k [n, d], v [n, d_v], bytes) of the kept positions [n]; width: bytes of a number of keys and of values"""
        k, v, n = layer.k[g, kept].copy(), layer.v[g, kept].copy(), len(kept)
        live = np.ones(k.shape, bool)
        live[: max(n - self.recent(semantics), 0), self.pruned_channels(layer, g, kept, semantics)] = False
        k[~live] = 0.0
        old = max(n - self.residual, 0) if self.bits else 0
        whole, held = old // self.group * self.group, 0.0
        for t in range(0, whole, self.group):
            at = slice(t, t + self.group)
            x, numbers, groups = quantize(k[at].T, live[at].T, self.bits)
            k[at] = x.T
            held += numbers * self.bits / 8 + 2 * width[0] * groups
        for c in range(0, v.shape[1], self.group):
            at = np.s_[:old, c : c + self.group]
            v[at], numbers, groups = quantize(v[at], np.ones(v[at].shape, bool), self.bits)
            held += numbers * self.bits / 8 + 2 * width[1] * groups
        return k, v, held + live[whole:].sum() * width[0] + v[old:].size * width[1]


class CacheCheck:
    """Compares the figures of one layer's compressed kept sets."""

    def __init__(self, report, folder, dump, index, given, prompt_len, slack):
        self.report, self.folder, self.index, self.slack = report, folder, index, slack
        self.layer = load_layer(dump, index, prompt_len)
        self.width = ELEMENT_BYTES
        self.compression = Compression(given, slack)
        self.rows = row_sets(self.layer, given.get("window") or DEFAULT_WINDOW)
        every, heads = np.arange(self.layer.T), range(self.layer.n_q)
        self.full = {name: np.stack([Attention(self.layer, h, rows, every).o for h in heads]) for name, rows in self.rows.items()}

    def figures(self, kept, semantics="paper"):
        """kept: bool [n_kv, l]. {(rows, metric, KV head or None): (value, tolerance)}, {rows: (squared changes, outputs)}"""
        layer, found, sums, held = self.layer, {}, {}, []
        change = {name: np.zeros_like(x) for name, x in self.full.items()}
        decoded = np.arange(layer.l, layer.T)
        for g in range(layer.n_kv):
            at = np.flatnonzero(kept[g])
            k, v, size = self.compression.cache(layer, g, at, self.width, semantics)
            k, v = np.concatenate([k, layer.k[g, decoded]]), np.concatenate([v, layer.v[g, decoded]])
            held.append(size)
            found["bytes", g] = float(size), 1e-9
            for (name, rows), h in ((x, h) for x in self.rows.items() for h in layer.heads_of(g)):
                change[name][h] = outputs(layer, h, rows, np.concatenate([at, decoded]), k, v) - self.full[name][h]
        found["bytes", None] = float(sum(held)), 1e-9
        for name, full in self.full.items():
            lost, whole = (squared_norm(x).sum(axis=1).reshape(layer.n_kv, -1).sum(axis=1) for x in (change[name], full))
            for g in range(layer.n_kv):
                found[name, "output_error", g] = self.tolerant(lost[g] / whole[g])
            found[name, "output_error", None] = self.tolerant(lost.sum() / whole.sum())
            if layer.wo is not None:
                error = through_output(layer, change[name]) / through_output(layer, full)
                found[name, "layer_output_error", None] = self.tolerant(error)
            sums[name] = lost.sum(), whole.sum()
        return found, sums

    def tolerant(self, error):
        return scaled(with_tolerance(error), self.slack)

    def check_runs(self, lines):
        """lines: those of this layer in evictions.csv. Returns {(run, rows): (squared changes, squared outputs)}."""
        by_run, model = defaultdict(list), {}
        for line in lines:
            by_run[run_of(line)].append(line)
        for run, some in by_run.items():
            policy, semantics, phase, budget = run
            tokens = budget_of(budget, self.layer.l, semantics) if budget else some[0]["kept"]
            name = f"{policy}-{semantics}-{phase}-{tokens}"
            path = self.folder / f"layer_{self.index:02d}" / "kept" / f"{name}.npy"
            kept = np.load(path).astype(bool) if path.exists() else np.zeros((0, 0), bool)
            if phase != "prefill" or kept.shape != (self.layer.n_kv, self.layer.l):
                self.report.skipped[f"{phase} runs without a kept set of every KV head" if phase == "prefill" else phase] += 1
                continue
            try:
                figures, sums = self.figures(kept, "paper" if semantics == "given" else semantics)
            except Unknown as reason:
                self.report.skipped[f"kept sets: {reason}"] += 1
                continue
            self.compare(some, figures, f"layer {self.index} {name}")
            model.update({(run, rows): x for rows, x in sums.items()})
            model[run, "bytes"] = figures["bytes", None][0], 0.0
        return model

    def compare(self, lines, figures, where):
        missing = set(figures)
        for line in lines:
            g, metric = int(line["kv_head"]) if line["kv_head"] else None, line["metric"]
            key = ("bytes", g) if metric == "bytes" else (line["rows"], metric, g)
            if key in figures:
                missing.discard(key)
                kind = f"compressed {metric} {'layer' if g is None else 'head'} {line['rows']}"
                self.report.add(kind, float(line["value"]), *figures[key], f"{where} {line['kv_head']}")
        self.report.add("compressed: missing lines", float(len(missing)), 0.0, 0.0, f"{where}: {missing}")


def check_compressed(report, folder, dump, indices, summary, tolerance, lines):
    """lines: evictions.csv"""
    slack, model = slack_of(summary, tolerance), defaultdict(list)
    for index in indices:
        check = CacheCheck(report, folder, dump, index, summary["options"]["evict"], summary["dump"]["l"], slack)
        for key, sums in check.check_runs([x for x in lines if x["layer"] == str(index)]).items():
            model[key].append(sums)
    for line in (x for x in lines if not x["layer"]):
        bytes_held = line["metric"] == "bytes"
        parts = model.get((run_of(line), "bytes" if bytes_held else line["rows"]), ())
        if line["metric"] in ("bytes", "output_error") and len(parts) == report.layers:
            change, output = np.sum(parts, axis=0)
            figure = (change, 1e-9) if bytes_held else scaled(with_tolerance(change / output), slack)
            report.add(f"compressed {line['metric']} model {line['rows']}", float(line["value"]), *figure, str(run_of(line)))

"""What a kept set changes, weighted by the gradients of a dump and added up in more ways than kvreplay does.

x[s, h, i] = g_is^h . D_i^h of sample s, query head h (of all layers) and decoding step i, sim/loss/LOSS.md. All figures
are nats a step, 1/2 mean_s of a sum of squares over |R|; they differ in what is added up before it is squared:

  loss_row ... loss_joint            as kvreplay, whose own they are checked against
  loss_step8, loss_step32            all heads and layers, of 8 or 32 adjacent rows
  loss_joint@6 ... loss_step8@12     of the first 6 or 12 samples
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data" / "capture"))

from dump_check import as_float64, visible  # noqa: E402
from kvresults import open_results  # noqa: E402

BLOCKS = {"loss_step": 1, "loss_step8": 8, "loss_step32": 32, "loss_joint": 128}  # rows added up
FEWER = (6, 12)
FIGURES = ("loss_layer", "loss_step", "loss_step8", "loss_step32",
           *(f"{name}@{samples}" for name in ("loss_step8", "loss_joint") for samples in FEWER))
CHECKED = ("loss_row", "loss_head", "loss_layer", "loss_step", "loss_joint")
ARRAYS = ("q", "k", "v", "g_future")
TOLERANCE = 2e-3  # float32 here and there


def changes(dump: Path, folder: Path, cases):
    """`steps` [case, S, rows]: x of all heads; `layers` [case, layer, S]: of the heads and rows of each."""
    results = open_results(folder)
    manifest = json.loads((dump / "manifest.json").read_text())
    row, head, steps, layers = 0.0, 0.0, 0.0, []
    for layer in results.layers:
        kept = [results.kept("-".join((*key[:3], key[4] or "mixed")).replace(":", "_"), layer).values for key in cases]
        x = of_layer(dump / f"layer_{layer:02}", manifest, layer, results.summary["dump"]["l"], kept)
        row = row + np.square(x).sum((1, 2, 3), dtype=np.float64)
        head = head + np.square(x.sum(3, dtype=np.float64)).sum((1, 2))
        of_heads = x.sum(2, dtype=np.float64)
        steps = steps + of_heads
        layers.append(of_heads.sum(2))
    half = 0.5 / steps.shape[1] / steps.shape[2]
    layers = np.stack(layers, 1)
    known = {"loss_row": half * row, "loss_head": half * head, "loss_joint": blocks(steps, steps.shape[2])}
    check({**known, **figures_of(steps, layers)}, results, cases)
    return {"steps": steps.astype(np.float32), "layers": layers.astype(np.float32)}


def figures_of(steps, layers):
    """FIGURES of every case."""
    steps, layers = steps.astype(np.float64), layers.astype(np.float64)
    found = {"loss_layer": 0.5 / steps.shape[1] / steps.shape[2] * np.square(layers).sum((1, 2))}
    for name in FIGURES[1:]:
        base, _, samples = name.partition("@")
        found[name] = blocks(steps[:, : int(samples or steps.shape[1])], BLOCKS[base])
    return found


def blocks(steps, rows):
    """So many adjacent rows added up before they are squared."""
    cases, samples, steps_all = steps.shape
    sums = steps.reshape(cases, samples, steps_all // rows, rows).sum(3)
    return 0.5 / samples / steps_all * np.square(sums).sum((1, 2))


def of_layer(folder: Path, manifest, layer, l, kept):
    """x [case, S, n_q, rows] of one layer, float32."""
    q, k, v, g = (as_float64(np.load(folder / f"{name}.npy")).astype(np.float32) for name in ARRAYS)
    n_q, samples, rows, _ = g.shape
    n_kv, T, _ = k.shape
    group = n_q // n_kv
    scale, window = of(manifest, "scale", layer), of(manifest, "sliding_window", layer)
    hidden = ~visible(np.arange(T), np.arange(T - rows, T), window)
    x = np.empty((len(kept), samples, n_q, rows), np.float32)
    for h in range(n_kv):
        heads = slice(h * group, (h + 1) * group)
        z = np.einsum("grd,td->grt", q[heads, -rows:], k[h], optimize=True)
        z *= scale if scale else q.shape[2] ** -0.5
        z[:, hidden] = -np.inf
        a = np.ascontiguousarray(np.exp(z - z.max(2, keepdims=True)).reshape(group * rows, T).T)  # by token
        value = np.concatenate((v[h] - v[h].mean(0), np.ones((T, 1), np.float32)), 1)
        decoded = a[l:].T @ value[l:]
        whole = a.T @ value
        o = whole[:, :-1] / whole[:, -1:]
        for i, each in enumerate(kept):
            some = np.flatnonzero(each[h])
            left = a[some].T @ value[some] + decoded
            change = (left[:, :-1] / left[:, -1:] - o).reshape(group, 1, rows, -1)
            weighted = np.einsum("gsrd,gsrd->gsr", g[heads], np.broadcast_to(change, g[heads].shape))
            x[i, :, heads] = np.moveaxis(weighted, 1, 0)
    return x


def of(manifest, key, layer):
    """A number of the manifest that may differ by layer."""
    value = manifest.get(key)
    return value[layer] if isinstance(value, list) else value


def check(figures, results, cases) -> None:
    """Refuses sums that are not kvreplay's."""
    stated = {(row["policy"], row["budget"], row["metric"]): float(row["value"])
              for row in results.rows("evictions")
              if not row["layer"] and not row["kv_head"] and row["rows"] == "future" and row["metric"] in CHECKED}
    for name in CHECKED:
        for i, key in enumerate(cases):
            wanted, found = stated[key[0], key[3], name], figures[name][i]
            if abs(found - wanted) > TOLERANCE * max(wanted, 1e-6):
                case = f"{results.folder}: {' '.join(key[:4])}"
                raise SystemExit(f"study: {case}: {name} is {wanted:.5g}, found {found:.5g}")

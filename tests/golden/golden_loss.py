#!/usr/bin/env python3
"""Predicted losses in nats from their definitions (sim/loss/LOSS.md): plain sums over samples and rows.

  golden_loss.py --dump D --results R --out FILE   writes what a result folder of the dump must hold: the losses of its
                                                   kept sets, and exact_loss and oracle_loss of every token
  golden_loss.py --selftest                        small cases with known answers

Nothing here shares code or closed forms with the C++ toolkit: a token's loss is that of the output without it.
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from pathlib import Path

import numpy as np

METRICS = ("loss_row", "loss_head", "dnll")  # sums over query heads


def shared_rows(layer, name, measured):
    """The measured rows that there are gradients of: the last of those; empty where they are not."""
    if name not in layer.gradients:
        return range(0)
    first, g = layer.gradients[name]
    end = first + g.shape[-2]
    rows = range(max(first, measured.start), min(end, measured.stop))
    return rows if len(rows) and rows.stop == end else range(0)


def products(layer, name, change, measured):
    """g_is . D_i [n_q, S, r] (the NLL's: S = 1) of a change [n_q, rows, d_v] on measured rows, or None."""
    rows = shared_rows(layer, name, measured)
    if not len(rows):
        return None
    first, g = layer.gradients[name]
    g = g if g.ndim == 4 else g[:, None]
    g = g[:, :, rows.start - first : rows.stop - first]
    return np.einsum("hsrd,hrd->hsr", g, change[:, rows.start - measured.start : rows.stop - measured.start])


def losses(layer, name, change, measured):
    """{metric: [n_q]} in nats a step of a change on "window" or "future" rows; "samples": sums over heads [S, rows]."""
    found = {}
    dots = products(layer, name, change, measured)
    if dots is not None:
        n = dots.shape[2]
        found["loss_row"] = (dots**2).mean(axis=1).sum(axis=1) / 2 / n
        found["loss_head"] = (dots.sum(axis=2) ** 2).mean(axis=1) / 2 / n
        found["samples"] = dots.sum(axis=0)
    dots = products(layer, "nll", change, measured) if name == "future" else None
    if dots is not None:
        found["dnll"] = dots[:, 0].sum(axis=1) / dots.shape[2]
    return found


def losses_together(layers):
    """{metric: nats a step} of what heads do together, of the layers' sums over heads [S, rows]."""
    total, (S, rows) = sum(layers), layers[0].shape
    return {"loss_layer": sum((sums.sum(axis=1) ** 2).sum() for sums in layers) / 2 / S / rows,
            "loss_step": (total**2).sum() / 2 / S / rows,
            "loss_joint": (total.sum(axis=1) ** 2).sum() / 2 / S / rows}


def token_losses(layer, g, name, measured, row_of, changes_of):
    """[l] exact_loss or oracle_loss of KV head g, or None; changes_of(row) [c, d_v]: what each removal changes."""
    rows = shared_rows(layer, name, measured)
    if not len(rows):
        return None
    first, gradients = layer.gradients[name]
    total = np.zeros(layer.l)
    for h in layer.heads_of(g):
        for i in rows:
            row = row_of(layer, h, i)
            dots = changes_of(row) @ gradients[h, :, i - first].T  # [c, S]
            total[row.candidates()] += (dots**2).mean(axis=1) / 2
    return total


def write_golden(dump, results, out):
    """What `kvreplay tokens` and `evict` wrote into `results`, computed anew: the kept sets are read, no number is."""
    from golden_dump import layer_list, load_layer
    from golden_evictions import Errors
    from golden_evictions_policies import Evictions
    from golden_tokens import head_metrics
    from make_golden import write_csv

    lines, model = [], {}
    for index in layer_list(None, dump):
        layer = load_layer(dump, index)
        errors = Errors(layer, Evictions(layer, index), 32, (4, 4))
        for g in range(layer.n_kv):
            metrics = head_metrics(layer, g, 32)
            for name in ("exact_loss", "oracle_loss"):
                lines += [["token", index, g, name, "", p, repr(float(x))] for p, x in enumerate(metrics[name])]
        for path in sorted((results / f"layer_{index:02d}" / "kept").glob("*.npy")):
            figures = errors.figures(np.load(path))
            for (rows, metric, g), (value, _) in figures.items():
                if metric == "samples":
                    model.setdefault((path.stem, rows), []).append(value)
                    of_layer = losses_together([value])
                    lines += [["kept", index, "", name, rows, path.stem, repr(float(of_layer[name]))] for name in ("loss_layer", "loss_step")]
                elif metric in METRICS:
                    lines.append(["kept", index, "" if g is None else g, metric, rows, path.stem, repr(float(value))])
    for (kept, rows), samples in model.items():
        lines += [["kept", "", "", metric, rows, kept, repr(float(x))] for metric, x in losses_together(samples).items()]
    write_csv(out, ["what", "layer", "kv_head", "metric", "rows", "of", "value"], lines)


def selftest():
    """One head, d_v = 2, two decoding steps: every sum by hand."""

    class Tiny:
        l, gradients = 2, {}

        def heads_of(self, g):
            return [g]

    layer = Tiny()
    g = np.array([[[[1.0, 0.0], [0.0, 2.0]], [[3.0, 0.0], [0.0, 1.0]]]])  # [1, S = 2, 2, 2]
    layer.gradients = {"future": (2, g), "nll": (2, g[:, 0])}
    change = np.array([[[1.0, 5.0], [7.0, -1.0]]])
    found = losses(layer, "future", change, range(2, 4))
    # sample 0: 1 and -2, sample 1: 3 and -1
    assert found["loss_row"] == [((1 + 4) + (9 + 1)) / 2 / 2 / 2]
    assert found["loss_head"] == [((-1) ** 2 + 2**2) / 2 / 2 / 2]
    assert found["dnll"] == [(1 - 2) / 2]
    assert found["samples"].tolist() == [[1, -2], [3, -1]]
    together = losses_together([found["samples"]] * 3)
    assert together["loss_joint"] == 9 * found["loss_head"][0] and together["loss_step"] == 9 * found["loss_row"][0]
    assert together["loss_layer"] == 3 * found["loss_head"][0]
    assert losses(layer, "future", np.zeros((1, 2, 2)), range(2, 4))["loss_row"] == [0]
    assert "loss_row" not in losses(layer, "window", change, range(0, 2))
    assert losses(layer, "future", np.concatenate([change, change], axis=1), range(0, 4))["samples"].shape == (2, 2)
    assert not len(shared_rows(layer, "future", range(0, 3)))
    print("golden_loss: 10 cases passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--selftest", action="store_true")
    args = parser.parse_args()
    if args.selftest:
        selftest()
    elif args.dump and args.results and args.out:
        write_golden(args.dump, args.results, args.out)
    else:
        parser.error("give --dump, --results and --out, or --selftest")


if __name__ == "__main__":
    main()

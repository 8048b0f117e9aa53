"""Self-test of golden_channels_cache.py; `golden_channels.py --selftest` runs it."""
import itertools
import tempfile
from pathlib import Path

import numpy as np
from golden_channels import check_folder
from golden_channels_cache import CacheCheck, Compression, quantize
from golden_channels_choice import Problem, Slack
from golden_channels_test import write_dump, write_lines, write_summary
from golden_dump import Layer
from golden_evictions import Report
from golden_evictions_test import KINDS, attend, quietly, size, tiny

# ---------------------------------------------------------------- caches


def test_quantize():
    r = np.random.default_rng(10)
    for bits, scale in itertools.product((1, 2, 4, 8), (1.0, 1e-3)):
        x = scale * r.standard_normal((7, 32))
        y, numbers, groups = quantize(x, np.ones(x.shape, bool), bits)
        step = (x.max(axis=1) - x.min(axis=1)) / (2**bits - 1)
        assert (np.abs(y - x) <= step[:, None] * (0.5 + 1e-9)).all() and (numbers, groups) == (7 * 32, 7)
        assert all(len(set(line)) <= 2**bits for line in y) and (y.min(axis=1) == x.min(axis=1)).all()
        np.testing.assert_allclose(quantize(y, np.ones(x.shape, bool), bits)[0], y, rtol=1e-9)
    x, live = np.array([[0.0, 5, 6, 7.4], [0] * 4, [3] * 4]), np.array([[0, 1, 1, 1], [0] * 4, [1] * 4]) > 0
    y, numbers, groups = quantize(x, live, 1)
    np.testing.assert_allclose(y, [[0, 5, 5, 7.4], [0] * 4, [3] * 4])
    assert (numbers, groups) == (7, 2)


def cache_in_loops(layer, g, kept, lost, given, width):
    """({p: key}, {p: value}, bytes); lost: channels that all but the last 32 kept tokens lose"""
    bits, group, residual = given["bits"], given["group"], given["residual"]
    n, d, d_v = len(kept), layer.k.shape[2], layer.v.shape[2]
    k, v = ({p: x[g, p].copy() for p in kept} for x in (layer.k, layer.v))
    gone = {(p, c) for p in kept[: max(n - 32, 0)] for c in lost}
    for p, c in gone:
        k[p][c] = 0.0
    held = (n * d - len(gone)) * width[0] + n * d_v * width[1]
    old = max(n - residual, 0)
    groups = [(k, [(p, c) for p in kept[t : t + group] if (p, c) not in gone], 0)
              for t in range(0, old - old % group, group) for c in range(d)]  # fmt: skip
    groups += [(v, [(p, c) for c in range(c0, min(c0 + group, d_v))], 1) for p in kept[:old] for c0 in range(0, d_v, group)]
    for store, entries, which in groups if bits else ():
        if entries:
            x = [store[p][c] for p, c in entries]
            step = (max(x) - min(x)) / (2**bits - 1)
            for (p, c), y in zip(entries, x):
                store[p][c] = min(x) + step * int((y - min(x)) / step + 0.5) if step else y
            held += len(x) * bits / 8 + 2 * width[which] - len(x) * width[which]
    return k, v, held


def test_caches_in_loops():
    layer, r = tiny(11, l=70), np.random.default_rng(12)
    kept = np.sort(r.permutation(70)[:53])
    kinds = [("iap:0.5", 2, 4, 8), ("think:0.7", 4, 8, 40), ("", 3, 7, 0), ("output:0.4", 0, 32, 128), ("exchange:0.5", 2, 5, 21)]
    for channels, bits, group, residual in kinds:
        given = {"channels": channels or None, "bits": bits or None, "group": group, "residual": residual}
        compression = Compression(given, Slack())
        for g in range(2):
            lost = np.flatnonzero(compression.pruned_channels(layer, g, kept))
            if channels:
                method, _, ratio = channels.partition(":")
                problem = Problem(layer, [2 * g, 2 * g + 1], layer.window_rows(32), layer.k[g, kept[:-32]], kept, 21, Slack())
                assert (lost == np.flatnonzero(problem.select(method, int(6 * float(ratio)))[0])).all() and len(lost)
            k, v, held = cache_in_loops(layer, g, kept.tolist(), lost, {**given, "bits": bits}, [2, 4])
            got = compression.cache(layer, g, kept, [2, 4])
            for x, y in zip(got[:2], (k, v)):
                np.testing.assert_allclose(x, [y[p] for p in kept], rtol=1e-12, atol=1e-12, err_msg=str(given))
            assert abs(got[2] - held) < 1e-9, (given, got[2], held)


def test_figures_in_loops():
    given, l = {"channels": "iap:0.5", "bits": 2, "group": 4, "residual": 8, "window": 8}, 50
    for kind, manifest in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_dump(Path(folder), [tiny(15, l=l, **manifest)], manifest)
            check = CacheCheck(Report(), Path(folder), Path(folder), 0, given, None, Slack())
        layer, kept = check.layer, np.random.default_rng(17).random((2, l)).argsort(axis=1) < 41
        figures, _ = check.figures(kept)
        k, v, held = layer.k.copy(), layer.v.copy(), []
        for g in range(2):
            at = np.flatnonzero(kept[g])
            k[g, at], v[g, at], size_of_head = check.compression.cache(layer, g, at, [2, 2])  # a cache of fewer bits has 16 for the rest
            held.append(size_of_head)
        changed = Layer(layer.q, k, v, layer.wo, {"prompt_len": l, "scale": layer.scale, **manifest})
        for rows, where in (("window", range(l - 8, l)), ("future", range(l, layer.T))):
            for g in range(2):
                lost = whole = 0.0
                for h, i in itertools.product((2 * g, 2 * g + 1), where):
                    o = attend(layer, h, i, range(layer.T))[1]
                    left = attend(changed, h, i, [p for p in range(layer.T) if p >= l or kept[g, p]])[1]
                    lost, whole = lost + size(left - o), whole + size(o)
                np.testing.assert_allclose(figures[rows, "output_error", g][0], lost / whole, rtol=1e-9, err_msg=kind)
        assert [figures["bytes", g][0] for g in range(2)] == held and figures["bytes", None][0] == sum(held)


# ---------------------------------------------------------------- a whole folder


def test_check_finds_misses_of_caches():
    with tempfile.TemporaryDirectory() as folder:
        dump, out = Path(folder) / "dump", Path(folder) / "out"
        write_dump(dump, [tiny(15, l=60), tiny(16, l=60)])
        given = {"channels": "iap:0.5", "bits": 2, "group": 4, "residual": 8}
        write_summary(out, 60, {"evict": given})
        lines, model = [], []
        for index in range(2):
            check = CacheCheck(Report(), out, dump, index, given, None, Slack())
            kept = np.random.default_rng(index).random((2, 60)).argsort(axis=1) < 45
            (out / f"layer_{index:02d}" / "kept").mkdir(parents=True)
            np.save(out / f"layer_{index:02d}" / "kept" / "snapkv-paper-prefill-45.npy", kept)
            figures, sums = check.figures(kept)
            model.append([*sums["window"], figures["bytes", None][0]])
            for key, (value, _) in figures.items():
                rows, metric, g = key if len(key) == 3 else ("", *key)
                lines.append([index, "" if g is None else g, "snapkv", "paper", "prefill", 0.25, 45, rows, metric, repr(value)])
        change, whole, held = np.sum(model, axis=0)
        for rows, metric, value in (("window", "output_error", change / whole), ("", "bytes", held)):
            lines.append(["", "", "snapkv", "paper", "prefill", 0.25, 45, rows, metric, repr(float(value))])
        header = ["layer", "kv_head", "policy", "semantics", "phase", "budget", "kept", "rows", "metric", "value"]
        write_lines(out / "evictions.csv", header, lines)
        check = lambda: quietly(check_folder, out, dump, None, None)  # noqa: E731
        assert check()
        text = (out / "evictions.csv").read_text().splitlines()
        for at in range(1, len(text)):
            head, _, value = text[at].rpartition(",")
            changed = f"{head},{float(value) * (1 + 1e-6)!r}"
            (out / "evictions.csv").write_text("\n".join([*text[:at], changed, *text[at + 1 :], ""]))
            assert not check(), text[at]

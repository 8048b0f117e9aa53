"""Self-test of golden_channels.py: the definitions again, in plain loops on tiny random dumps, and results tampered with."""
import csv
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
from golden_channels import ChannelsCheck, Settings, check_folder, of_model
from golden_channels_choice import Problem, Slack, channels_pruned, error_of, exchange, output_interaction, protected
from golden_channels_choice import rope_partners
from golden_dump import Layer, layer_folders, load_layer
from golden_evictions import Report, ELEMENT_BYTES
from golden_evictions_test import KINDS, attend, quietly, size, tiny
from golden_tokens import rotation

GREEDY = ["magnitude", "think", "iap", "output", "rope_pairs"]
METHODS = [*GREEDY, "exchange", "exchange+think", "exchange+magnitude", "exchange+output"]
HEADER = ["layer", "kv_head", "method", "semantics", "ratio", "recent", "pruned", "rows", "metric", "value"]
ROPES = {"half": {"style": "half"}, "interleaved": {"style": "interleaved"}, "partial": {"style": "half", "rotary_dim": 4}}


def problem_of(layer, heads, recent=5, window=8, limits=None):
    m = layer.l - recent
    k = layer.k[heads[0] // layer.group, :m]
    return Problem(layer, heads, layer.window_rows(window), k, np.arange(layer.l), m, Slack(), limits)


def with_keys(layer, k):
    changed = Layer(layer.q, k, layer.v, layer.wo)
    for name in ("l", "scale", "sliding", "cap", "sinks"):
        setattr(changed, name, getattr(layer, name))
    return changed


def pruned_keys(layer, g, m, factor):
    """The layer with the first m keys of KV head g multiplied by factor [d]."""
    k = layer.k.copy()
    k[g, :m] *= factor
    return with_keys(layer, k)


def random_set(r, d, count):
    found = np.zeros(d, bool)
    found[r.permutation(d)[:count]] = True
    return found


# ---------------------------------------------------------------- matrices


def reconstruction_by_definition(layer, heads, rows, m, pruned):
    """(||Q K^T - Q S K^T||^2, ||Q K^T||^2), S the kept channels"""
    lost = whole = 0.0
    for h, i, p in itertools.product(heads, rows, range(m)):
        products = [layer.q[h, i - layer.first_row, c] * layer.k[h // layer.group, p, c] for c in range(len(pruned))]
        whole += sum(products) ** 2
        lost += (sum(products) - sum(x for x, gone in zip(products, pruned) if not gone)) ** 2
    return lost, whole


def test_interaction_is_the_reconstruction_error():
    r = np.random.default_rng(1)
    layer = tiny(1)
    for heads, count in (([0, 1], 3), ([2, 3], 6), ([3], 2), ([1], 0)):
        pruned = random_set(r, 6, count)
        problem = problem_of(layer, heads)
        lost, whole = reconstruction_by_definition(layer, heads, layer.window_rows(8), layer.l - 5, pruned)
        np.testing.assert_allclose(error_of(problem.H, pruned), lost, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(problem.H.sum(), whole, rtol=1e-12)


def test_output_matrix_by_finite_differences():
    step, m, heads = 1e-4, 14, [2, 3]
    kinds = {**KINDS, "capped sliding": {"logit_softcap": 2.0, "sliding_window": 6}}
    for kind, manifest in kinds.items():
        layer = tiny(2, l=17, steps=1, **manifest)
        cache = [p for p in range(17) if p % 3]  # as in an evicted cache
        for cols in (list(range(17)), cache):
            kept = sum(p < m for p in cols)
            rows, want = layer.window_rows(4), np.zeros((6, 6))
            for h, i in itertools.product(heads, rows):
                slope = []
                for c in range(6):
                    less, more = (pruned_keys(layer, 1, m, 1 - s * step * np.eye(6)[c]) for s in (1, -1))
                    slope.append((attend(less, h, i, cols)[1] - attend(more, h, i, cols)[1]) / (2 * step))
                want += np.array([[sum(x * y) for y in slope] for x in slope])
            got = output_interaction(layer, heads, rows, np.array(cols), kept)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7 * np.trace(want), err_msg=kind)


def test_output_matrix_of_a_sink():
    """A weight of 1 - 1e-9: the matrix is that of the differences without cancellation."""
    q, k = np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
    q[0, :, 0], k[0, 0, 0] = 1.0, np.log(1e9)
    v = np.array([[[1.0], [3.0]]])
    layer = Layer(q, k, v, None, {"scale": 1.0})
    got = output_interaction(layer, [0], [1], np.arange(2), 2)[0, 0]
    small = 1 / (1e9 + 1)
    np.testing.assert_allclose(got, ((1 - small) * np.log(1e9) * small * -2) ** 2, rtol=1e-12)


def test_rope_partners_are_what_rotation_mixes():
    for name, rope in ROPES.items():
        layer = tiny(3, rope={"theta": 100.0, **rope})
        mixed = (rotation(layer, 5) != 0) & ~np.eye(6, dtype=bool)
        want = [int(np.flatnonzero(line)[0]) if line.any() else -1 for line in mixed]
        assert rope_partners(layer).tolist() == want, name
    assert rope_partners(tiny(3, rope=None)) is None


# ---------------------------------------------------------------- selections


def error_in_loops(matrix, chosen):
    return sum(matrix[c, e] for c in chosen for e in chosen)


def greedy_in_loops(matrix, blocks):
    order = []
    while blocks:
        grows = lambda b: (error_in_loops(matrix, order + b) - error_in_loops(matrix, order)) / len(b)  # noqa: B023,E731
        best = min(blocks, key=lambda b: (round(grows(b), 9), b[0]))  # noqa: B023
        order, blocks = order + best, [b for b in blocks if b != best]
    return order


def exchange_in_loops(matrix, chosen, usable):
    chosen = list(chosen)
    while True:
        now, found = error_in_loops(matrix, chosen), []
        for gone in sorted(chosen):
            for come in [c for c in usable if c not in chosen]:
                other = [c for c in chosen if c != gone] + [come]
                found.append((round(error_in_loops(matrix, other), 9), gone, come, other))
        if not found or min(found)[0] >= round(now, 9):
            return sorted(chosen)
        chosen = min(found)[3]


def test_selections_in_loops():
    for (name, rope), limits, heads in itertools.product(ROPES.items(), (None, [20, 40]), ([0, 1], [3])):
        layer = tiny(4, peak=1.0, rope={"theta": 100.0, **rope})
        problem = problem_of(layer, heads, limits=limits)
        usable = np.flatnonzero(problem.usable).tolist()
        assert (len(usable) < 6) == (limits is not None)
        partner = rope_partners(layer)
        pairs = [[c] if partner[c] < 0 else [c, partner[c]] for c in range(6) if partner[c] < 0 or c < partner[c]]
        pairs = [b for b in pairs if set(b) <= set(usable)]
        norm = [sum(x * x) for x in layer.k[heads[0] // 2, : layer.l - 5].T]
        H, M = problem.H / 1e3, problem.M
        matrices = {"magnitude": np.diag(norm), "think": np.diag(np.diag(H)), "iap": H, "output": M, "rope_pairs": H}
        orders = {x: greedy_in_loops(y, pairs if x == "rope_pairs" else [[c] for c in usable]) for x, y in matrices.items()}
        for x, order in orders.items():
            assert problem.order(x) == order, f"{name} {limits} {x}: {problem.order(x)}, expected {order}"
        for count in range(7):
            first, many = {x: order[:count] for x, order in orders.items()}, min(count, len(usable))
            whole = [n for n in range(len(first["rope_pairs"]) + 1) if is_cut(orders["rope_pairs"][:n], pairs)]
            first["rope_pairs"] = orders["rope_pairs"][: max(whole)]
            first["output"] = exchange_in_loops(M, first["output"], usable)
            for method, start in (("", "iap"), ("+think", "think"), ("+magnitude", "magnitude"), ("+output", "output")):
                first["exchange" + method] = exchange_in_loops(H, first[start], usable)
            for method, want in first.items():
                got = np.flatnonzero(problem.select(method, many)[0]).tolist()
                assert got == sorted(want), f"{name} {limits} {method} {many}: {got}, expected {sorted(want)}"
            best = problem.smallest(many)
            least = min(error_in_loops(problem.H, s) for s in itertools.combinations(usable, many))
            np.testing.assert_allclose(error_of(problem.H, best), least, rtol=1e-9, atol=1e-9)


def is_cut(order, blocks):
    return all(set(b) <= set(order) or not set(b) & set(order) for b in blocks)


def test_exchange_ends_where_no_swap_helps():
    r = np.random.default_rng(5)
    for seed in range(20):
        x = r.standard_normal((30, 12)) * np.exp(r.standard_normal(12))
        H, start = x.T @ x, random_set(np.random.default_rng(seed), 12, 5)
        found, _ = exchange(H, start, np.ones(12, bool), Slack())
        assert error_of(H, found) <= error_of(H, start)
        for gone, come in itertools.product(np.flatnonzero(found), np.flatnonzero(~found)):
            other = found.copy()
            other[[gone, come]] = False, True
            assert error_of(H, other) >= error_of(H, found) * (1 - 1e-12)


def test_order_given():
    """Another choice passes where it costs the same within rounding but not exactly, and nothing else does."""
    layer = tiny(6)
    problem = problem_of(layer, [0, 1])
    for name in GREEDY:
        order = list(problem.order(name))
        found = problem.order(name, np.array(order))
        assert not found.wrong and not found.ties
        assert problem.order(name, np.array(order[::-1])).wrong
        assert problem.order(name, np.array([*order[:2], -1, -1, -1, -1])).wrong
        assert problem.order(name, np.array([*order[:5], order[0]])).wrong
    for off, ties, wrong in ((1e-12, 1, 0), (0.0, 0, 1), (1e-6, 0, 1)):
        problem.H, problem.kept_orders = np.diag([1.0, 1.0 + off, 2, 3, 4, 5]), {}
        found = problem.order("iap", np.array([1, 0, 2, 3, 4, 5]))
        assert (found.ties, found.wrong) == (ties, wrong), off


def test_protected():
    norm = np.array([1.0, 9, 1, 1, 8, 1, 1, 1, 1, 9])  # mean 3.3, std 3.5: the 9s and the 8
    count = lambda a, b: np.flatnonzero(protected(norm, [a, b])).tolist()  # noqa: E731
    assert count(0, 100) == [1, 4, 9] and count(0, 20) == [1, 9] and count(0, 10) == [1]
    assert count(50, 60) == [0, 1, 2, 4, 9] and count(0, 0) == [] and count(0, 0.1) == [1] and count(0, 25) == [1, 4, 9]
    assert not protected(norm, None).any() and not protected(np.ones(4), [0, 50]).any()


def test_counts_of_the_semantics():
    assert [channels_pruned(0.29, 100, x) for x in ("paper", "official", "kvpress")] == [29, 28, 28]
    assert [channels_pruned(r, 64, "paper") for r in (0.4, 0.5, 0.6, 0.7)] == [25, 32, 38, 44]


def test_think_as_published():
    """ThinK's code and ThinKPress multiply mean squares of queries and of all keys; ThinKPress averages over the group."""
    layer = tiny(7, peak=1.0)
    q, k = layer.q[:, layer.l - 8 : layer.l], layer.k[:, : layer.l]
    alone = [np.array([np.mean(q[h, :, c] ** 2) * np.mean(k[h // 2, :, c] ** 2) for c in range(6)]) for h in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        for semantics, scores in (("official", alone), ("kvpress", [shared(q, k, g) for g in range(2)])):
            check = ChannelsCheck(Report(), Path(folder), layer, 0, settings(semantics=semantics, recent=3), (4, 4))
            assert [list(np.argsort(x, kind="stable")) for x in scores] == [x.order("think") for x in check.problems]
            assert check.m == (layer.l - 3 if semantics == "official" else layer.l)


def shared(q, k, g):
    return np.array([np.mean([np.mean(q[h, :, c] ** 2) for h in (2 * g, 2 * g + 1)]) * np.mean(k[g, :, c] ** 2) for c in range(6)])


# ---------------------------------------------------------------- figures


def options_of(**given):
    usual = {"methods": METHODS, "ratios": [0.4, 0.5], "semantics": "paper", "recent": 5, "window": 8, "protect": None}
    return {**usual, **given}


def settings(**given):
    return Settings({"precision": "f64", "options": {"channels": options_of(**given)}}, None)


def output_error_by_definition(layer, before, heads, rows):
    changed = whole = 0.0
    for h, i in itertools.product(heads, rows):
        o = attend(before, h, i, range(layer.T))[1]
        changed, whole = changed + size(attend(layer, h, i, range(layer.T))[1] - o), whole + size(o)
    return np.array([changed, whole])


def test_figures_in_loops():
    for (kind, manifest), semantics in itertools.product(KINDS.items(), ("paper", "official")):
        layer = tiny(8, **manifest)
        with tempfile.TemporaryDirectory() as folder:
            check = ChannelsCheck(Report(), Path(folder), layer, 0, settings(semantics=semantics), (4, 4))
            r = np.random.default_rng(9)
            masks, think = (np.stack([random_set(r, 6, 3) for _ in check.units]) for _ in range(2))
            check.measure("iap", 0.5, masks)
            check.measure("think", 0.5, think)
        got = {key[1:]: value for key, (value, _) in check.expected().items()}
        for rows, where in (("window", layer.window_rows(8)), ("future", layer.future_rows())):
            errors = [0.0, 0.0]
            m = layer.l - 5
            for g, units in enumerate(check.of_head):
                both = []
                for sets in (masks, think):
                    sums = np.zeros(4)
                    for u in units:
                        unit, cut = check.units[u], pruned_keys(layer, g, m, ~sets[u])
                        sums += [*reconstruction_by_definition(layer, unit, where, m, sets[u]), *output_error_by_definition(cut, layer, unit, where)]
                    both.append(sums)
                (lost, whole, changed, outputs), (before, _, changed_before, _) = both
                output, output_before = changed / outputs, changed_before / outputs
                want = {"reconstruction_error": lost, "relative_reconstruction_error": lost / whole, "output_error": output}
                want |= {"reconstruction_gain": 1 - lost / before, "output_gain": 1 - output / output_before}
                for metric, value in want.items():
                    np.testing.assert_allclose(got[g, "iap", 0.5, rows, metric], value, rtol=1e-8, err_msg=f"{kind} {metric}")
                errors = [errors[0] + lost, errors[1] + whole]
            np.testing.assert_allclose(got[None, "iap", 0.5, rows, "relative_reconstruction_error"], errors[0] / errors[1])
            if semantics == "paper":
                k = layer.k.copy()
                for g in range(2):
                    k[g, : layer.l - 5, masks[g]] = 0
                gone, full = (np.zeros((len(where), 7)) for _ in range(2))
                for (n, i), h in itertools.product(enumerate(where), range(4)):
                    o = attend(layer, h, i, range(layer.T))[1]
                    gone[n] += (attend(with_keys(layer, k), h, i, range(layer.T))[1] - o) @ layer.wo[h]
                    full[n] += o @ layer.wo[h]
                want = (gone**2).sum() / (full**2).sum()
                np.testing.assert_allclose(got[None, "iap", 0.5, rows, "layer_output_error"], want, rtol=1e-9)
        off, shares, pairs = ~np.eye(6, dtype=bool), [], []
        for u in check.of_head[0]:
            H = np.abs(check.problems[u].H)
            shares.append(H[off].sum() / H.sum())
            pairs.append(sum(2 * H[c, c + 3] for c in range(3)) / H[off].sum())
        np.testing.assert_allclose(got[0, "", "", "", "off_diagonal_share"], np.mean(shares))
        np.testing.assert_allclose(got[0, "", "", "", "rope_pair_share"], np.mean(pairs))
        held = layer.l * (6 + layer.v.shape[2]) - (layer.l - 5) * 3  # of one selection
        assert got[0, "iap", 0.5, "", "bytes"] == 4 * held * len(check.of_head[0])


# ---------------------------------------------------------------- whole folders


def write_dump(dump, layers, more=None):
    for index, layer in enumerate(layers):
        (dump / f"layer_{index:02d}").mkdir(parents=True)
        for name in ("q", "k", "v", "wo"):
            np.save(dump / f"layer_{index:02d}" / f"{name}.npy", getattr(layer, name).astype(np.float32))
    manifest = {"prompt_len": layers[0].l, "rope": {"theta": 100.0, "style": "half"}, **(more or {})}
    (dump / "manifest.json").write_text(json.dumps(manifest))


def write_summary(out, l, options):
    out.mkdir()
    (out / "summary.json").write_text(json.dumps({"precision": "f64", "layers": [0, 1], "dump": {"l": l}, "options": options}))


def write_lines(path, header, lines):
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


def semantics_of(options):
    return settings(**options).semantics


def write_channels(out, dump, options):
    write_summary(out, load_layer(dump, 0).l, {"channels": options})
    given, checks, expected = settings(**options), [], {}
    for index in range(2):
        check = ChannelsCheck(Report(), out, load_layer(dump, index), index, given, ELEMENT_BYTES)
        check.folder.mkdir(parents=True)
        d = check.layer.k.shape[2]
        save = lambda name, x: np.save(check.folder / f"{name}.npy", x)  # noqa: B023,E731
        save("interaction", np.stack([x.H for x in check.problems]))
        save("output_interaction", np.stack([x.M for x in check.problems]))
        save("spectrum", np.stack([np.linalg.eigvalsh(x.H)[::-1] for x in check.problems]))
        save("rope_pair", rope_partners(check.layer))
        for rows, where in check.rows.items():
            save(f"query_{rows}_mean", check.layer.q[:, where].mean(axis=1))
            save(f"query_{rows}_std", check.layer.q[:, where].std(axis=1))
        for name in GREEDY:
            orders = [x.order(name) for x in check.problems]
            save(f"{name}_order", np.array([x + [-1] * (d - len(x)) for x in orders], np.int32))
        for method, ratio in itertools.product(given.methods, given.ratios):
            count = channels_pruned(ratio, d, given.semantics)
            save(f"{method}-{ratio}", np.stack([x.smallest(count) if method == "convex" else x.select(method, count)[0] for x in check.problems]))
        check.check_sets()
        expected.update(check.expected())
        bounded = "convex" in given.methods and semantics_of(options) != "official"
        for (u, problem), ratio in itertools.product(enumerate(check.problems), given.ratios if bounded else ()):
            bound = error_of(problem.H, check.pruned["convex", ratio][u])
            expected[index, u, "convex", ratio, "window", "lower_bound"] = bound, 0
        checks.append(check)
    expected.update(of_model(checks, Slack()))
    lines = []
    for (layer, u, method, ratio, rows, metric), (value, _) in expected.items():
        if method == "think" and metric.endswith("_gain"):
            continue
        masks = [x.pruned[method, ratio] for x in checks if method and layer in (None, x.index)]
        counts = {int(n) for x in masks for v, n in enumerate(x.sum(axis=1)) if u is None or v in checks[0].of_head[u]}
        place = ["" if x is None else x for x in (layer, u)]
        pruned = counts.pop() if len(counts) == 1 else ""
        lines.append([*place, method, given.semantics, ratio, given.recent, pruned, rows, metric, repr(float(value))])
    write_lines(out / "channels.csv", HEADER, lines)


def tampered(path):
    """Yields for every way of spoiling a file, and restores it at the end."""
    whole = path.read_bytes()
    if path.suffix == ".csv":
        lines = whole.decode().splitlines()
        for at in range(1, len(lines), max(1, len(lines) // 15)):
            head, _, value = lines[at].rpartition(",")
            changed = f"{head},{float(value) + 1e-6 * (1.0 if '_gain' in head else float(value))!r}"
            for some in ([changed], [], [lines[at], lines[at]]):
                path.write_text("\n".join([*lines[:at], *some, *lines[at + 1 :], ""]))
                yield f"{path.name} line {at}: {lines[at]}, now {some}"
    else:
        x = np.load(path)
        y = ~x if x.dtype == bool else x[..., ::-1] if x.dtype == np.int32 else x * (1 + 1e-6)
        for changed in (y, x[..., :-1]):
            np.save(path, changed)
            yield path.name
        path.unlink()
        yield f"no {path.name}"
    path.write_bytes(whole)


def test_check_finds_misses():
    runs = [options_of(methods=[*METHODS, "convex"]), options_of(semantics="official", protect=[10, 30])]
    runs += [options_of(semantics="kvpress", recent=0)]
    for options in runs:
        with tempfile.TemporaryDirectory() as folder:
            dump, out = Path(folder) / "dump", Path(folder) / "out"
            write_dump(dump, [tiny(13), tiny(14)])
            write_channels(out, dump, options)
            check = lambda: quietly(check_folder, out, dump, None, None)  # noqa: B023,E731
            assert check()
            files = [out / "channels.csv", *sorted((out / "layer_01" / "channels").glob("*.npy"))]
            for path in files if options is runs[0] else files[1::7]:
                for what in tampered(path):
                    assert not check(), what
            assert check()


def selftest():
    import golden_channels_cache_test

    for name, test in [*globals().items(), *((f"{x} of caches", y) for x, y in vars(golden_channels_cache_test).items())]:
        if name.startswith("test_"):
            test()
            print(f"ok {name}", flush=True)

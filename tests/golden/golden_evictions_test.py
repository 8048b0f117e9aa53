"""Self-test of the golden evictions: the same definitions again, in plain loops over tokens, on tiny random dumps."""
import contextlib
import functools
import io
import itertools
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from golden_dump import SAMPLE, Layer, load_layer
from golden_evictions import Errors, check_result, write_result
from golden_evictions_policies import Attention, Evictions, Options, Policy, caote, choose, pins, pooled, tokens_kept
from golden_tokens import Row, add_row_scores, exact_errors, head_metrics
from golden_tokens import caote as caote_by_definition

HERE = Path(__file__).resolve().parent
KVPRESS = HERE / "kvpress" / "kvpress-0.5.4.pystdlib-lm.npz"
SEMANTICS = ["paper", "official", "kvpress"]
EXACT = ["exact_value", "exact_key", "exact_joint", "exact_remove"]
SCORES = ["attn", "attn_sq", "value", "key", "joint", "caote", "fastcaote", "knorm", "keydiff", *EXACT]


def tiny(seed, l=21, steps=6, wo=True, peak=2.0, **manifest):
    """4 query heads on 2 KV heads, d 6, d_v 5; `peak` scales the logits, position 0 is something of a sink."""
    r = np.random.default_rng(seed)
    q, k, v = peak * r.standard_normal((4, l + steps, 6)), r.standard_normal((2, l + steps, 6)), r.standard_normal((2, l + steps, 5))
    q[1] += 3 * k[0, 0]
    manifest = {"prompt_len": l, "rope": {"theta": 100.0, "style": "half"}, **manifest}
    return Layer(q, k, v, r.standard_normal((4, 5, 7)) if wo else None, manifest)


KINDS = {
    "plain": {},
    "sliding": {"sliding_window": 9},
    "capped": {"logit_softcap": 3.0},
    "sink logit": {"sink_logit": [[0.5, 2.0, -1.0, 0.0]]},
}


# ---------------------------------------------------------------- the definitions, in loops


@functools.lru_cache(maxsize=1 << 16)
def logit(layer, h, i, p):
    raw = layer.scale * sum(layer.q[h, i - layer.first_row] * layer.k[h // layer.group, p])
    return (layer.cap * math.tanh(raw / layer.cap), raw) if layer.cap else (raw, raw)


def attend(layer, h, i, cache, zero_key=None, zero_value=None):
    """(weights by position, output)"""
    return attend_to(layer, h, i, tuple(cache), zero_key, zero_value)


@functools.lru_cache(maxsize=1 << 17)
def attend_to(layer, h, i, cache, zero_key, zero_value):
    seen = [p for p in cache if p <= i and (not layer.sliding or p > i - layer.sliding)]
    z = {p: 0.0 if p == zero_key else logit(layer, h, i, p)[0] for p in seen}
    extra = [] if layer.sinks is None else [layer.sinks[h]]
    peak = max([*z.values(), *extra], default=0.0)
    total = sum(math.exp(x - peak) for x in [*z.values(), *extra])
    a = {p: math.exp(z[p] - peak) / total for p in seen}
    o = sum((a[p] * layer.v[h // layer.group, p] for p in seen if p != zero_value), np.zeros(layer.v.shape[2]))
    return a, o


def size(x):
    return float(sum(y * y for y in x))


def row_score(layer, name, h, i, cache, p):
    a, o = attend(layer, h, i, cache)
    if p not in a:
        return 0.0
    v, (z, raw) = layer.v[h // layer.group, p], logit(layer, h, i, p)
    taylor = raw * (1 - (z / layer.cap) ** 2) if layer.cap else z
    without = [m for m in cache if m != p]
    return {
        "attn": lambda: a[p],
        "attn_sq": lambda: a[p] ** 2,
        "value": lambda: a[p] ** 2 * size(v),
        "key": lambda: (a[p] * taylor) ** 2 * size(v - o),
        "joint": lambda: a[p] ** 2 * size(v + taylor * (v - o)),
        "exact_value": lambda: size(attend(layer, h, i, cache, zero_value=p)[1] - o),
        "exact_key": lambda: size(attend(layer, h, i, cache, zero_key=p)[1] - o),
        "exact_joint": lambda: size(attend(layer, h, i, cache, zero_key=p, zero_value=p)[1] - o),
        "exact_remove": lambda: size(attend(layer, h, i, without)[1] - o),
    }[name]()


def window_of(base, semantics, l, given):
    if given:
        return min(given, l)
    if base == "h2o":
        return l
    return 1 if base == "tova" else min(64 if semantics == "kvpress" else 32, l)


def head_scores(layer, score, h, cache, sums):
    """{p: score} of one query head from its sums {p: row score, or attention for caote}."""
    g = h // layer.group
    v, k = layer.v[g], layer.k[g]
    if score in ("caote", "fastcaote"):
        whole = sum(sums.values())
        s = {p: x / whole for p, x in sums.items()}
        mean = sum(v[p] * (s[p] if score == "caote" else 1 / len(cache)) for p in cache)
        return {p: s[p] / (1 - s[p]) * math.sqrt(size(mean - v[p])) for p in cache}
    if score == "knorm":
        return {p: -math.sqrt(size(k[p])) for p in cache}
    if score == "keydiff":
        mean = sum(k[p] / math.sqrt(size(k[p])) for p in cache)
        return {p: -float(k[p] @ mean) / math.sqrt(size(k[p]) * size(mean)) for p in cache}
    return sums


def ranking_scores(layer, base, score, semantics, cache, sums_of_head):
    """[{p: score} for every KV head]"""
    by_head = [head_scores(layer, score, h, cache[h // layer.group], sums_of_head(h)) for h in range(layer.n_q)]
    found = []
    for g in range(layer.n_kv):
        heads = range(layer.n_q) if base == "tova" and semantics != "paper" else layer.heads_of(g)
        found.append({p: sum(by_head[h][p] for h in heads) for p in cache[g]})
    return found


def keep(scores, budget, base, semantics, l, rows, end, window, given):
    """Positions kept of {p: score}; `end` is one past the newest token, `window` the tokens not pooled (None: all)."""
    cache = sorted(scores)
    if base == "streaming":
        return cache if len(cache) <= budget else sorted(cache[: min(4, budget)] + cache[len(cache) - max(budget - 4, 0) :])
    if base == "h2o" and semantics == "kvpress":
        scores = {p: x / min(rows, end - p) for p, x in scores.items()}
    w = window_of(base, semantics, l, given.window)
    if window is not None and (base == "snapkv" or given.pool):
        kind, width = given.pool or (("max", 7) if semantics == "paper" else ("avg", 5))
        before, after = cache[: max(len(cache) - window, 0)], cache[max(len(cache) - window, 0) :]
        smooth = {}
        for n, p in enumerate(before):
            near = [scores[before[m]] for m in range(n - width // 2, n + width // 2 + 1) if 0 <= m < len(before)]
            smooth[p] = max(near) if kind == "max" else sum(near) / width
        scores = {**smooth, **{p: scores[p] for p in after}}
    if semantics == "kvpress":
        recent = {"snapkv": w, "tova": 1}.get(base, 0)
    else:
        recent = {"snapkv": w, "h2o": (budget + 1) // 2}.get(base, 0)
    if given.recent is not None:
        recent = given.recent
    kept = set(cache[: min(given.sinks or 0, budget)])
    for p in reversed(cache):
        if recent > 0 and len(kept) < budget:
            kept.add(p)
        recent -= 1
    for p in sorted(cache, key=lambda p: (-scores[p], p)):
        if len(kept) < budget:
            kept.add(p)
    return sorted(kept)


def kept_by_blocks(layer, base, score, semantics, budget, m, given):
    """m = l is the prefill."""
    l = layer.l
    w = window_of(base, semantics, l, given.window)
    cache = [[] for _ in range(layer.n_kv)]
    for start in range(0, l, m):
        end = min(start + m, l)
        cache = [some + list(range(start, end)) for some in cache]
        rows = range(max(start, end - w), end)

        def sums(h):
            some = cache[h // layer.group]
            name = "attn" if score in ("caote", "fastcaote") else score
            if score in ("knorm", "keydiff"):
                return None
            return {p: sum(row_score(layer, name, h, i, some, p) for i in rows) for p in some}

        scores = ranking_scores(layer, base, score, semantics, cache, sums)
        n = len(rows)
        cache = [keep(x, budget, base, semantics, l, n, end, n, given) if len(x) > budget else sorted(x) for x in scores]
    return cache


def decode_errors(layer, base, score, semantics, budget, append_only, given):
    l = layer.l
    first_block = 128 if base == "keydiff" and semantics != "kvpress" else l
    cache = kept_by_blocks(layer, base, score, semantics, budget, first_block, given)
    name = "attn" if score in ("caote", "fastcaote") else score
    static = score in ("knorm", "keydiff")
    prompt = range(l - window_of(base, semantics, l, given.window), l)
    history = [[] for _ in range(layer.n_q)]
    last_row = given.decode_window is None and (base == "tova" or append_only)
    if not static and not last_row and given.decode_window is None:
        for h in range(layer.n_q):
            history[h].append({p: sum(row_score(layer, name, h, i, range(l), p) for i in prompt) for p in cache[h // layer.group]})
    window = 1 if last_row else given.decode_window or 10**6
    errors = []
    for i in range(l, layer.T):
        cache = [some + [i] for some in cache]
        error, whole = [0.0] * layer.n_kv, [0.0] * layer.n_kv
        for h in range(layer.n_q):
            g = h // layer.group
            full = attend(layer, h, i, range(layer.T))[1]
            error[g] += size(attend(layer, h, i, cache[g])[1] - full)
            whole[g] += size(full)
            if not static:
                history[h].append({p: row_score(layer, name, h, i, cache[g], p) for p in cache[g]})
        errors.append([x / y for x, y in zip(error, whole)])
        sums = lambda h: {p: sum(row.get(p, 0.0) for row in history[h][-window:]) for p in cache[h // layer.group]}  # noqa: B023,E731
        scores = ranking_scores(layer, base, score, semantics, cache, sums)
        rows = min(window, i + 1 - l + (len(prompt) if given.decode_window is None and not last_row else 0))
        for g, x in enumerate(scores):
            if append_only:
                divided = {p: s / min(rows, i + 1 - p) if base == "h2o" and semantics == "kvpress" else s for p, s in x.items()}
                if base == "streaming":
                    divided = {p: p for p in x}
                ahead = sum(divided[p] >= divided[i] for p in x if p != i)
                cache[g] = cache[g] if ahead < budget else cache[g][:-1]
            elif len(x) > budget:
                cache[g] = keep(x, budget, base, semantics, l, rows, i + 1, None, given)
    return np.array(errors).T, cache


def as_mask(positions, l):
    mask = np.zeros((len(positions), l), bool)
    for line, some in zip(mask, positions):
        line[some] = True
    return mask


# ---------------------------------------------------------------- tests


def test_row_scores_by_brute_force():
    names = [name for name in SCORES if name not in ("caote", "fastcaote", "knorm", "keydiff")]
    for (kind, manifest), peak in itertools.product(KINDS.items(), (1.0, 20.0)):
        layer = tiny(1, peak=peak, **manifest)
        cols = np.arange(layer.l)
        for h in range(layer.n_q):
            for i in (0, 1, 7, layer.l - 1):
                got = Attention(layer, h, [i], cols).sums(names)
                row = Row(layer, h, i)
                want = {name: np.zeros(layer.l) for name in names}
                add_row_scores(row, want)
                for name, error in zip(EXACT, exact_errors(row)):
                    want[name][row.candidates()] = error
                for name in names:
                    floor = 1e-13 * want[name].max() + 1e-30
                    np.testing.assert_allclose(got[name], want[name], rtol=1e-8, atol=floor, err_msg=f"{kind} {name} h {h} i {i}")


def test_window_sums_and_oracles():
    layer = tiny(2)
    evictions = Evictions(layer, 0)
    for g in range(2):
        want = head_metrics(layer, g, 8)
        for name in ("attn", "joint", "exact_remove"):
            got = sum(evictions.window_sums(h, 8, name) for h in layer.heads_of(g))
            np.testing.assert_allclose(got, want[name], rtol=1e-9, atol=1e-14)
        for name in ("oracle_future", "oracle_next", "oracle_importance"):
            np.testing.assert_allclose(evictions.future_score(g, name), want[name], rtol=1e-9)
        policy = Policy("snapkv+expected_attention", "paper")
        np.testing.assert_allclose(evictions.static_score(policy, g), want["expected_attention"], rtol=1e-9)


def test_caote_of_a_sink():
    r = np.random.default_rng(3)
    for attn in ([1.0, 1e-9, 2e-12], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]):
        v = r.standard_normal((3, 4))
        for fast, want in zip((False, True), caote_by_definition(np.array(attn), v)):
            np.testing.assert_allclose(caote(np.array(attn), v, fast), want, rtol=1e-9)


def test_counting():
    assert [tokens_kept(s, 1000, "kvpress") for s in (0.5, 0.8, 0.9)] == [500, 199, 99]
    assert [tokens_kept(s, 1000, "paper") for s in (0.5, 0.8, 0.9)] == [500, 200, 100]
    assert [tokens_kept(s, 896, "kvpress") for s in (0.5, 0.8, 0.9)] == [448, 179, 89]
    assert tokens_kept(0.5, 5, "paper") == 3


def test_pins_pool_and_ties():
    assert np.flatnonzero(pins(10, 5, 4, 3)).tolist() == [0, 1, 2, 3, 9]
    assert np.flatnonzero(pins(10, 3, 4, 3)).tolist() == [0, 1, 2]
    assert np.flatnonzero(pins(10, 5, 2, 99)).tolist() == [0, 1, 7, 8, 9]
    x = np.array([1.0, 5, 2, 0, 9, 7])
    assert pooled(x, ("max", 3), 4).tolist() == [5, 5, 5, 2, 9, 7]
    assert pooled(x, ("avg", 3), 4).tolist() == [2, 8 / 3, 7 / 3, 2 / 3, 9, 7]
    kept, near = choose(np.array([1.0, 2, 2, 2, 0]), 2, np.array([False] * 4 + [True]))
    assert np.flatnonzero(kept).tolist() == [1, 4] and not near.any()
    kept, near = choose(np.array([1.0, 2, 2 + 1e-12, 0]), 1, np.zeros(4, bool))
    assert np.flatnonzero(kept).tolist() == [2] and np.flatnonzero(near).tolist() == [1, 2]


def test_kept_sets_in_loops():
    policies = ["streaming", "knorm", "keydiff", *(f"{base}+{score}" for base in ("h2o", "tova", "snapkv") for score in SCORES)]
    options = [Options(), Options(window=5, recent=3, sinks=2, pool=("max", 3))]
    for (kind, manifest), given in itertools.product(KINDS.items(), options):
        layer = tiny(4, **manifest)
        evictions = Evictions(layer, 0)
        for semantics, name in itertools.product(SEMANTICS, policies):
            base, _, score = name.partition("+")
            if base in ("streaming", "knorm", "keydiff") and given.sinks:
                continue
            if kind != "plain" and score not in ("attn", "joint", "caote"):
                continue
            policy = Policy(name, semantics, given)
            score = score or {"streaming": "knorm"}.get(base, base)
            for budget, m in ((6, layer.l), (11, layer.l), (7, 8)):
                want = as_mask(kept_by_blocks(layer, base, score, semantics, budget, m, given), layer.l)
                got, _ = evictions.prefill(policy, budget) if m == layer.l else evictions.blockwise(policy, budget, m)
                assert (got == want).all(), f"{kind} {name} {semantics} budget {budget} m {m}\n{got.astype(int)}\n{want.astype(int)}"


def test_decode_in_loops():
    layer = tiny(5, l=17)
    evictions = Evictions(layer, 0)
    policies = ["streaming", "knorm", "keydiff", "h2o+attn", "h2o+joint", "h2o+caote"]
    policies += ["tova+attn", "tova+fastcaote", "snapkv+attn", "snapkv+exact_remove"]
    options = [Options(window=4), Options(window=4, decode_window=2, recent=2, sinks=1)]
    for given, semantics, name, append_only in itertools.product(options, SEMANTICS, policies, (False, True)):
        base, _, score = name.partition("+")
        if base in ("streaming", "knorm", "keydiff") and given.sinks:
            continue
        score = score or {"streaming": "knorm"}.get(base, base)
        want, cache = decode_errors(layer, base, score, semantics, 6, append_only, given)
        found = evictions.decode(Policy(name, semantics, given), 6, append_only)
        assert not found.near.any() and (found.kept == as_mask([[p for p in x if p < layer.l] for x in cache], layer.l)).all()
        assert found.count.tolist() == [len(x) for x in cache]
        where = f"{name} {semantics} {given} append-only {append_only}"
        np.testing.assert_allclose(found.trace(), want, rtol=1e-9, atol=1e-15, err_msg=where)


def test_errors_in_loops():
    for manifest in KINDS.values():
        layer = tiny(6, **manifest)
        kept = np.random.default_rng(7).random((2, layer.l)) < 0.3
        kept[:, : layer.l - 4] &= kept[0, : layer.l - 4] if layer.sliding else True
        found = Errors(layer, Evictions(layer, 0), 8, [2, 4]).figures(kept)
        rows = {"window": range(layer.l - 8, layer.l), "future": range(layer.l, layer.T)}
        for name, where in rows.items():
            change, full = np.zeros((2, layer.T, 4, 5))
            for i, h in itertools.product(where, range(4)):
                cache = [p for p in range(layer.T) if p >= layer.l or kept[h // 2, p]]
                full[i, h] = attend(layer, h, i, range(layer.T))[1]
                change[i, h] = attend(layer, h, i, cache)[1] - full[i, h]
            for g in range(2):
                want = (change[:, 2 * g : 2 * g + 2] ** 2).sum() / (full[:, 2 * g : 2 * g + 2] ** 2).sum()
                np.testing.assert_allclose(found[name, "output_error", g][0], want, rtol=1e-12)
            change, full = (np.einsum("ihv,hvm->im", x, layer.wo) for x in (change, full))
            np.testing.assert_allclose(found[name, "layer_output_error", None][0], (change**2).sum() / (full**2).sum(), rtol=1e-12)
        importance = [head_metrics(layer, g, 8)["oracle_importance"] for g in range(2)]
        for g, e in enumerate(importance):
            n = int(kept[g].sum())
            best = sorted(e, reverse=True)
            np.testing.assert_allclose(found["future", "eviction_loss", g][0], sum(e[~kept[g]]), rtol=1e-12)
            gap = sum(e[~kept[g]]) - sum(best[n:])
            np.testing.assert_allclose(found["future", "optimality_gap", g][0], gap, rtol=1e-9, atol=1e-15)
            np.testing.assert_allclose(found["future", "oracle_recall", g][0], sum(e[kept[g]] >= best[n - 1]) / n)
            assert found["future", "bytes", g][0] == n * (6 * 2 + 5 * 4)


def test_everything_and_nothing_kept():
    layer = tiny(8)
    errors = Errors(layer, Evictions(layer, 0), 8, [2, 2])
    everything = errors.figures(np.ones((2, layer.l), bool))
    assert all(everything[rows, "output_error", g][0] < 1e-30 for rows in ("window", "future") for g in (0, 1))
    assert everything["future", "eviction_loss", 0][0] == 0
    for semantics in SEMANTICS:
        best = errors.figures(Evictions(layer, 0).prefill(Policy("oracle", semantics), 6)[0])
        assert best["future", "optimality_gap", 1][0] == 0 and best["future", "oracle_recall", 1][0] == 1
    nothing = errors.figures(np.zeros((2, layer.l), bool))
    np.testing.assert_allclose(nothing["window", "output_error", 0][0], 1.0)


def quietly(f, *args):
    with contextlib.redirect_stdout(io.StringIO()):
        return f(*args)


def test_check_finds_misses():
    layer = tiny(9)
    with tempfile.TemporaryDirectory() as folder:
        dump, out = Path(folder) / "dump", Path(folder) / "out"
        (dump / "layer_00").mkdir(parents=True)
        for name in ("q", "k", "v", "wo"):
            np.save(dump / "layer_00" / f"{name}.npy", getattr(layer, name).astype(np.float32))
        (dump / "manifest.json").write_text(json.dumps({"prompt_len": layer.l}))
        phases = ["prefill", "blockwise:8", "decode", "append-only"]
        out.mkdir()
        quietly(write_result, dump, out, ["snapkv+joint", "h2o", "tova+caote"], SEMANTICS, [0.5], phases, Options(window=4), [0], None)
        check = lambda: quietly(check_result, out, dump, [0], Options(window=4), None)  # noqa: E731
        assert check()
        for path in (out / "evictions.csv", out / "decode.csv"):
            text = path.read_text()
            lines = text.splitlines()
            head, _, value = lines[3].rpartition(",")
            path.write_text("\n".join([*lines[:3], f"{head},{float(value) * (1 + 1e-7)!r}", *lines[4:], ""]))
            assert not check(), path
            path.write_text(text)
        for path, change in ((next((out / "decode").glob("*.npy")), 1e-7), (next((out / "layer_00" / "kept").glob("*.npy")), None)):
            x = np.load(path)
            y = ~x if change is None else x * (1 + change)
            np.save(path, y)
            assert not check(), path
            np.save(path, x)
        assert check()


def test_kvpress_keeps_the_same():
    if not KVPRESS.exists() or not SAMPLE.exists():
        raise FileNotFoundError(KVPRESS)
    golden = np.load(KVPRESS)
    for index in range(6):
        evictions = Evictions(load_layer(SAMPLE, index), index)
        for name in ("streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention"):
            for ratio in (0.5, 0.8, 0.9):
                want = np.unpackbits(golden[f"{name}-{ratio}.kept"], axis=-1, count=evictions.layer.l)[index].astype(bool)
                got, _ = evictions.prefill(Policy(name, "kvpress"), tokens_kept(ratio, evictions.layer.l, "kvpress"))
                assert (got == want).all(), f"layer {index} {name} {ratio}"


def selftest():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"ok {name}", flush=True)

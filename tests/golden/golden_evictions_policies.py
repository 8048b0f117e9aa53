"""Kept sets of the eviction policies, computed from their definitions in float64. The program is golden_evictions.py.

A *unit* is the list of KV heads that share one ranking: one head each, or the whole layer (TOVA official and kvpress).
Arrays of a unit have one line per query head, [heads, columns]; columns are cache positions in ascending order.
"""
from dataclasses import dataclass, replace

import numpy as np
from golden_tokens import EXPECTED_AHEAD, EXPECTED_EPSILON, EXPECTED_SKIP, rotation, softmax, squared_norm

BASES = ["streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention", "score", "random", "oracle", "oracle_exact"]
ROW_SCORES = ["attn", "attn_sq", "value", "key", "joint", "exact_value", "exact_key", "exact_joint", "exact_remove"]
FROM_ATTENTION = ["caote", "fastcaote"]  # computed from the attention sums of a query head
FROM_KEYS = ["knorm", "keydiff"]
FROM_FUTURE = {"oracle_importance", "oracle_future"}
OWN_SCORE = {
    "knorm": "knorm", "keydiff": "keydiff", "expected_attention": "expected_attention",
    "oracle": "oracle_importance", "oracle_exact": "oracle_future",
}  # fmt: skip
KEYDIFF_BLOCK = 128


class Unknown(Exception):
    """A policy, phase or score that has no definition here."""


def half_up(x):
    return int(np.floor(x + 0.5))


def tokens_kept(sigma, l, semantics):
    return int(l * (1 - sigma)) if semantics == "kvpress" else half_up((1 - sigma) * l)


# ---------------------------------------------------------------- attention of some rows over some columns


class Attention:
    """Rows of query head h over the columns `cols`: a, z [r, c] (z is 0 and a is 0 where hidden), o [r, d_v], v [c, d_v].

    taylor is what the Taylor scores use for z. The column with a > 1/2 of a row, of which there is at most one, is
    `top`: its difference to the output comes from the sum over the other columns.
    """

    def __init__(self, layer, h, rows, cols):
        rows, cols = np.asarray(rows), np.asarray(cols)
        g = h // layer.group
        raw = layer.scale * layer.q[h, rows - layer.first_row] @ layer.k[g, cols].T
        z = layer.cap * np.tanh(raw / layer.cap) if layer.cap else raw
        taylor = raw * (1 - (z / layer.cap) ** 2) if layer.cap else raw
        seen = visible(layer, rows, cols)
        sink = None if layer.sinks is None else layer.sinks[h]
        self.v, self.seen, self.sink = layer.v[g, cols], seen, sink
        self.z, self.taylor = np.where(seen, z, 0.0), np.where(seen, taylor, 0.0)
        self.a = masked_softmax(z, seen, sink)
        self.o = self.a @ self.v

    def differences(self, start, end):
        """Rows start..end-1: v_p - o_i [r, c, d_v]; the top columns [r] with the others' o' [r, d_v], 1 - a [r] and LSE' [r]."""
        a, z, seen = self.a[start:end], self.z[start:end], self.seen[start:end]
        difference = self.v[None] - self.o[start:end, None]
        r = np.arange(len(a))
        top = a.argmax(axis=1)
        others = seen.copy()
        others[r, top] = False
        rest = masked_softmax(z, others, self.sink)
        other_output = rest @ self.v
        lse = log_sum(z, others, self.sink)
        # 1 - a = sigma(LSE' - z)
        share = np.exp(-np.logaddexp(0.0, z[r, top] - lse))
        difference[r, top] = share[:, None] * (self.v[top] - other_output)
        return difference, top, other_output, share, lse

    def sums(self, names):
        """{name: [c]}: the scores in `names` summed over the rows."""
        total = {name: np.zeros(len(self.v)) for name in names}
        if "attn" in total:
            total["attn"] += self.a.sum(axis=0)
        if "attn_sq" in total:
            total["attn_sq"] += (self.a**2).sum(axis=0)
        for name in ("value", "exact_value"):
            if name in total:
                total[name] += (self.a**2).sum(axis=0) * squared_norm(self.v)
        if {"key", "joint", "exact_key", "exact_joint", "exact_remove"} & set(names):
            step = max(1, 4_000_000 // self.v.size)
            for start in range(0, len(self.a), step):
                self.add_differences(total, start, min(start + step, len(self.a)))
        return total

    def add_differences(self, total, start, end):
        a, z, seen = self.a[start:end], self.taylor[start:end], self.seen[start:end]
        difference, top, other_output, share, lse_top = self.differences(start, end)
        distance = squared_norm(difference)
        if "key" in total:
            total["key"] += ((a * z) ** 2 * distance).sum(axis=0)
        if "joint" in total:
            total["joint"] += (a**2 * squared_norm(self.v[None] + z[:, :, None] * difference)).sum(axis=0)
        if not {"exact_key", "exact_joint", "exact_remove"} & set(total):
            return
        # Without p the output is o' and the others' log-sum LSE'; v_p - o' = (v_p - o) / (1 - a).
        r = np.arange(len(a))
        left = 1 - a
        left[r, top] = share
        empty = left == 0
        from_others = difference / np.where(empty, 1.0, left)[:, :, None]
        from_others[r, top] = self.v[top] - other_output
        if "exact_remove" in total:
            total["exact_remove"] += (a**2 * squared_norm(from_others)).sum(axis=0)
        if not {"exact_key", "exact_joint"} & set(total):
            return
        lse = log_sum(self.z[start:end], seen, self.sink)[:, None] + np.log(np.where(left > 0, left, 1.0))
        lse[r, top] = lse_top
        # With a logit of 0 the token's weight is 1 / (1 + exp(LSE')).
        change = np.where(seen, np.exp(-np.logaddexp(0.0, lse)) - a, 0.0)
        if "exact_key" in total:
            total["exact_key"] += (change**2 * squared_norm(from_others)).sum(axis=0)
        if "exact_joint" in total:
            others = self.v[None] - from_others
            total["exact_joint"] += squared_norm(a[:, :, None] * self.v[None] + change[:, :, None] * others).sum(axis=0)


def visible(layer, rows, cols):
    rows, cols = np.asarray(rows)[:, None], np.asarray(cols)[None, :]
    seen = cols <= rows if layer.causal else np.ones((rows.shape[0], cols.shape[1]), bool)
    return seen & (cols > rows - layer.sliding) if layer.sliding else seen


def log_sum(z, seen, sink):
    """[r] log of the sum of exp over what is seen; -inf where nothing is."""
    z = np.where(seen, z, -np.inf)
    if sink is not None:
        z = np.concatenate([z, np.full((len(z), 1), sink)], axis=1)
    return np.logaddexp.reduce(z, axis=1)


def masked_softmax(z, seen, sink):
    """[r, c], 0 where hidden and in a row that sees nothing; a sink logit takes its share."""
    z = np.where(seen, z, -np.inf)
    peak = z.max(axis=-1, keepdims=True)
    peak = np.maximum(peak, sink) if sink is not None else np.where(np.isfinite(peak), peak, 0.0)
    e = np.exp(z - peak)
    total = e.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - peak)
    return e / np.where(total > 0, total, 1.0)


# ---------------------------------------------------------------- scores that are no sums over rows


def caote(attn, v, fast):
    """[c] from the attention sums [c] of one query head and the candidates' values [c, d_v]."""
    total = attn.sum()
    s = attn / total if total > 0 else attn
    top = int(s.argmax())
    others = s.copy()
    others[top] = 0.0
    rest = 1 - s
    rest[top] = others.sum()
    if fast:
        distance = np.sqrt(squared_norm(v.mean(axis=0) - v))
    else:
        distance = np.sqrt(squared_norm(s @ v - v))
        distance[top] = np.sqrt(squared_norm(others @ (v - v[top])))  # sum_m s_m (v_m - v_p): the shares sum to 1
    if rest[top] == 0:  # one token has everything
        alone = (np.inf if s[top] * distance[top] > 0 else 0.0) if fast else s[top] * np.sqrt(squared_norm(v[top]))
        score = s * distance / np.where(rest > 0, rest, 1.0)
        score[top] = alone
        return score
    return s / rest * distance


def key_score(name, k):
    """[c] of one KV head's keys [c, d]."""
    norm = np.sqrt(squared_norm(k))
    if name == "knorm":
        return -norm
    unit = k / np.where(norm > 0, norm, 1.0)[:, None]
    mean = unit.mean(axis=0)
    size = np.sqrt(squared_norm(mean))
    return -(unit @ (mean / size if size > 0 else mean))


def expected_attention(layer, g, epsilon, through_output):
    """[l]; the first EXPECTED_SKIP positions get the largest score.

    through_output: ||v W_O(h)|| of each query head in place of ||v||, where the dump has W_O.
    """
    l, skip = layer.l, EXPECTED_SKIP
    if layer.inv_freq is None or layer.first_row > 0 or l <= skip:
        raise Unknown("expected_attention needs the dump's RoPE and every prompt query")
    ahead = np.mean([rotation(layer, l + j) for j in range(EXPECTED_AHEAD)], axis=0)
    k, v = layer.k[g, skip:l], layer.v[g, skip:l]
    undo = np.stack([np.linalg.inv(rotation(layer, i)) for i in range(skip, l)])
    score = np.zeros(l - skip)
    for h in layer.heads_of(g):
        q = np.einsum("pcd,pd->pc", undo, layer.q[h, skip:l])
        mu = q.mean(axis=0)
        sigma = (q - mu).T @ (q - mu) / len(q)
        e = layer.scale * (k @ (ahead @ mu)) + layer.scale**2 / 2 * np.einsum("pc,pc->p", k @ (ahead @ sigma @ ahead.T), k)
        seen_by_output = v @ layer.wo[h] if through_output and layer.wo is not None else v
        score += (softmax(e) + epsilon) * np.sqrt(squared_norm(seen_by_output)) / layer.group
    return np.concatenate([np.full(skip, score.max()), score])


# ---------------------------------------------------------------- a policy's settings


@dataclass
class Options:
    """What the command line overrides; None is the base's own."""

    window: int = None
    recent: int = None
    sinks: int = None
    pool: tuple = None  # ("max", 7), ("avg", 5) or ("none", 1)
    decode_window: int = None
    seed: int = 0  # of random
    heads: str = "head"  # random: a draw for each, or one for the "layer"
    user_scores: dict = None  # name: [layers, n_kv, l]
    near: float = 1e-9  # scores this close (relative) to the cut, without being equal, may go either way


def parse_pool(text):
    """("max", 7) of "max:7" and of "7"; ("none", 1) of "none"."""
    kind, _, width = (f"max:{text}" if text.isdigit() else text).partition(":")
    return (kind, int(width or 1))


def own_options(name, options):
    """The options of "snapkv[window=64,pool=7]": what its brackets say, before those of all policies."""
    words = [item.split("=") for item in name.rstrip("]").partition("[")[2].split(",") if item]
    return replace(options, **{key: parse_pool(value) if key == "pool" else value if key == "heads" else int(value) for key, value in words})


def lots(seed, layer, head, seen, positions):
    """[c] in [0, 1): a hash of the five numbers, each mixed in by a round of SplitMix64."""
    bits = np.zeros(len(positions), np.uint64)
    with np.errstate(over="ignore"):
        for number in (seed, layer, head, seen, positions):
            bits += np.uint64(0x9E3779B97F4A7C15) + np.asarray(number, np.int64).astype(np.uint64)
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
            bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)) * 2.0**-53


class Policy:
    def __init__(self, name, semantics, options=None):
        self.options = own_options(name, options or Options())
        self.name, self.semantics = name, semantics
        plain = name.partition("[")[0]
        self.base, _, score = plain.partition(":" if plain.startswith("score:") else "+")
        self.score = score or OWN_SCORE.get(self.base, "attn")
        self.own_score = not score
        user = self.options.user_scores or {}
        known = {*ROW_SCORES, *FROM_ATTENTION, *FROM_KEYS, *FROM_FUTURE, "oracle_next", "expected_attention", *user}
        if self.base not in BASES or self.score not in known:
            raise Unknown(f"no definition of {name}")
        kvpress = semantics == "kvpress"
        self.shared = self.base == "tova" and semantics != "paper"
        self.mean = kvpress or self.shared
        self.divide = kvpress and self.base == "h2o"
        own_pool = ("max", 7) if semantics == "paper" else ("avg", 5)
        self.pool = self.options.pool or (own_pool if self.base == "snapkv" else None)

    def window(self, l):
        own = {"h2o": l, "tova": 1, "score": 32}.get(self.base, 64 if self.semantics == "kvpress" else 32)
        return min(self.options.window or own, l)

    def sinks(self):
        if self.options.sinks is not None:
            return self.options.sinks
        return {"streaming": 4, "expected_attention": EXPECTED_SKIP}.get(self.base, 0)

    def recent(self, budget, l):
        """How many of the last tokens are pinned."""
        if self.base == "streaming":
            return 1 << 40
        if self.options.recent is not None:
            return self.options.recent
        if self.base == "h2o":
            return 0 if self.semantics == "kvpress" else half_up(budget / 2)
        if self.base == "snapkv":
            return self.window(l)
        return 1 if self.base == "tova" and self.semantics == "kvpress" else 0

    def units(self, layer):
        return [list(range(layer.n_kv))] if self.shared else [[g] for g in range(layer.n_kv)]


def pooled(x, pool, covered):
    """x [c] with its first `covered` entries pooled, stride 1, centred; what lies outside is ignored (max) or 0 (avg)."""
    kind, width = pool or ("none", 1)
    if kind == "none" or width == 1 or covered <= 0:
        return x
    fill = -np.inf if kind == "max" else 0.0
    before = width // 2
    padded = np.concatenate([np.full(before, fill), x[:covered], np.full(width - 1 - before, fill)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.concatenate([windows.max(axis=1) if kind == "max" else windows.sum(axis=1) / width, x[covered:]])


def pins(count, budget, sinks, recent):
    """bool [count]: the first `sinks` and last `recent`; beyond the budget sinks first, then the most recent."""
    pinned = np.zeros(count, bool)
    sinks = min(sinks, budget, count)
    recent = min(recent, budget - sinks, count)
    pinned[:sinks] = True
    if recent > 0:
        pinned[max(count - recent, 0) :] = True
    return pinned


def choose(score, budget, pinned, tolerance=1e-9):
    """(kept bool [c], near bool [c]): pinned ones, then the best; among equals the lower index. near: what rounding could swap."""
    rank = np.where(pinned, np.inf, score)
    order = np.lexsort((np.arange(len(score)), -rank, ~pinned))
    kept = np.zeros(len(score), bool)
    kept[order[:budget]] = True
    near = np.zeros(len(score), bool)
    free_kept, dropped = kept & ~pinned, ~kept
    if free_kept.any() and dropped.any():
        low, high = score[free_kept].min(), score[dropped].max()
        size = max(abs(low), abs(high))
        if np.isfinite(size) and low - high <= tolerance * size:
            around = ~pinned & (np.abs(score - low) <= tolerance * size)
            if (score[around] != low).any():
                near = around
    return kept, near


# ---------------------------------------------------------------- prefill, block-wise, decode


class Evictions:
    """Kept sets of one layer; remembers what policies share."""

    def __init__(self, layer, index):
        self.layer, self.index = layer, index
        self.sums_of_window = {}

    def window_sums(self, h, w, name):
        """[l]: prefill sums of a row score over the last w prompt rows."""
        key = (h, w)
        have = self.sums_of_window.setdefault(key, {})
        if name not in have:
            layer = self.layer
            cols = np.arange(layer.l if layer.causal else layer.T)
            names = ["attn", "value", "key", "joint"] if name in ("attn", "value", "key", "joint") else [name]
            have.update({n: x[: layer.l] for n, x in Attention(layer, h, layer.window_rows(w), cols).sums(names).items()})
        return have[name]

    def future_score(self, g, name):
        layer, l = self.layer, self.layer.l
        rows = layer.future_rows() if name != "oracle_next" else range(l, l + 1)
        if len(rows) == 0 or rows[0] < layer.first_row or rows[-1] >= layer.T:
            raise Unknown("no decoding steps")
        total = np.zeros(l)
        for h in layer.heads_of(g):
            attention = Attention(layer, h, rows, np.arange(layer.T))
            if name == "oracle_importance":
                v = layer.v[g, :l]
                norm = np.sqrt(squared_norm(v if layer.wo is None else v @ layer.wo[h]))
                total += (attention.a[:, :l] * norm).max(axis=0)
            else:
                total += attention.sums(["exact_remove"])["exact_remove"][:l]
        return total

    def remember(self, key, make):
        if key not in self.sums_of_window:
            self.sums_of_window[key] = make()
        return self.sums_of_window[key]

    def static_score(self, policy, g):
        """[l] of scores that depend on no window, None for the others."""
        name = policy.score
        user = policy.options.user_scores or {}
        if name in user:
            return user[name][self.index, g]
        if name == "expected_attention":
            if policy.own_score and policy.semantics != "kvpress":
                return self.remember((g, "ea wo"), lambda: expected_attention(self.layer, g, EXPECTED_EPSILON, True))
            epsilon = 0.0 if policy.semantics == "kvpress" and policy.own_score else EXPECTED_EPSILON
            return self.remember((g, "ea", epsilon), lambda: expected_attention(self.layer, g, epsilon, False))
        if name in FROM_FUTURE or name == "oracle_next":
            return self.remember((g, name), lambda: self.future_score(g, name))
        return None

    def reduce(self, policy, per_head):
        """[c] from one line per head of the unit."""
        per_head = np.asarray(per_head)
        return per_head.mean(axis=0) if policy.mean else per_head.sum(axis=0)

    def unit_score(self, policy, unit, cols, row_sums, attention_sums):
        """[c] before division, pooling and pins. row_sums(h, name) and attention_sums(h) give [c] of a query head."""
        layer, name = self.layer, policy.score
        if name in FROM_KEYS:
            return np.mean([key_score(name, layer.k[g, cols]) for g in unit], axis=0)
        static = [self.static_score(policy, g) for g in unit]
        if static[0] is not None:
            if cols[-1] >= layer.l:
                raise Unknown(f"{name} of a decoded token")
            return np.mean([x[cols] for x in static], axis=0)
        heads = [h for g in unit for h in layer.heads_of(g)]
        if name in FROM_ATTENTION:
            fast = name == "fastcaote"
            return self.reduce(policy, [caote(attention_sums(h), layer.v[h // layer.group, cols], fast) for h in heads])
        return self.reduce(policy, [row_sums(h, name) for h in heads])

    def cut(self, policy, score, cols, budget, end, seen_by, window=None):
        """choose() on a cache whose newest token is end - 1.

        seen_by: last queries summed over; kvpress' h2o divides by how many of them see the token, l - j in its own prefill.
        window: how many last tokens the pooling leaves alone (None: no pooling).
        """
        if policy.divide:
            score = score / np.minimum(seen_by, end - cols)
        if window is not None:
            score = pooled(score, policy.pool, len(cols) - window)
        pinned = pins(len(cols), budget, policy.sinks(), policy.recent(budget, self.layer.l))
        return choose(score, budget, pinned, policy.options.near)

    def prefill(self, policy, budget):
        """(kept, near), bool [n_kv, l]"""
        if policy.base == "keydiff" and policy.semantics != "kvpress":
            return self.blockwise(policy, budget, KEYDIFF_BLOCK)
        layer = self.layer
        cols = np.arange(layer.l)
        kept, near = np.zeros((2, layer.n_kv, layer.l), bool)
        for unit in policy.units(layer):
            score, w = self.prefill_score(policy, unit, cols), policy.window(layer.l)
            rows = min(w, max(layer.l - layer.first_row, 1))  # that the dump holds
            kept[unit], near[unit] = self.cut(policy, score, cols, min(budget, layer.l), layer.l, rows, w)
        return kept, near

    def scoreless(self, policy, unit, cols, seen):
        """[c] of policies that rank by no score: by position, or by lot after `seen` positions; None for the others."""
        if policy.base == "random":
            return lots(policy.options.seed, self.index, -1 if policy.options.heads == "layer" else unit[0], seen, cols)
        return cols.astype(float) if policy.base == "streaming" and policy.own_score else None

    def prefill_score(self, policy, unit, cols):
        w = policy.window(self.layer.l)
        if (score := self.scoreless(policy, unit, cols, self.layer.l)) is not None:
            return score
        sums = lambda h, name="attn": self.window_sums(h, w, name)[cols]  # noqa: E731
        return self.unit_score(policy, unit, cols, sums, sums)

    def blockwise(self, policy, budget, m):
        """(kept, near); near covers the whole head once any of its cuts was close, because what follows depends on it."""
        layer = self.layer
        if policy.score == "expected_attention":
            raise Unknown("block-wise expected_attention")
        kept, near = np.zeros((2, layer.n_kv, layer.l), bool)
        for unit in policy.units(layer):
            cache = np.zeros(0, int)
            doubtful = False
            for start in range(0, layer.l, m):
                end = min(start + m, layer.l)
                cache = np.concatenate([cache, np.arange(start, end)])
                if len(cache) <= budget:
                    continue
                rows = range(max(start, end - policy.window(layer.l), layer.first_row), end)
                memory = {}

                def sums(h, name="attn"):
                    if h not in memory:
                        memory[h] = Attention(layer, h, rows, cache)
                    return memory[h].sums([name])[name]

                if (score := self.scoreless(policy, unit, cache, end)) is None:
                    score = self.unit_score(policy, unit, cache, sums, sums)
                stays, close = self.cut(policy, score, cache, budget, end, len(rows), len(rows))
                doubtful = doubtful or close.any()
                cache = cache[stays]
            kept[np.ix_(unit, cache)] = True
            near[unit] = doubtful
        return kept, near

    def decode(self, policy, budget, append_only=False):
        """The Decoding of this policy, from its own prefill on."""
        layer, l = self.layer, self.layer.l
        if policy.score in ("expected_attention", "oracle_next", *FROM_FUTURE, *(policy.options.user_scores or {})):
            raise Unknown(f"{policy.score} while decoding")
        steps = layer.future_rows()
        if len(steps) == 0 or steps[0] != l or not layer.causal:
            raise Unknown("decoding needs the queries of every step")
        start, doubt = self.prefill(policy, budget)
        found = Decoding(layer, doubt.any(axis=1))
        found.full = np.stack([self.full_output(h) for h in range(layer.n_q)])
        for unit in policy.units(layer):
            cache = self.decode_unit(policy, unit, budget, np.flatnonzero(start[unit[0]]), append_only, found)
            found.count[unit] = len(cache)
            found.kept[np.ix_(unit, cache[cache < l])] = True
        return found

    def decode_unit(self, policy, unit, budget, cache, append_only, found):
        """The cache after the last step."""
        layer, l, T = self.layer, self.layer.l, self.layer.T
        heads = [h for g in unit for h in layer.heads_of(g)]
        # a new token has one row: append-only compares it with the cache on that row
        last = policy.options.decode_window or (1 if policy.base == "tova" or append_only else None)
        name = "attn" if policy.score in FROM_ATTENTION else policy.score
        in_rows = name in ROW_SCORES and self.scoreless(policy, unit, cache, l) is None
        total = np.zeros((len(heads), T))  # accumulated row scores by position
        recent_rows = []
        if in_rows and last is None:
            for x, h in zip(total, heads):
                x[cache] = self.window_sums(h, policy.window(l), name)[cache]
        for i in range(l, T):
            seen_by = policy.window(l) + i + 1 - l if last is None else min(last, i + 1 - l)  # queries summed over
            cache = np.append(cache, i)
            row = np.zeros((len(heads), T))
            for n, h in enumerate(heads):
                attention = Attention(layer, h, [i], cache)
                found.change[h, i - l] = attention.o[0] - found.full[h, i - l]
                if in_rows:
                    row[n, cache] = attention.sums([name])[name]
            if last is None:
                total += row
            else:
                recent_rows = (recent_rows + [row])[-last:]
                total = np.sum(recent_rows, axis=0)
            by_head = dict(zip(heads, total))
            sums = lambda h, name=name: by_head[h][cache]  # noqa: E731
            score = self.scoreless(policy, unit, cache, i + 1)
            score = self.unit_score(policy, unit, cache, sums, sums) if score is None else score
            if append_only:
                score = score / np.minimum(seen_by, i + 1 - cache) if policy.divide else score
                stays, close = choose(score, budget, np.zeros(len(cache), bool), policy.options.near)
                found.near[unit] |= close[-1]
                cache = cache if stays[-1] else cache[:-1]
            elif len(cache) > budget:
                stays, close = self.cut(policy, score, cache, budget, i + 1, seen_by)
                found.near[unit] |= close.any()
                cache = cache[stays]
        return cache

    def full_output(self, h):
        """[steps, d_v]"""
        layer = self.layer
        return self.remember((h, "full"), lambda: Attention(layer, h, layer.future_rows(), np.arange(layer.T)).o)


class Decoding:
    """change, full [n_q, steps, d_v]: what each step's output differs by, and the output; kept [n_kv, l] and count [n_kv] (with
    decoded tokens): the cache at the end; near [n_kv]: heads where a cut was within rounding."""

    def __init__(self, layer, near):
        self.near = near
        self.change = np.zeros((layer.n_q, layer.T - layer.l, layer.v.shape[2]))
        self.kept = np.zeros((layer.n_kv, layer.l), bool)
        self.count = np.zeros(layer.n_kv, int)

    def trace(self):
        """[n_kv, steps] output error of every step"""
        error, size = (squared_norm(x).reshape(len(self.kept), -1, x.shape[1]).sum(axis=1) for x in (self.change, self.full))
        return error / size

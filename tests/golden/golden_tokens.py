"""Token scores, exact errors and oracles from their definitions; letters as in golden_dump.py.

Nothing here shares code or closed forms with the C++ toolkit: an exact error is found by changing the
cache (key zeroed, value zeroed, token removed), computing the attention again and comparing the outputs.
"""
import numpy as np
from golden_loss import token_losses

SCORES = ["attn", "attn_sq", "value", "key", "joint", "caote", "fastcaote", "knorm", "keydiff", "expected_attention"]
EXACT = ["exact_value", "exact_key", "exact_joint", "exact_remove"]
ORACLES = ["oracle_next", "oracle_future", "oracle_importance"]
LOSSES = {"exact_loss": "window", "oracle_loss": "future"}  # where the dump has gradients of these rows
METRICS = SCORES + EXACT + ["exact_loss"] + ORACLES + ["oracle_loss"]

EXPECTED_SKIP = 4  # first positions that expected_attention leaves out
EXPECTED_AHEAD = 512  # future positions over which it averages the rotation
EXPECTED_EPSILON = 0.02


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


def removal_change(row):
    """[c, d_v] change of the output when one candidate leaves and the rest is renormalised."""
    if len(row.z) == 1:  # nothing is left: the output becomes 0
        return -(row.o + row.residue)[None][: row.c]
    weights = softmax(altered_logits(row, -np.inf))
    return weights @ row.centred - row.residue


def removal_error(row):
    return squared_norm(removal_change(row))


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
    measured = {"window": layer.window_rows(w), "future": layer.future_rows()}
    for name, rows in LOSSES.items():
        found[name] = token_losses(layer, g, rows, measured[rows], Row, removal_change)
    return {name: found[name] for name in METRICS if found.get(name) is not None}

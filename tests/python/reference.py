"""What the package is judged by: attention anew for every change, in float64 and as the definitions say it (sim/tokens/METRICS.md)."""
import numpy as np


class Attention:
    """q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v] in float64."""

    def __init__(self, q, k, v, scale=None, causal=True, sliding_window=None, logit_softcap=None, sink_logit=None,
                 sliding_window_two_sided=False):
        self.q, self.k, self.v = (np.asarray(x, np.float64) for x in (q, k, v))
        self.scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
        self.causal, self.sliding_window, self.cap, self.sink = causal, sliding_window, logit_softcap, sink_logit
        self.two_sided = sliding_window_two_sided
        self.T, self.group = k.shape[1], q.shape[0] // k.shape[0]
        self.first_query = self.T - q.shape[1]

    def row(self, head, i):
        """Raw and capped logits of the query at position i, -inf where it does not see."""
        raw = self.scale * (self.k[head // self.group] @ self.q[head, i - self.first_query])
        seen = np.ones(self.T, bool)
        if self.causal:
            seen[i + 1:] = False
        if self.sliding_window is not None:
            seen[:max(i + 1 - self.sliding_window, 0)] = False
            if self.two_sided:
                seen[i + self.sliding_window:] = False
        z = raw if self.cap is None else self.cap * np.tanh(raw / self.cap)
        return raw, np.where(seen, z, -np.inf)

    def weights(self, head, z):
        sink = -np.inf if self.sink is None else self.sink[head]
        top = max(z.max(), sink)
        if top == -np.inf:
            return np.zeros(self.T)
        e = np.exp(z - top)
        return e / (e.sum() + np.exp(sink - top))

    def output(self, head, z):
        return self.weights(head, z) @ self.v[head // self.group]

    def metrics(self, l, window):
        """attn, joint, exact_remove: [n_kv, l] each."""
        n_kv = self.k.shape[0]
        found = {name: np.zeros((n_kv, l)) for name in ("attn", "joint", "exact_remove")}
        for head in range(self.q.shape[0]):
            g = head // self.group
            for i in range(max(l - window, self.first_query), l):
                raw, z = self.row(head, i)
                a, o = self.weights(head, z), self.output(head, z)
                found["attn"][g] += a[:l]
                taylor = raw if self.cap is None else raw * (1 - (np.tanh(raw / self.cap)) ** 2)
                change = self.v[g] + taylor[:, None] * (self.v[g] - o)
                found["joint"][g] += (a ** 2 * (change ** 2).sum(-1))[:l]
                for p in np.flatnonzero(z[:l] > -np.inf):
                    without = z.copy()
                    without[p] = -np.inf
                    found["exact_remove"][g, p] += ((self.output(head, without) - o) ** 2).sum()
        return found

    def output_error(self, kept, rows):
        """kept bool [n_kv, l]. What a sliding window no longer holds behind the prompt is never missing."""
        l = kept.shape[1]
        held = max(l - self.sliding_window + 1, 0) if self.sliding_window is not None and not self.two_sided else 0
        change = full = 0.0
        for head in range(self.q.shape[0]):
            gone = np.zeros(self.T, bool)
            gone[held:l] = ~kept[head // self.group][held:]
            for i in range(*rows):
                z = self.row(head, i)[1]
                o = self.output(head, z)
                full += (o ** 2).sum()
                change += ((self.output(head, np.where(gone, -np.inf, z)) - o) ** 2).sum()
        return change / full

"""Caches that evict while a model runs over them."""
from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np

from . import _core
from ._arrays import numbers
from ._evictions import POLICY
from ._layer import LAYER, Layer, Positions
from ._options import QUERIES, takes


class GrowingCaches(_core.GrowingCaches):
    """The caches of one layer while a model reads and decodes over them: what the policy evicts behind every chunk of rows
    (sim/eviction/POLICIES.md, Phases), by the numbers that the model makes of what is left.

        caches = GrowingCaches(n_q, n_kv, d, d_v, prompt_len, steps, policy="h2o", budget=64, phase="decode")
        while ...: left = caches.add(q, k, v)     # of the next caches.next_rows rows

    prompt_len positions are the prompt, `steps` may follow. phase: blockwise:N (chunks of N rows of the prompt), decode,
    decode:N or append-only (the prompt as one chunk, then single rows; prompt="whole" or "pinned" begins with all of it). On the rows of a dump they evict what evict() and `kvreplay evict`
    do. Further arguments as Layer takes them: scale, sliding_window, logit_softcap, sink_logit, wo, rope.

    .next_rows: rows of the chunk behind which it evicts; 0: it evicts no more. .heads: caches, KV heads, or query heads with
    per_query_head. .size: rows added so far. .budget: tokens.
    """

    @takes("growing_caches", LAYER, policy=POLICY, phase="blockwise:N, decode, decode:N (a cut every N steps) or append-only")
    def __init__(self, n_q: int, n_kv: int, d: int, d_v: int, prompt_len: int, steps: int = 0, *, policy: Optional[str] = None,
                 keep: Union[float, int, str, None] = None, sigma: Optional[float] = None, budget: Union[int, str, None] = None,
                 semantics: Optional[str] = None, phase: Optional[str] = None, decode_window: Optional[int] = None, prompt: Optional[str] = None,
                 window: Optional[Positions] = None, sinks: Optional[Positions] = None, recent: Optional[Positions] = None,
                 pool: Optional[str] = None, on: Optional[str] = None, by: Optional[str] = None,
                 per_query_head: Optional[bool] = None, backend: Optional[str] = None, precision: Optional[str] = None,
                 threads: Optional[int] = None, **layer: Any) -> None:
        T, dtype = prompt_len + steps, np.float64 if precision == "f64" else np.float32
        room = Layer(*(np.zeros((heads, T, width), dtype) for heads, width in ((n_q, d), (n_kv, d), (n_kv, d_v))), prompt_len,
                     **layer)
        self._extents, self._positions, given = (n_q, n_kv, d, d_v), T, locals()
        super().__init__(room, {name: given[name] for name in QUERIES["growing_caches"]})

    def add(self, q: Any, k: Any, v: Any) -> list[np.ndarray]:
        """The next rows: q [n_q, rows, d] after RoPE, k [n_kv, rows, d], v [n_kv, rows, d_v]. Of every cache the positions that
        leave it behind them, ascending."""
        (n_q, n_kv, d, d_v), room = self._extents, self._positions - self.size
        q, wanted = numbers("q", q, (n_q, -1, d)), self.next_rows
        rows = q.shape[1]
        if rows > room or wanted and rows != wanted:
            expected = "no more" if room < max(wanted, 1) else f"the next {wanted}" if wanted else f"at most {room}"
            raise _core.InputError(f"q: expected {expected} rows, found {rows}")
        return super().add(q, numbers("k", k, (n_kv, rows, d)), numbers("v", v, (n_kv, rows, d_v)))

    def __repr__(self) -> str:
        return f"GrowingCaches: {self.heads} of {self.budget} tokens, {self.size} positions so far"

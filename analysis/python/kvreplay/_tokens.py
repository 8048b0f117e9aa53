"""Scores and exact errors of single tokens."""
from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Union

import numpy as np

from ._equal import equal
from ._layer import LAYER, Positions, layer_of
from ._options import ask, takes
from ._show import head_names, heads, picture, table


class TokenMetrics(Dict[str, np.ndarray]):
    """Metrics by name, each [n_kv, l] ([n_q, l] with per_query_head): float32, or float64 with precision="f64".

    `left_out` says why others are not there, by name; `notes` what was done otherwise than one may think.
    """

    left_out: Dict[str, str]
    notes: Sequence[str]

    def __eq__(self, other: object) -> bool:
        return equal(dict(self), dict(other)) if isinstance(other, dict) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shapes = {values.shape for values in self.values()}
        return f"TokenMetrics: {', '.join(self)}" + "".join(f" of {n} heads x {l} tokens" for n, l in shapes)

    def _repr_html_(self) -> str:
        count = max((len(values) for values in self.values()), default=0)
        sums = [(name, *heads(values.sum(-1, dtype=float))) for name, values in self.items()]
        return table(f"{self!r}; sums over tokens:", ["", *head_names(count)], sums) + "".join(
            picture(values, "token", "head", name) for name, values in self.items())


@takes("token_metrics", LAYER)
def token_metrics(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *,
                  metrics: Union[str, Sequence[str], None] = None, window: Optional[Positions] = None,
                  per_query_head: Optional[bool] = None, backend: Optional[str] = None, precision: Optional[str] = None,
                  threads: Optional[int] = None, **layer: Any) -> TokenMetrics:
    """What evicting each token of the prompt costs, exactly and by every score (sim/tokens/METRICS.md).

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], prompt_len and further arguments as Layer takes them, or a Layer for q. Attention
    scores are weights; exact_* and oracle_* are squared changes of the outputs, summed over rows and the query heads of a KV
    head; *_loss in nats. `oracle_*` need decoding steps, `expected_attention` rope and all queries of the prompt, `kvzip` q_ref.
    """
    answer = ask("token_metrics", layer_of(q, k, v, prompt_len, layer), locals())
    found = TokenMetrics(answer["metrics"])
    found.left_out, found.notes = answer["left_out"], answer["notes"]
    return found

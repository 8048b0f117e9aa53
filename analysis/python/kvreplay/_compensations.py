"""What kept tokens make up for evicted ones."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from ._equal import ByContent
from ._evictions import Eviction, kept_of, prompt_of
from ._layer import LAYER, Positions, layer_of
from ._options import ask, takes
from ._show import head_names, heads, table
from .results import Compensated


@dataclass(frozen=True, eq=False)
class ErrorSplit(ByContent):
    """Where the error of a compensated cache comes from on some rows: squared norms over those of the outputs, of the layer;
    `heads` has the same of every KV head, [n_kv]. nan: the figure has no value there."""

    output_error: float  # of all together: the terms may cancel
    selection: float  # what is kept, scaled to the whole prompt's mass
    mass: float  # the mass and the biases that it has
    values: float  # the values that it has
    bound: float  # the least that any values could reach on these very rows; where rows outnumber tokens
    heads: Mapping[str, np.ndarray]


TERMS = [term.name for term in fields(ErrorSplit) if term.name != "heads"]


@dataclass(frozen=True, repr=False, eq=False)
class Compensation(ByContent):
    """What a method makes of a kept set of every KV head: what the caches hold. output_error(.., keep=it) measures it."""

    held: Sequence[Compensated]  # of each KV head: tokens int32 [m], bias [m], values [m, d_v], keys [m, d] or None
    method: str
    reference: Optional[str]  # the rows that were fitted to; None: nothing was
    lambda_: np.ndarray  # [n_kv], the ridges chosen, times the mean of the diagonal that they are added to; nan: none
    mu: np.ndarray
    bytes: np.ndarray  # [n_kv], four for a bias counted in
    split: Mapping[str, ErrorSplit]  # by rows: "window", "future" and "reference", those that there are
    notes: Sequence[str]

    @property
    def tokens(self) -> list[np.ndarray]:
        """Of each KV head the positions that it holds, [m], ascending; a slot of `mean` has that of an evicted token."""
        return [head.tokens for head in self.held]

    @property
    def bias(self) -> list[np.ndarray]:
        """[m], added to the tokens' logits, behind scale and soft cap; 0 where a method has none."""
        return [head.bias for head in self.held]

    @property
    def values(self) -> list[np.ndarray]:
        """[m, d_v]."""
        return [head.values for head in self.held]

    @property
    def keys(self) -> list[Optional[np.ndarray]]:
        """[m, d]; None: the tokens' own."""
        return [head.keys for head in self.held]

    def __repr__(self) -> str:
        counts = sorted({len(head.tokens) for head in self.held})
        fitted = f" (fitted to {self.reference} rows)" if self.reference else ""
        tokens = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"Compensation: {self.method}{fitted} of {tokens} tokens in each of {len(self.held)} heads, {self.bytes.sum():.0f} bytes"

    def _repr_html_(self) -> str:
        n = len(self.held)
        rows = [("tokens", "", *heads([len(head.tokens) for head in self.held])), ("lambda", "", *heads(self.lambda_)),
                ("mu", "", *heads(self.mu)), ("bytes", self.bytes.sum(), *heads(self.bytes))]
        rows += [(f"{name}, {on} rows", getattr(split, name), *heads(values))
                 for on, split in self.split.items() for name, values in split.heads.items()]
        return table(repr(self), ["", "layer", *head_names(n)], rows)


@takes("compensate", LAYER)
def compensate(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *, keep: Any = None,
               method: Optional[str] = None, reference: Optional[str] = None, reference_rows: Optional[int] = None,
               window: Optional[Positions] = None, semantics: Optional[str] = None, backend: Optional[str] = None,
               precision: Optional[str] = None, threads: Optional[int] = None, **layer: Any) -> Compensation:
    """What a method makes of what is kept of every KV head (sim/compensation/COMPENSATION.md): biases on the logits of kept
    tokens and other values in their place, as `kvreplay evict --compensate` writes them.

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], prompt_len and further arguments as Layer takes them, or a Layer for q. Rows of
    reference that are shifted need rope, a second reading q_ref.
    keep: bool [n_kv, l], True where a token stays; an Eviction, whose semantics are taken; or n_kv lists of positions.
    Of float32, or float64 with precision="f64".
    """
    asked = layer_of(q, k, v, prompt_of(q, prompt_len, keep), layer)
    _, kept = kept_of(keep, asked, several=False)
    if semantics is None and isinstance(keep, Eviction):
        semantics = keep.semantics
    found = ask("compensate", asked, locals(), keep=kept)
    found["held"] = [Compensated(*head) for head in found["held"]]
    none, metrics = (np.nan, np.full(asked.n_kv, np.nan)), found["split"]
    found["split"] = {}
    for rows in ("window", "future", "reference"):
        if (rows, "output_error") in metrics:
            terms = {term: metrics.get((rows, term), none) for term in TERMS}
            found["split"][rows] = ErrorSplit(**{term: of_layer for term, (of_layer, _) in terms.items()},
                                              heads={term: of_heads for term, (_, of_heads) in terms.items()})
    return Compensation(**found)

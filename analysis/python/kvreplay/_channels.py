"""How key channels interact, and which to prune."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

import numpy as np

from . import _core
from ._layer import given, layer_of, with_options
from ._show import head_names, heads, picture, table


@dataclass(frozen=True, repr=False)
class Interaction:
    """How the key channels of every KV head interact (of every query head, with semantics="official"): float64. NumPy takes
    it for `logits`."""

    logits: np.ndarray  # [n_kv, d, d], H: what selections look at
    key_sq: np.ndarray  # [n_kv, d], ||k_c||^2
    window: np.ndarray  # [n_kv, d, d], of the keys that may lose channels and the window's queries
    future: np.ndarray  # [n_kv, d, d], with the queries of the decoding steps; 0 without any
    outputs: Optional[np.ndarray] = None  # [n_kv, d, d], in the attention output, to first order
    rope_pair: Optional[np.ndarray] = None  # [d], the channel that each is rotated with, -1: none
    protected: Optional[np.ndarray] = None  # bool [n_kv, d]
    semantics: str = "paper"
    notes: Sequence[str] = field(default_factory=list)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        return np.array(self.logits, dtype) if copy else np.asarray(self.logits, dtype)

    def __repr__(self) -> str:
        n, d, _ = self.logits.shape
        return f"Interaction: {n} heads of {d} channels ({self.semantics})"

    def _repr_html_(self) -> str:
        diagonal = np.einsum("hcc->hc", self.logits)
        share = np.square(diagonal).sum(1) / np.square(self.logits).sum((1, 2))
        return table(f"{self!r}", ["", *head_names(len(share))],
                     [("sum of the diagonal", *heads(diagonal.sum(1))), ("share of the squares on it", *heads(share))]
                     ) + picture(self.logits[0], "channel", "channel", "head 0")


@dataclass(frozen=True, repr=False)
class Selection:
    """Which channels a method prunes."""

    pruned: np.ndarray  # bool [n_kv, d]
    reconstruction_error: np.ndarray  # [n_kv], ||Q K^T - Q S K^T||_F^2 by the interaction
    order: Optional[np.ndarray] = None  # int32 [n_kv, d] in pruning order, -1 behind its end; None: the method has none
    lower_bound: Optional[np.ndarray] = None  # [n_kv], of optimal: no other set loses less
    proven: Optional[np.ndarray] = None  # bool [n_kv], of optimal

    def __repr__(self) -> str:
        return f"Selection: {int(self.pruned.sum(-1).max())} of {self.pruned.shape[-1]} channels pruned"

    def _repr_html_(self) -> str:
        each = np.atleast_1d(self.reconstruction_error)
        return table(f"{self!r}", ["", *head_names(len(each))], [("reconstruction error", *heads(each))]
                     ) + picture(np.atleast_2d(self.pruned), "channel", "head", "pruned")


def channel_interaction(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *, outputs: bool = False,
                        semantics: Optional[str] = None, recent: Optional[int] = None, window: Optional[int] = None,
                        protect: Optional[str] = None, backend: Optional[str] = None, precision: Optional[str] = None,
                        threads: Optional[int] = None, **layer: Any) -> Interaction:
    """How the key channels of a layer interact in the logits, H = (K^T K) o (sum of Q^T Q) (sim/channels/CHANNELS.md).

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v] and further arguments as Layer takes them, or a Layer for q. outputs: also
    how they interact in the attention output, for select_channels(method="output").
    """
    asked = layer_of(q, k, v, prompt_len, layer)
    return Interaction(**_core.channel_interaction(asked, outputs, given(
        semantics=semantics, recent=recent, window=window, protect=protect, backend=backend, precision=precision, threads=threads)))


with_options(channel_interaction, _core.channel_options())


def select_channels(interaction: Any, *, method: Optional[str] = None, ratio: Optional[float] = None,
                    semantics: Optional[str] = None) -> Selection:
    """The key channels that a method prunes: of an Interaction, or of matrices [n, d, d] or [d, d] alone.

    semantics: whose count of the channels a ratio prunes; None: the interaction's.
    """
    if isinstance(interaction, Interaction):
        arrays = given(**{name: getattr(interaction, name)
                          for name in ("logits", "key_sq", "outputs", "rope_pair", "protected")})
        semantics = interaction.semantics if semantics is None else semantics
        one = False
    else:
        one = getattr(interaction, "ndim", 3) == 2
        arrays = {"logits": interaction[None] if one else interaction}
    found = _core.select_channels(arrays, given(method=method, ratio=ratio, semantics=semantics))
    return Selection(**({name: value[0] for name, value in found.items()} if one else found))


with_options(select_channels, _core.selection_options())

"""How key channels interact, and which to prune."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from . import _core
from ._arrays import booleans, numbers
from ._equal import ByContent
from ._layer import LAYER, layer_of
from ._options import ask, require_shape, takes
from ._show import head_names, heads, picture, table


@dataclass(frozen=True, repr=False, eq=False)
class Interaction(ByContent):
    """How the key channels of every KV head interact (of every query head, with semantics="official"): float64. NumPy takes
    it for `logits`. Of the diagonal alone: `diagonal` and `key_sq`, without the matrices."""

    key_sq: np.ndarray  # [n_kv, d], ||k_c||^2
    diagonal: np.ndarray  # [n_kv, d], H_cc
    logits: Optional[np.ndarray] = None  # [n_kv, d, d], H: what selections look at
    window: Optional[np.ndarray] = None  # [n_kv, d, d], of the keys that may lose channels and the window's queries
    future: Optional[np.ndarray] = None  # [n_kv, d, d], with the queries of the decoding steps; 0 without any
    outputs: Optional[np.ndarray] = None  # [n_kv, d, d], in the attention output, to first order
    rope_pair: Optional[np.ndarray] = None  # [d], the channel that each is rotated with, -1: none
    protected: Optional[np.ndarray] = None  # bool [n_kv, d]
    semantics: str = "paper"
    notes: Sequence[str] = field(default_factory=list)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        if self.logits is None:
            raise _core.InputError("interaction: expected all of it, found the diagonal alone")
        return np.array(self.logits, dtype) if copy else np.asarray(self.logits, dtype)

    def __repr__(self) -> str:
        n, d = self.diagonal.shape
        alone = ", the diagonal alone" if self.logits is None else ""
        return f"Interaction: {n} heads of {d} channels ({self.semantics}){alone}"

    def _repr_html_(self) -> str:
        sums = [("sum of the diagonal", *heads(self.diagonal.sum(1)))]
        names = ["", *head_names(len(self.diagonal))]
        if self.logits is None:
            return table(f"{self!r}", names, sums) + picture(self.diagonal, "channel", "head", "H_cc")
        share = np.square(self.diagonal).sum(1) / np.square(self.logits).sum((1, 2))
        return table(f"{self!r}", names, [*sums, ("share of the squares on it", *heads(share))]
                     ) + picture(self.logits[0], "channel", "channel", "head 0")


@dataclass(frozen=True, repr=False, eq=False)
class Selection(ByContent):
    """Which channels a method prunes."""

    pruned: np.ndarray  # bool [n_kv, d]
    reconstruction_error: Optional[np.ndarray] = None  # [n_kv], ||Q K^T - Q S K^T||_F^2 by the interaction; None: of its diagonal
    order: Optional[np.ndarray] = None  # int32 [n_kv, d] in pruning order, -1 behind its end; None: the method has none
    lower_bound: Optional[np.ndarray] = None  # [n_kv], of convex: no set loses less
    proven: Optional[np.ndarray] = None  # bool [n_kv], of convex

    def __repr__(self) -> str:
        return f"Selection: {int(self.pruned.sum(-1).max())} of {self.pruned.shape[-1]} channels pruned"

    def _repr_html_(self) -> str:
        errors = [] if self.reconstruction_error is None else np.atleast_1d(self.reconstruction_error)
        rows = [("reconstruction error", *heads(errors))] if len(errors) else []
        return table(f"{self!r}", ["", *head_names(len(errors))], rows) + picture(np.atleast_2d(self.pruned), "channel", "head", "pruned")


@takes("channel_interaction", LAYER)
def channel_interaction(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *, outputs: bool = False,
                        diagonal: bool = False, semantics: Optional[str] = None, recent: Optional[int] = None,
                        window: Optional[int] = None, protect: Optional[str] = None, backend: Optional[str] = None,
                        precision: Optional[str] = None, threads: Optional[int] = None, **layer: Any) -> Interaction:
    """How the key channels of a layer interact in the logits, H = (K^T K) o (sum of Q^T Q) (sim/channels/CHANNELS.md).

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], prompt_len and further arguments as Layer takes them, or a Layer for q. outputs: also
    how they interact in the attention output, for select_channels(method="output"). diagonal: H_cc = ||q_c||^2 ||k_c||^2 alone, in
    one reading of keys and window, which is all that select_channels(method="think") and "magnitude" look at.
    """
    return Interaction(**ask("channel_interaction", layer_of(q, k, v, prompt_len, layer), locals(), outputs=bool(outputs),
                             diagonal=bool(diagonal)))


@takes("select_channels")
def select_channels(interaction: Any, *, method: Optional[str] = None, ratio: Optional[float] = None,
                    semantics: Optional[str] = None) -> Selection:
    """The key channels that a method prunes: of an Interaction, or of matrices [n, d, d] or [d, d] alone.

    semantics: whose count of the channels a ratio prunes; None: the interaction's.
    """
    arrays, one = dict.fromkeys(("logits", "diagonal", "key_sq", "outputs", "rope_pair", "protected")), False
    if isinstance(interaction, Interaction):
        arrays = {name: getattr(interaction, name) for name in arrays}
        semantics = interaction.semantics if semantics is None else semantics
    else:
        matrices = np.asarray(interaction) if isinstance(interaction, (list, tuple)) else interaction
        require_shape("interaction", len(matrices.shape) in (2, 3) and matrices.shape[-1] == matrices.shape[-2], "[n, d, d] or [d, d]", matrices)
        one = len(matrices.shape) == 2
        arrays["logits"] = matrices[None] if one else matrices
    found = ask("select_channels", None, locals(), **checked(arrays))
    return Selection(**({name: value[0] for name, value in found.items()} if one else found))


def checked(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """An Interaction's arrays as the library reads them; matrices are symmetric but for rounding."""
    given = {name: array for name, array in arrays.items() if array is not None}
    names = {"logits": "interaction"}
    first = numbers("interaction", given["logits"], (-1, -1, -1)) if "logits" in given else numbers("diagonal", given["diagonal"], (-1, -1))
    n, d = first.shape[:2]
    shapes = {"logits": (n, d, d), "outputs": (n, d, d), "rope_pair": (d,)}
    found = {name: (booleans if name == "protected" else numbers)(names.get(name, name), array, shapes.get(name, (n, d))) for name, array in given.items()}
    for name in ("logits", "outputs"):
        for at, matrix in enumerate(found.get(name, ())):
            if np.abs(matrix - matrix.T).max() > 1e-9 * np.abs(matrix).max():
                raise _core.InputError(f"{names.get(name, name)}: expected symmetric matrices [n, d, d], found another at {at}")
    for partner in found.get("rope_pair", ()):
        if not -1 <= partner < d:
            raise _core.InputError(f"rope_pair: expected channels from -1 to {d - 1}, found {partner:g}")
    if "logits" in found:
        found["diagonal"] = np.ascontiguousarray(np.einsum("hcc->hc", first))
    return {**dict.fromkeys(arrays), **found}

"""One memory budget shared between heads."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _core
from ._arrays import numbers
from ._equal import equal
from ._layer import whole_number
from ._options import ask, require_shape, takes
from ._show import picture


class Allocation(NamedTuple):
    """Tokens of every head, and what each loses by its curve: of the curves' shape but for the last axis."""

    budgets: np.ndarray  # int64
    loss: np.ndarray  # float64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and equal(tuple(self), tuple(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))

    def head_budgets(self, layers: Optional[Sequence[int]] = None) -> Dict[str, float]:
        """{"L0H0": share, ..}: each head's share of all tokens, as Attention Matching reads head budgets (a JSON file's text is
        json.dumps() of it). layers: their numbers in the model; None: 0, 1, ..."""
        budgets = np.atleast_2d(self.budgets)
        numbers = range(len(budgets)) if layers is None else list(layers)
        if len(numbers) != len(budgets):
            raise _core.InputError(f"layers: expected {len(budgets)} numbers, found {len(numbers)}")
        total = int(budgets.sum())
        if total == 0:
            raise _core.InputError("budgets: expected tokens to have shares of, found none")
        return {f"L{layer}H{head}": int(tokens) / total for layer, heads in zip(numbers, budgets) for head, tokens in enumerate(heads)}

    def __repr__(self) -> str:
        return (f"Allocation: {int(self.budgets.sum())} tokens, {self.budgets.min()} to {self.budgets.max()} a head, "
                f"loss {self.loss.sum():.6g}")

    def _repr_html_(self) -> str:
        return f"{self!r}{picture(np.atleast_2d(self.budgets), 'KV head', 'layer', 'tokens')}"


@takes("allocate")
def allocate(curves: Any, total: Optional[int] = None, *, method: Optional[str] = None, keep: Union[float, int, str, None] = None,
             sigma: Optional[float] = None, budget: Union[int, str, None] = None, semantics: Optional[str] = None,
             floor: Optional[float] = None, scores: Any = None) -> Allocation:
    """Shares a budget between heads by their loss curves (analysis/budgets/BUDGETS.md).

    curves [layers, n_kv, l + 1], or [n_kv, l + 1] of one layer: what a head loses when it keeps 0 .. l tokens, never rising; as
    open_results(..).curves(order) has them. total: tokens of all heads together; or keep, sigma, budget, of the mean head.
    floor: the share that every head keeps; of the curves of `kvreplay budget` what is pinned there, 36 / l of the order snapkv.
    scores [.., l], for ada: every head's, largest first.
    """
    losses = np.asarray(curves)
    require_shape("curves", losses.ndim in (2, 3), "[layers, n_kv, l + 1] or [n_kv, l + 1]", losses)
    one = losses.ndim == 2
    if scores is not None:
        wanted, found = [*losses.shape[:-1], losses.shape[-1] - 1], np.asarray(scores)
        require_shape("scores", list(found.shape) == wanted, str(wanted), found)
        scores = found[None] if one else found
    shared = not (keep is None and sigma is None and budget is None)
    if (total is not None) == shared:
        raise _core.InputError(f"total: expected it, or keep, sigma or budget, found {'both' if shared else 'neither'}")
    found = ask("allocate", None, locals(), total=None if total is None else whole_number("total", total),
                curves=numbers("curves", losses[None] if one else losses, (-1, -1, -1)),
                scores=None if scores is None else numbers("scores", scores, (-1, -1, -1), finite=False))
    return Allocation(*(found[name][0] if one else found[name] for name in Allocation._fields))

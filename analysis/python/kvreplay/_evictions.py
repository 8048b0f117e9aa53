"""What policies keep, and what the loss of the rest does to the outputs."""
from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._equal import ByContent
from ._arrays import as_numpy, booleans, numbers
from ._layer import LAYER, Layer, Positions, layer_of
from ._options import Function, ask, takes
from ._show import head_names, heads, picture, table
from .results import Compensated


@dataclass(frozen=True, eq=False)
class Eviction(ByContent):
    """What a policy keeps of a prompt of l tokens."""

    kept: np.ndarray  # bool [n_kv, l] ([n_q, l] with per_query_head)
    policy: str
    semantics: str
    phase: str
    tokens: int  # kept in every head
    notes: Sequence[str]

    @property
    def sets(self) -> list[np.ndarray]:
        """The kept positions of every head, ascending."""
        return [np.flatnonzero(head) for head in self.kept]

    def __repr__(self) -> str:
        n, l = self.kept.shape
        return f"Eviction: {self.policy} ({self.semantics}, {self.phase}) keeps {self.tokens} of {l} tokens in each of {n} heads"

    def _repr_html_(self) -> str:
        return f"{self!r}{picture(self.kept, 'token', 'head', 'kept')}"


Score = Union[Any, Callable[[np.ndarray, np.ndarray, np.ndarray], Any]]


POLICY = "BASE, BASE+SCORE or score:SCORE, with options of its own as in snapkv[window=64,pool=7]"


@takes("evict", LAYER, policy=POLICY, phase="prefill or blockwise:N")
def evict(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *, policy: Optional[str] = None,
          keep: Union[float, int, str, None] = None, sigma: Optional[float] = None, budget: Union[int, str, None] = None,
          score: Union[Score, Mapping[str, Score], None] = None, semantics: Optional[str] = None, phase: Optional[str] = None,
          window: Optional[Positions] = None, sinks: Optional[Positions] = None, recent: Optional[Positions] = None, pool: Optional[str] = None,
          on: Optional[str] = None, by: Optional[str] = None, per_query_head: Optional[bool] = None,
          backend: Optional[str] = None, precision: Optional[str] = None, threads: Optional[int] = None,
          **layer: Any) -> Eviction:
    """What one policy keeps of every KV head's prompt at one budget (sim/eviction/POLICIES.md).

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], prompt_len and further arguments as Layer takes them, or a Layer for q. The budget
    is one of keep (0.2, "20%", or 410 tokens), sigma and budget.

    score: [n_kv, l] ([n_q, l] too with per_query_head), higher is kept, infinite ones first and last, or a function that gives it of
    the prompt's (q, k, v), which it gets as NumPy arrays, float32 in the place of bfloat16. It is called "mine" in policy:
    "score:mine" (which is the default then) or "snapkv+mine"; {name: score} for another name.
    """
    asked = layer_of(q, k, v, prompt_len, layer)
    scores = named_scores(score)
    arrays = {name: score_array(name, score_of(one, asked), asked, per_query_head) for name, one in scores.items()}
    if policy is None and scores:
        policy = f"score:{next(iter(scores))}"
    return Eviction(**ask("evict", asked, locals(), scores=arrays))


def named_scores(score: Union[Score, Mapping[str, Score], None]) -> dict[str, Score]:
    return {} if score is None else dict(score) if isinstance(score, Mapping) else {"mine": score}


def score_of(score: Score, layer: Layer) -> Any:
    return score(*map(as_numpy, "qkv", layer.prompt())) if callable(score) else score


def score_array(name: str, score: Any, layer: Layer, per_query_head: Optional[bool]) -> np.ndarray:
    """[n_kv, l], or [n_q, l] if query heads are distinguished."""
    n_kv, n_q, l = layer.n_kv, layer.n_q, layer.prompt_len
    found = numbers(f"score {name}", score, (-1 if per_query_head else n_kv, l), finite=False)
    if len(found) not in (n_kv, n_q):
        raise _core.InputError(f"score {name}: expected shape [{n_kv}, {l}] or [{n_q}, {l}], found shape {list(found.shape)}")
    return found


@dataclass(frozen=True, eq=False)
class OutputError(ByContent):
    """What kept sets do to a layer's outputs. Numbers, or [cases] where several kept sets were given; `heads` has the same
    figures of every KV head, [n_kv] or [cases, n_kv]. None: the layer lacks what the figure needs."""

    output_error: Any  # sum of ||o' - o||^2 over sum of ||o||^2, over rows and heads
    change_sq: Any
    full_sq: Any
    rows: Tuple[int, int]  # positions: first, end
    heads: Mapping[str, np.ndarray]
    layer_output_error: Any = None  # the same behind W_O; needs wo
    loss_row: Any = None  # nats a row; need gradients
    loss_head: Any = None
    loss_step: Any = None
    loss_joint: Any = None  # of one layer loss_layer too
    dnll: Any = None

    @property
    def median_head(self) -> Any:
        """output_error of the median KV head, which no head of large outputs rules; [cases] as output_error."""
        found = np.median(self.heads["output_error"], axis=-1)
        return float(found) if found.ndim == 0 else found

    def __repr__(self) -> str:
        return (f"OutputError: {self.output_error} ({self.median_head} in the median head) on rows {self.rows[0]} to "
                f"{self.rows[1] - 1}")

    def _repr_html_(self) -> str:
        figures = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("rows", "heads")}
        several = [] if np.ndim(self.output_error) == 0 else [f"case {case}" for case in heads(range(len(self.output_error)))]
        n = 0 if several else len(self.heads["output_error"])
        rows = [(name, *(heads(whole) if several else [whole, *heads(self.heads.get(name, [""] * n))]))
                for name, whole in figures.items() if whole is not None]
        return table(f"{type(self).__name__} on rows {self.rows[0]} to {self.rows[1] - 1}",
                     ["", *(several or ["layer", *head_names(n)])], rows)


def keep_as_fourth(function: Function) -> Function:
    """Also accepts `keep` as the fourth argument: its place before prompt_len was added."""
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 4 and arguments[3] is not None and not is_whole(arguments[3]):
            if keywords.get("keep") is not None:
                raise _core.InputError(f"prompt_len: expected a whole number beside keep, found {type(arguments[3]).__name__}")
            keywords, arguments = {**keywords, "keep": arguments[3]}, arguments[:3]
        return function(*arguments, **keywords)
    return call  # type: ignore[return-value]


def is_whole(value: Any) -> bool:
    return isinstance(value, (int, float, str, np.generic))


@keep_as_fourth
@takes("output_error", LAYER)
def output_error(q: Any, k: Any = None, v: Any = None, prompt_len: Optional[int] = None, *, keep: Any = None,
                 rows: Union[str, Tuple[int, int], None] = None, window: Optional[int] = None,
                 bits: Union[str, int, None] = None, rotate: Optional[str] = None, center: Optional[str] = None, keys: Optional[str] = None,
                 group: Optional[int] = None, residual: Optional[int] = None, backend: Optional[str] = None,
                 precision: Optional[str] = None, threads: Optional[int] = None, **layer: Any) -> OutputError:
    """What becomes of the outputs when only `keep` of the prompt stays, or what stays takes fewer `bits`: exactly, all at once.

    q [n_q, T_q, d], k [n_kv, T, d], v [n_kv, T, d_v], prompt_len and further arguments as Layer takes them, or a Layer for q.

    keep: bool [n_kv, l], True where a token stays, or [cases, n_kv, l] for several kept sets, which share the work; an
    Eviction; a list of n_kv lists of positions; or what every KV head's cache holds, values, biases and keys included: a
    Compensation, or results.compensated(name, layer). None, with `bits`: the whole prompt.
    rows: "future" (the decoding steps), "window" (the last `window` queries of the prompt) or (first, end), positions with a
    query; None: the future where there is one, else the window.
    """
    asked = layer_of(q, k, v, prompt_of(q, prompt_len, keep), layer)
    if keep is None and bits is not None:
        keep = np.ones((asked.n_kv, asked.prompt_len), bool)
    held, kept, several = getattr(keep, "held", keep), None, False
    if isinstance(held, list) and held and all(isinstance(head, Compensated) for head in held):
        held = held_arrays(held, asked)
    else:
        held, (several, kept) = None, kept_of(keep, asked)
    metrics = ask("output_error", asked, locals(), keep=kept, held=held, rows=rows_of(rows, asked))
    on = metrics.pop("rows")
    whole = {name: of_layer if several else float(of_layer[0]) for name, (of_layer, _) in metrics.items()}
    heads = {name: of_heads if several else of_heads[0] for name, (_, of_heads) in metrics.items() if of_heads is not None}
    return OutputError(rows=on, heads=heads, **whole)


def held_arrays(held: Sequence[Compensated], layer: Layer) -> list[tuple[Any, ...]]:
    """(tokens, bias, values, keys or None) of every KV head, in float64."""
    if len(held) != layer.n_kv:
        raise _core.InputError(f"keep: expected what {layer.n_kv} KV heads hold, found that of {len(held)}")
    arrays = []
    for head in held:
        m = len(head.tokens)
        tokens = numbers("tokens", head.tokens, (m,))
        wrong = (tokens != np.floor(tokens)) | (tokens <= np.r_[-1.0, tokens[:-1]]) | (tokens >= layer.prompt_len)
        if wrong.any():
            raise _core.InputError(f"tokens: expected ascending positions from 0 to {layer.prompt_len - 1}, found {tokens[wrong][0]:g}")
        values = numbers("values", head.values, (m, layer.d_v)) if m else np.zeros((0, layer.d_v))
        keys = None if head.keys is None or not m else numbers("keys", head.keys, (m, layer.d))
        arrays.append((tokens, numbers("bias", head.bias, (m,)), values, keys))
    return arrays


def rows_of(rows: Union[str, Tuple[int, int], None], layer: Layer) -> Union[str, Tuple[int, int], None]:
    """Rows to measure on: None, "window", "future", or positions (first, end) that have a query."""
    if rows is None or isinstance(rows, str) and rows in ("window", "future"):
        return rows
    try:
        first, end = (operator.index(at) for at in rows)
    except (TypeError, ValueError):
        raise _core.InputError(f"rows: expected window, future or (first, end), found {rows!r}") from None
    if not layer.T - layer.T_q <= first < end <= layer.T:
        raise _core.InputError(f"rows: expected positions with a query, {layer.T - layer.T_q} to {layer.T}, found {first} to {end}")
    return first, end


def prompt_of(q: Any, prompt_len: Optional[int], keep: Any) -> Optional[int]:
    """The prompt's length, taken from the eviction."""
    return keep.kept.shape[1] if prompt_len is None and isinstance(keep, Eviction) and not isinstance(q, Layer) else prompt_len


def kept_of(keep: Any, layer: Layer, several: bool = True) -> tuple[bool, Any]:
    """Whether there are several kept sets, and all of them: bool [cases, n_kv, l]."""
    keep = keep.kept if isinstance(keep, Eviction) else keep
    if hasattr(keep, "shape"):
        one = [layer.n_kv, layer.prompt_len]
        if list(keep.shape[-2:]) != one or len(keep.shape) not in ((2, 3) if several else (2,)):
            wanted = f"shape {one} (KV heads, tokens of the prompt) or [cases, {one[0]}, {one[1]}]" if several else f"one kept set, {one}"
            raise _core.InputError(f"keep: expected {wanted}, found shape {list(keep.shape)}")
        several = len(keep.shape) == 3
        return several, booleans("keep", keep if several else keep[None], (-1, *one))
    if keep is None or isinstance(keep, (str, bytes)) or not hasattr(keep, "__len__"):
        raise _core.InputError(f"keep: expected bool [n_kv, l] or n_kv lists of positions, found {type(keep).__name__}")
    if len(keep) != layer.n_kv:
        raise _core.InputError(f"keep: expected positions of {layer.n_kv} KV heads, found {len(keep)}")
    kept = np.zeros((1, layer.n_kv, layer.prompt_len), bool)
    for head, positions in enumerate(keep):
        at = np.asarray(list(positions) if isinstance(positions, (set, frozenset)) else positions)
        if at.size and (not np.issubdtype(at.dtype, np.integer) or at.min() < 0 or at.max() >= layer.prompt_len):
            raise _core.InputError(f"keep: expected positions from 0 to {layer.prompt_len - 1}, found others in KV head {head}")
        kept[0, head, at.astype(np.int64)] = True
    return False, kept

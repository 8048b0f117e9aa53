"""One layer's arrays and how it attends, and dumps of such layers."""
from __future__ import annotations

import json
import operator
import os
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Union, overload

import numpy as np

from . import _core
from ._arrays import tensor
from ._options import KeywordError, keywords_of, takes

Positions = Union[int, str]  # a number, a share of the prompt as "5%", or "all"


class Layer(_core.Layer):
    """One layer, checked once for any number of calls: each takes a Layer in the place of q, k, v and what follows them. Layers
    pickle, with their arrays.

    q [n_q, T_q, d] after RoPE, k [n_kv, T, d], v [n_kv, T, d_v]: numbers of float32 (float64 for precision="f64") in adjacent
    rows are used where they lie, and must not change during a call; others are copied. What is not given is as in a dump
    without it (data/DUMP-FORMAT.md has the manifest's words):

        prompt_len      positions 0 .. prompt_len - 1 are the prompt; None: all are
        scale           of the logits q . k; None: 1 / sqrt(d)
        causal          None: yes
        sliding_window  a query at position i sees positions above i - sliding_window
        sliding_window_two_sided  True: and those below i + sliding_window; without causality
        logit_softcap   c in c tanh(z / c)
        sink_logit      [n_q], a column more in every softmax, of value 0
        rope            {"style": "half" or "interleaved", "theta": .. or "inv_freq": [..], "rotary_dim": .., "attention_factor": ..,
                        "ggml_style": ..} (DUMP-FORMAT.md)
        positions       [T], ascending: where the rows of k stand in the sequence, in a cache that lost some; for sliding windows
        wo              [n_q, d_v, d_model], the output projection
        gate            [n_q, T_q, d_v], what the heads' outputs are multiplied by before wo
        output_norm     {"kind": "rms", "eps": ..}, what a row's outputs of all heads are divided by before wo
        g_future        [n_q, S, rows, d_v], gradients of sampled labels with respect to outputs of the last positions
        g_window        [n_q, S, rows, d_v], the same of the prompt's last positions
        g_nll           [n_q, rows, d_v], gradients of the negative log-likelihood
        q_ref           [n_q, rows, d] after RoPE, queries of a second reading of the prompt behind it, from position prompt_len on
    """

    @takes()
    def __init__(self, q: Any, k: Any, v: Any, prompt_len: Optional[int] = None, *, scale: Optional[float] = None,
                 causal: Optional[bool] = None, sliding_window: Optional[int] = None,
                 sliding_window_two_sided: Optional[bool] = None, logit_softcap: Optional[float] = None,
                 sink_logit: Optional[Sequence[float]] = None, rope: Optional[Mapping[str, Any]] = None,
                 positions: Optional[Sequence[int]] = None, wo: Any = None, gate: Any = None,
                 output_norm: Optional[Mapping[str, Any]] = None, g_future: Any = None, g_window: Any = None,
                 g_nll: Any = None, q_ref: Any = None) -> None:
        stated = {"scale": scale, "causal": causal, "sliding_window": sliding_window,
                  "sliding_window_two_sided": sliding_window_two_sided, "logit_softcap": logit_softcap,
                  "sink_logit": None if sink_logit is None else [_plain(sink_logit)], "rope": rope,
                  "output_norm": output_norm}
        manifest = "{" + ", ".join(f'"{name}": {_json(name, value)}' for name, value in stated.items() if value is not None) + "}"
        tensors = {"q": q, "k": k, "v": v, "wo": wo, "gate": gate, "g_future": g_future, "g_window": g_window, "g_nll": g_nll, "q_ref": q_ref}
        super().__init__({name: tensor(name, array) for name, array in tensors.items() if array is not None}, manifest, None if prompt_len is None else whole_number("prompt length", prompt_len),
                         [] if positions is None else [whole_number("positions", at) for at in _plain(positions)])
        self.arrays = (q, k, v)
        self._given = {**stated, "sink_logit": sink_logit, "prompt_len": prompt_len, "positions": positions, "wo": wo, "gate": gate,
                       "g_future": g_future, "g_window": g_window, "g_nll": g_nll, "q_ref": q_ref}

    def __reduce__(self) -> tuple[Any, ...]:
        return _layer_again, (self.arrays, self._given)

    def __repr__(self) -> str:
        return f"Layer: {sizes(self)}"

    def prompt(self) -> tuple[Any, Any, Any]:
        """q, k and v of the prompt alone, which is what a method can look at when it decides."""
        q, k, v = self.arrays
        return q[..., : self.prompt_len - (self.T - self.T_q), :], k[..., : self.prompt_len, :], v[..., : self.prompt_len, :]


LAYER = frozenset(keywords_of(Layer.__init__)) - {"q", "k", "v", "prompt_len"}  # keywords that every call passes on


def _layer_again(arrays: tuple[Any, Any, Any], given: Mapping[str, Any]) -> Layer:
    return Layer(*arrays, **given)


class Dump(_core.Dump):
    """A dump folder, or a .npz in its place, opened and checked (data/DUMP-FORMAT.md). dump[3] is layer 3 as a Layer, read into
    memory; len(dump), dump[0:2] and `for layer in dump` are as a list's. A dump pickles as its path. .texts: its tokens' texts, if it
    has them. prompt_len overrides the manifest's prompt length: a number of tokens, or a name in its prompt_ends ("question").
    """

    @takes()
    def __init__(self, path: Union[str, "os.PathLike[str]"], prompt_len: Union[int, str, None] = None) -> None:
        super().__init__(os.fspath(path), prompt_len)
        self.path = os.fspath(path)
        self.split = prompt_len
        self._again = (os.path.abspath(self.path), prompt_len)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._again

    def __len__(self) -> int:
        return self.layers

    @overload
    def __getitem__(self, layer: int) -> Layer: ...
    @overload
    def __getitem__(self, layer: slice) -> List[Layer]: ...

    def __getitem__(self, layer: Union[int, slice]) -> Union[Layer, List[Layer]]:
        if isinstance(layer, slice):
            return [self[one] for one in range(*layer.indices(self.layers))]
        layer = operator.index(layer)
        if not -self.layers <= layer < self.layers:
            raise IndexError(f"expected a layer below {self.layers}, found {layer}")
        layer %= self.layers
        return Layer(prompt_len=self.prompt_len, **self.layer_arrays(layer), **self.layer_facts(layer))

    def __iter__(self) -> Iterator[Layer]:
        return (self[layer] for layer in range(self.layers))

    def __repr__(self) -> str:
        return f"Dump {self.name}: {self.model}, {self.layers} layers of {sizes(self)}"


def sizes(of: Union[Layer, Dump]) -> str:
    steps = of.T - of.prompt_len
    return (f"{of.n_q} query heads on {of.n_kv} KV heads, d = {of.d}, a prompt of {of.prompt_len} tokens"
            + (f" and {steps} decoding steps" if steps else ""))


def _plain(value: Any) -> Any:
    """Numbers and lists of them, of an array's."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:
        raise _core.InputError(f"{name}: expected finite numbers, found {value}") from None


def whole_number(name: str, value: Any) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise _core.InputError(f"{name}: expected a whole number, found {value!r}")
    return max(min(found, 2**62), -(2**62))  # beyond either, no less out of range


def layer_of(q: Any, k: Any, v: Any, prompt_len: Optional[int], facts: Mapping[str, Any]) -> Layer:
    if not isinstance(q, Layer):
        return Layer(q, k, v, prompt_len, **facts)
    given = [name for name, value in {"k": k, "v": v, "prompt_len": prompt_len, **facts}.items() if value is not None]
    if given:
        raise KeywordError(f"{given[0]}: expected none beside a Layer, which has its own, found one")
    return q

"""A model in the loop, for kvvalidate.py: its decoding steps are fed once more, and see a cache that was changed.

  with ModelLoop(model) as loop:
      full = loop.read(ids, prompt_len)           # logits [steps, vocabulary] of the model as it is
      changed = loop.feed({3: Change(kept=kept)})    # layer 3 holds only kept [n_kv, l] of the prompt
      changed = loop.feed({3: Change(last=last)})    # and what it holds changes while it decodes
      changed = loop.feed_growing({3: caches})       # caches that decide themselves what to evict
      changed = loop.feed_written({3: stored})       # every key and value is stored in a format as it is made
      ids = loop.generate({3: Change(kept=kept)}, begin, stop=lambda said: len(said) == 8)   # what the model says over it
      print(figures(full, changed, ids[prompt_len + 1:]))

read() notes the keys and values that every layer's attention makes of the prompt. feed() then passes all decoding steps
through the model at once, with a function registered with the transformers attention interface: in every head a row
attends over what the head's cache holds of the prompt, and over the decoding steps up to itself, as far as the layer's
sliding window goes, but for those that an eviction took in a step before. take() does what read() does with the prompt's
keys and values as a dump has them. feed_growing() reads the whole text once more,
a chunk at a time, over caches that evict behind every chunk by what the model makes of the cut caches.

Needs torch and transformers.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence

import numpy as np
import torch

from changed_cache import Change
from dump_files import require
from model_attention import cache_for, forget_lengths, input_device, own_attention, stand_in, window_of
from number_formats import Stored, center_of, quantize

FIGURES = ("kl", "kl_median", "kl_p95", "dnll", "perplexity", "same_top1", "accept")
ROWS_AT_ONCE = 32  # of float64 log-probabilities
PROBED = 8  # tokens by which a model shows how it attends
ROWS_OF_CHUNK = 512  # that attend at once
ROOM = 64  # tokens that a cache can take up before it is copied
UNCUT = 2**30  # bytes of a text's first chunks, which are read once for all caches that cut behind them
# Fed at once or read whole, the steps' logits differ by rounding; nats of KL that this may come to.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


class Layer(NamedTuple):
    """How a layer attends, and what its attention makes of the prompt."""

    k: torch.Tensor  # [n_kv, l, d]
    v: torch.Tensor  # [n_kv, l, d_v]
    n_q: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # [n_q]

    def sinks_of(self, head: int, heads: int) -> torch.Tensor | None:
        """Those of the query heads that read one of so many caches."""
        return None if self.sinks is None else self.sinks.reshape(heads, -1)[head]


class GrowingCaches(Protocol):
    """A layer's caches that evict behind every chunk of rows, as kvreplay.GrowingCaches does."""

    heads: int  # KV heads, or query heads
    next_rows: int  # of the chunk that it evicts behind; 0: it evicts no more

    def add(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Sequence[np.ndarray]:
        """The chunk's queries [n_q, rows, d], keys [n_kv, rows, d] and values; the positions that leave every head."""


class Held:
    """What a layer's caches hold while the text is read over them: keys and values of all positions so far, and the last
    row that sees each of them."""

    def __init__(self, layer: Layer, T: int, caches: GrowingCaches | None):
        self.k, self.v = (x.new_zeros(len(x), T, x.shape[2]) for x in (layer.k, layer.v))
        self.caches = caches
        heads = len(layer.k) if caches is None else caches.heads
        self.last = torch.full((heads, T), T, device=layer.k.device)

    def store(self, begin: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """A chunk's keys [n_kv, rows, d] and values."""
        self.k[:, begin : begin + key.shape[1]], self.v[:, begin : begin + key.shape[1]] = key, value

    def evict(self, end: int, *chunk: torch.Tensor) -> None:
        """Behind a chunk's queries, keys and values, which end before position `end`."""
        if self.caches is not None and self.caches.next_rows:
            for head, left in enumerate(self.caches.add(*(x.double().cpu().numpy() for x in chunk))):
                self.last[head, torch.as_tensor(left, device=self.last.device)] = end - 1

    def left(self, T: int) -> list[HeldBy]:
        """What every head holds of T positions."""
        heads = ((head * len(self.k) // len(self.last), torch.nonzero(last >= T)[:, 0]) for head, last in enumerate(self.last))
        return [HeldBy(at, self.k[g, at], self.v[g, at], None, ROOM) for g, at in heads]


class HeldBy:
    """What a head's cache holds: of the prompt what a change left there, and the steps that were fed behind it. There is room for
    more, so that a step does not copy them all."""

    def __init__(self, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, room: int):
        self.bias, self.count = bias, 0
        self._at, self._k, self._v = (x.new_empty((len(x) + room, *x.shape[1:])) for x in (at, k, v))
        self.add(at, k, v)

    def add(self, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        end = self.count + len(at)
        if end > len(self._at):
            self._at, self._k, self._v = (torch.cat((x, x.new_empty((end, *x.shape[1:])))) for x in (self._at, self._k, self._v))
        for mine, more in ((self._at, at), (self._k, k), (self._v, v)):
            mine[self.count : end] = more
        self.count = end

    at = property(lambda self: self._at[: self.count])
    k = property(lambda self: self._k[: self.count])
    v = property(lambda self: self._v[: self.count])
    size = property(lambda self: sum(x.nbytes for x in (self._at, self._k, self._v)))  # bytes, with the room


class Fed:
    """A text that is fed over the prompt's cache, changed in these layers."""

    def __init__(self, changes: Mapping[int, Change], begin: int):
        self.changes, self.end = changes, begin  # the position behind what was fed
        self.held: dict[int, list[HeldBy]] = {}  # by layer, of every head

    def cut(self, position: int) -> None:
        """What was fed from this position on never was."""
        for heads in self.held.values():
            for head in heads:
                head.count -= self.end - position
        self.end = position

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(head.size for heads in self.held.values() for head in heads)


class ModelLoop:
    """A causal model that reads one text; `layers` is what its attention made of the prompt, by layer."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.layers: dict[int, Layer] = {}
        self.fed: Fed | None = None  # the text that was fed last, where the model can go on behind it
        self.decoded: dict[int, torch.Tensor] = {}  # keys [n_kv, steps, d] of the decoding steps, behind take()
        self._as, self._texts = self._attend_reading, []
        takes = inspect.signature(model.forward).parameters
        require("position_ids" in takes, type(model).__name__, "a model that is told its positions", "no position_ids")
        self._cuts, self._cache = "logits_to_keep" in takes, cache_for(model.config.get_text_config())

    def __enter__(self) -> ModelLoop:
        with contextlib.ExitStack() as stack:
            self.own = stack.enter_context(stand_in(self.model, self._attend))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def read(self, ids: Sequence[int], prompt_len: int) -> torch.Tensor:
        """The whole text through the model; the logits [steps, vocabulary] of its steps, as feed() has them."""
        whole = self._read(ids, prompt_len, len(ids))
        full = self.feed({})
        off = float(np.mean(figures_of_steps(whole, full)[0]))
        wanted = "the same from decoding steps fed over its keys and values"
        require(off <= ROUNDING[self.model.dtype], type(self.model).__name__, wanted, f"{off:.1e} nats between them")
        return full

    def take(self, ids: Sequence[int], prompt_len: int, cache: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> torch.Tensor:
        """As read(), but that the prompt's keys [n_kv, l, d] and values of a layer are those that cache(layer) has. What
        the steps' own keys are then is in `decoded`, to tell whether they are this model's."""
        self._read(ids, prompt_len, min(prompt_len, PROBED))
        for i, layer in self.layers.items():
            k, v = (torch.from_numpy(x).to(layer.k) for x in cache(i))
            self.layers[i] = layer._replace(k=k, v=v)
        full = self.feed({})
        self.decoded = {i: torch.stack([head.k[prompt_len:] for head in heads]) for i, heads in self.fed.held.items()}
        return full

    def _read(self, ids: Sequence[int], prompt_len: int, count: int) -> torch.Tensor:
        """The first `count` tokens, by which the layers show how they attend; the logits of the steps among them."""
        self.layers, self._ids, self._l = {}, list(ids), prompt_len
        self._uncut = {}  # by first position and rows of a chunk over whole caches, by layer: queries, keys and values
        forget_lengths(self.model)
        self._as = self._attend_reading
        whole = self._forward_own(0, count, max(count - prompt_len, 1))
        layers = self.model.config.get_text_config().num_hidden_layers
        missing = ", ".join(str(i) for i in range(layers) if i not in self.layers)
        name, wanted = type(self.model).__name__, "every layer's attention through the transformers attention interface"
        require(not missing, name, wanted, f"none in layers {missing}" if self.layers else "none")
        return whole

    @property
    def positions(self) -> int:
        """Of the whole text."""
        return len(self._ids)

    def feed(self, changes: Mapping[int, Change]) -> torch.Tensor:
        """The logits [steps, vocabulary] behind the decoding steps over the prompt's cache, changed in these layers; `fed` is
        what the caches hold then."""
        self.fed = Fed(changes, self._l)
        return self._feed([self.fed], [self._ids[self._l :]])[0]

    def generate(self, texts: Sequence[Fed], said: Sequence[list[int]], ended: Callable[[int], bool]) -> None:
        """What the model says, greedily, behind each of these texts and what is said there already, is added to that until
        ended(number) of the text. All go on side by side: most of a token's time goes into reading the weights."""
        while going := [number for number in range(len(texts)) if not ended(number)]:
            logits = self._feed([texts[number] for number in going], [said[number][-1:] for number in going])
            for number, row in zip(going, logits[:, -1]):
                said[number].append(int(row.argmax()))

    def _feed(self, texts: list[Fed], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """As many tokens behind each text, which they join; logits [texts, tokens, vocabulary]."""
        device = input_device(self.model)
        ids = torch.tensor(tokens, device=device)
        at = torch.stack([torch.arange(text.end, text.end + ids.shape[1], device=device) for text in texts])
        self._texts, self._as = texts, self._attend_changed
        logits = self._forward(ids, at, ids.shape[1])
        for text in texts:
            text.end += ids.shape[1]
        return logits

    def feed_written(self, stored: Mapping[int, Stored]) -> torch.Tensor:
        """The logits [steps, vocabulary] behind the decoding steps of a model that stores the keys and values of these layers as it
        makes them, and reads what it stored: prompt and steps alike, as engines do. Centers are those of the exact prompt."""
        self._written, self._as, self.fed = stored, self._attend_written, None
        return self._forward_own(0, len(self._ids), len(self._ids) - self._l)

    def begin(self, ids: Sequence[int], prompt_len: int) -> None:
        """Passes the first tokens alone, which show how the layers attend: as much as feed_growing() and grow() need."""
        self._read(ids, prompt_len, min(PROBED, len(ids)))

    def feed_growing(self, caches: Mapping[int, GrowingCaches]) -> torch.Tensor:
        """The logits [steps, vocabulary] behind the decoding steps once the whole text is read a chunk at a time, in these
        layers over the caches that evict behind each; caches serve once. All have their chunks in common."""
        return torch.cat([*self.grow(caches)])

    def grow(self, caches: Mapping[int, GrowingCaches]) -> Iterator[torch.Tensor]:
        """Yields the logits of feed_growing() chunk by chunk; chunks before the first decoding step have none. If nothing is evicted while
        decoding, `fed` is then what the caches hold."""
        T, begin, self.fed = len(self._ids), 0, None
        self._held = {i: Held(layer, T, caches.get(i)) for i, layer in self.layers.items()}
        self._as, uncut = self._attend_growing, True
        while begin < T:
            block = next(iter(caches.values())).next_rows
            self._begin, rows = begin, block or T - begin
            steps = max(begin + rows - max(begin, self._l), 0)
            self._chunk, shared = {}, uncut and not steps
            if shared and (begin, rows) in self._uncut:
                for i, (query, key, value) in self._uncut[begin, rows].items():
                    self._held[i].store(begin, key, value)
                    self._held[i].evict(begin + rows, query, key, value)
            else:
                chunk = self._forward_own(begin, begin + rows, max(steps, 1))
                if shared and sum(x.nbytes for of in (*self._uncut.values(), self._chunk) for some in of.values() for x in some) < UNCUT:
                    self._uncut[begin, rows] = self._chunk
                if steps:
                    yield chunk
            begin += rows
            uncut = uncut and all(bool((held.last == T).all()) for held in self._held.values())
        if not block and begin - rows <= self._l:
            self.fed = Fed({}, T)
            self.fed.held = {i: held.left(T) for i, held in self._held.items()}
        self._held = {}

    def _forward(self, ids: torch.Tensor, at: torch.Tensor, keep: int) -> torch.Tensor:
        """Tokens ids [texts, rows] at these positions as one pass without a cache of what was before; the logits of the last
        `keep`, [texts, keep, vocabulary]."""
        cut = {"logits_to_keep": keep} if self._cuts else {}
        with torch.no_grad():
            result = self.model(input_ids=ids, position_ids=at, **self._cache, **cut)
        return result.logits[:, -keep:]

    def _forward_own(self, begin: int, end: int, keep: int) -> torch.Tensor:
        """Positions begin .. end - 1 of the text; the logits of the last `keep`."""
        device = input_device(self.model)
        at, ids = torch.arange(begin, end, device=device), torch.tensor([self._ids[begin:end]], device=device)
        return self._forward(ids, at[None], keep)[0]

    def _attend(self, module, query, key, value, mask, called):
        """The attention of query [1, n_q, rows, d], key [1, n_kv, rows, d] and value [1, n_kv, rows, d_v]."""
        return self._as(module, query, key, value, mask, called)

    def _attend_reading(self, module, query, key, value, mask, called):
        self.layers[module.layer_idx] = self._layer(module, query, key[0, :, : self._l], value[0, :, : self._l], called)
        return own_attention(self.own, module)(module, query, key, value, mask, **called)

    def _attend_changed(self, module, query, key, value, _mask, _called):
        layer = self.layers[module.layer_idx]
        texts = zip(self._texts, query, key, value)
        return as_attention([self._heads_of(text, module.layer_idx, layer, *of_text) for text, *of_text in texts], query)

    def _heads_of(self, text: Fed, index: int, layer: Layer, query, key, value) -> torch.Tensor:
        """[n_q, rows, d_v] of a text's query [n_q, rows, d], key [n_kv, rows, d] and value."""
        change, n_kv = text.changes.get(index, Change()), len(layer.k)
        outputs = []
        rows = torch.arange(text.end, text.end + query.shape[1], device=key.device)
        held = text.held.setdefault(index, [])
        heads = len(held) or change.heads(n_kv)
        for head, q in enumerate(query.reshape(heads, -1, *query.shape[1:])):
            g = head * n_kv // heads
            if len(held) == head:
                held.append(HeldBy(*change.cache(layer.k[g], layer.v[g], head, n_kv), room=len(rows) + ROOM))
            mine = held[head]
            before = mine.at
            mine.add(rows, key[g], value[g])
            last = None if change.last is None else torch.as_tensor(change.last[head], device=key.device)
            sinks, unread = layer.sinks_of(head, heads), change.unread(head, before)
            outputs.append(attend(q, before, mine.k, mine.v, text.end, layer, sinks, mine.bias, last, unread))
        return torch.cat(outputs)

    def _attend_written(self, module, query, key, value, mask, called):
        stored, exact = self._written.get(module.layer_idx), self.layers[module.layer_idx]
        if stored is not None:
            key, value = key.clone(), value.clone()
            for head, (k, v) in enumerate(zip(key[0], value[0])):
                quantize(k, v, None, stored, center_of(exact.k[head], stored, head))
        return own_attention(self.own, module)(module, query, key, value, mask, **called)

    def _attend_growing(self, module, query, key, value, _mask, _called):
        layer, held, begin = self.layers[module.layer_idx], self._held[module.layer_idx], self._begin
        heads, rows, outputs = len(held.last), query.shape[2], []
        held.store(begin, key[0], value[0])
        self._chunk[module.layer_idx] = query[0], key[0], value[0]
        for head, q in enumerate(query[0].reshape(heads, -1, *query.shape[2:])):
            g, parts = head * len(layer.k) // heads, []
            for first in range(0, rows, ROWS_OF_CHUNK):
                mine = torch.arange(begin + first, begin + min(first + ROWS_OF_CHUNK, rows), device=q.device)
                at = torch.nonzero(held.last[head, : mine[0]] >= mine[0])[:, 0]
                seen = torch.cat((at, mine))
                some = q[:, first : first + ROWS_OF_CHUNK]
                sinks = layer.sinks_of(head, heads)
                parts.append(attend(some, at, held.k[g, seen], held.v[g, seen], int(mine[0]), layer, sinks))
            outputs.append(torch.cat(parts, dim=1))
        outputs = torch.cat(outputs)
        held.evict(begin + rows, query[0], key[0], value[0])
        return as_attention([outputs], query)

    def _layer(self, module, query, k, v, called: dict[str, Any]) -> Layer:
        scale, sinks = called.get("scaling"), called.get("s_aux", getattr(module, "sinks", None))
        softcap = called.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        wanted = "eager attention for a soft cap or sinks (attn_implementation='eager')"
        require(self.own == "eager" or not softcap and sinks is None, f"layer {module.layer_idx}", wanted, self.own)
        scale = query.shape[3] ** -0.5 if scale is None else float(scale)
        return Layer(k, v, query.shape[1], scale, window_of(module, called), float(softcap or 0) or None, sinks)


def as_attention(outputs: list[torch.Tensor], query: torch.Tensor) -> tuple[torch.Tensor, None]:
    """[texts, rows, n_q, d_v] of the texts' [n_q, rows, d_v], contiguous as transformers' attention functions leave it: some
    models make a view of it."""
    return torch.stack(outputs).transpose(1, 2).to(query.dtype).contiguous(), None


def attend(q: torch.Tensor, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor, l: int, rule: Layer,
           sinks: torch.Tensor | None, bias: torch.Tensor | None = None, last: torch.Tensor | None = None,
           unread: torch.Tensor | None = None) -> torch.Tensor:
    """o [group, rows, d_v] of q [group, rows, d], the rows l, l + 1, ..., over a cache whose first keys are those of
    positions `at`, the first of them with these biases, followed by the rows' own, as far as the `last` row [T] that sees
    a position is not before it, and but for what is `unread` [rows, at] of the first: in float32 at least."""
    group, rows, d = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    row = torch.arange(l, l + rows, device=q.device)
    position = torch.cat((at, row))
    hidden = position > row[:, None]
    if rule.window:
        hidden |= position <= row[:, None] - rule.window
    if last is not None:
        hidden |= row[:, None] > last[position]
    if unread is not None:
        hidden[:, : len(at)] |= unread
    z = rule.scale * (q.reshape(-1, d).to(wide) @ k.to(wide).T).reshape(group, rows, -1)
    if rule.softcap:
        z = rule.softcap * torch.tanh(z / rule.softcap)
    if bias is not None:
        z[..., : len(bias)] += bias.to(wide)
    z.masked_fill_(hidden, -torch.inf)
    if sinks is not None:
        z = torch.cat((z, sinks.to(wide)[:, None, None].expand(group, rows, 1)), dim=-1)
    a = z.softmax(-1)[..., : len(position)]
    return (a.reshape(group * rows, -1) @ v.to(wide)).reshape(group, rows, -1)


def figures_of_steps(full: torch.Tensor, changed: torch.Tensor,
                     following: Sequence[int] = ()) -> tuple[np.ndarray, ...]:
    """Of every decoding step: KL(full || changed) in nats, whether both put the same token first, the sum over tokens of the
    smaller of both probabilities, and, where the token that followed is known, what the change adds to its negative
    log-likelihood, and the changed model's negative log-likelihood."""
    kl, same, shared, added, nll = [], [], [], [], []
    for begin in range(0, len(full), ROWS_AT_ONCE):
        p, q = (x[begin : begin + ROWS_AT_ONCE] for x in (full, changed))
        same.append(p.argmax(-1) == q.argmax(-1))
        p, q = p.double(), q.double()
        # log p - log q is the logits' difference and one number a row; a vocabulary is passed through as seldom as can be.
        shift, ahead = q.logsumexp(-1) - p.logsumexp(-1), p - q
        chance = p.softmax(-1)
        kl.append((chance * ahead).sum(-1) + shift)
        shared.append(torch.minimum(chance, (q - q.logsumexp(-1, keepdim=True)).exp()).sum(-1))
        next_ids = torch.tensor(following[begin : begin + ROWS_AT_ONCE], dtype=torch.long, device=p.device)
        rows = torch.arange(len(next_ids), device=p.device)
        added.append(ahead[rows, next_ids] + shift[rows])
        nll.append(q.logsumexp(-1)[rows] - q[rows, next_ids])
    return tuple(torch.cat(parts).cpu().numpy() for parts in (kl, same, shared, added, nll))


def figures(full: torch.Tensor, changed: torch.Tensor, following: Sequence[int]) -> dict[str, float | None]:
    """What validate.csv has of a case, by FIGURES; dnll and perplexity have no value where no following token is known."""
    return over_steps(*figures_of_steps(full, changed, following))


def over_steps(kl: np.ndarray, same: np.ndarray, shared: np.ndarray, added: np.ndarray, nll: np.ndarray) -> dict[str, float | None]:
    of_text = (added.mean(), np.exp(nll.mean())) if len(nll) else (None, None)
    values = (kl.mean(), np.median(kl), np.quantile(kl, 0.95), *of_text, same.mean(), shared.mean())
    return {name: None if value is None else float(value) for name, value in zip(FIGURES, values)}

"""Policies and results in a running model, as presses of kvpress (0.5). Imported by kvreplay.press only: it needs torch and
kvpress."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional

import numpy as np
import torch
from kvpress import BasePress
from kvpress.utils import get_prerope_query_states

from . import _core
from ._compensations import Compensation, compensate
from ._evictions import evict, named_scores, score_of
from ._layer import Layer
from ._logit_biases import cache_of, set_biases
from ._scripts.model_attention import PROBE_TOLERANCES, rotation_now
from ._scripts.changed_cache import Change
from ._scripts.number_formats import Stored
from ._scripts.validation_cases import Case, Dump, cases_of
from .results import Results


class CachePress(BasePress):
    """Puts in every layer's cache, behind the prompt, what a Change of each prompt leaves there. Until the cache is dropped later
    steps attend to that, with its biases on their logits, within `with press(model):` and behind it."""

    kept: dict[int, np.ndarray]  # of each layer last read the positions that its caches hold, bool [batch, n_kv, l]

    __eq__, __hash__ = object.__eq__, object.__hash__  # kvpress' own equality compares no fields

    def forward_hook(self, module, input, kwargs, output):
        """Renames a layer's arguments for kvpress. transformers 5.24 has another name for the cache, and passes no positions."""
        cache = cache_of(kwargs)
        at = cache.get_seq_length(module.layer_idx) - 1 if cache is not None else -1
        return super().forward_hook(module, input, {"cache_position": torch.tensor([at]), **kwargs, "past_key_values": cache}, output)

    def changes(self, module, hidden_states, keys, values, kwargs) -> Optional[list[Change]]:
        """One for each prompt; None: the layer stays as it is."""
        raise NotImplementedError

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        changes = self.changes(module, hidden_states, keys, values, kwargs)
        if changes is None:
            return keys, values
        batch, n_kv, l = keys.shape[:3]
        held = {(one, head): changes[one].cache(keys[one, head], values[one, head], head) for one in range(batch) for head in range(n_kv)}
        kept = np.zeros((batch, n_kv, l), bool)
        for where, (at, *_) in held.items():
            kept[where][at.cpu().numpy()] = True
        self.kept[module.layer_idx] = kept
        if len({len(at) for at, *_ in held.values()}) == 1:
            keys, values = (torch.stack([head[part] for head in held.values()]).unflatten(0, (batch, n_kv)) for part in (1, 2))
        else:
            keys, values = self.masked(module, kept, held, keys, values)
        if any(bias is not None and bool(bias.any()) for *_, bias in held.values()):
            biases = torch.zeros(keys.shape[:3], dtype=torch.float32, device=keys.device)
            for where, (at, _, _, bias) in held.items():
                if bias is not None:
                    biases[where][at if keys.shape[2] == l else slice(None)] = bias.float()
            set_biases(module, kwargs["past_key_values"], biases)
        return keys, values

    def masked(self, module, kept, held, keys, values):
        """Heads of unequal length: kvpress hides what is evicted from later queries, and leaves it where it is."""
        if module.config._attn_implementation == "eager":
            raise _core.InputError("budgets: expected an attention that kvpress can hide keys from (sdpa), found eager")
        module.masked_key_indices = tuple(torch.from_numpy(index).to(keys.device) for index in np.nonzero(~kept))
        keys, values = keys.clone(), values.clone()
        for where, (at, k, v, _) in held.items():
            keys[where][at], values[where][at] = k, v
        return keys, values


@dataclass(eq=False)
class Press(CachePress):
    """What evict() keeps, of every layer that is read with `with press(model):`, and what compensate() makes of it."""

    policy: str
    compression_ratio: Optional[float] = 0.5  # share evicted of every head; None: given by budgets or options
    budgets: Any = None  # [layers, n_kv], tokens of every head in its place
    options: Mapping[str, Any] = field(default_factory=dict)  # of evict()
    compensation: Optional[Mapping[str, Any]] = None  # options of compensate(); None: nothing is made up for
    kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    compensations: dict[int, list[Compensation]] = field(default_factory=dict, repr=False)  # of each layer, one a prompt

    def post_init_from_model(self, model):
        config = model.config.get_text_config()
        wanted = [config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or config.num_attention_heads]
        if self.budgets is not None and list(self.budgets.shape) != wanted:
            raise _core.InputError(f"budgets: expected shape {wanted}, the model's layers and KV heads, found shape {list(self.budgets.shape)}")

    def changes(self, module, hidden_states, keys, values, kwargs):
        if self.budgets is None and self.compression_ratio == 0:
            return None
        queries = rotated_queries(module, hidden_states, kwargs)
        facts = facts_of(module, kwargs)
        changes, compensations = [], []
        for one in range(keys.shape[0]):
            arrays = [states.detach()[one] for states in (queries, keys, values)]
            kept = self.keep(module, arrays, facts)
            if self.compensation is None:
                changes.append(Change(kept=kept))
                continue
            shared = {name: self.options[name] for name in SHARED if name in self.options}
            compensations.append(compensate(Layer(*arrays, **facts), keep=kept, **shared, **self.compensation))
            changes.append(Change(held=compensations[-1].held))
        if compensations:
            self.compensations[module.layer_idx] = compensations
        return changes

    def keep(self, module, arrays, facts) -> np.ndarray:
        """bool [n_kv, l] of one prompt."""
        layer = Layer(*arrays, **facts)
        options = {"policy": self.policy, **self.options}
        if self.budgets is None:
            amount = {} if self.compression_ratio is None else {"sigma": self.compression_ratio}
            return evict(layer, **options, **amount).kept
        scores = {name: scores_of_heads(name, score_of(score, layer), layer) for name, score in options.pop("score", {}).items()}
        return kept_by_heads(arrays, facts, [
            {**options, "budget": budget, "score": {name: found[head : head + 1] for name, found in scores.items()}}
            for head, budget in enumerate(self.budgets[module.layer_idx].tolist())])


def kept_by_heads(arrays, facts, asked) -> np.ndarray:
    """bool [n_kv, l]: tokens that evict() keeps. asked: the options of each KV head; None keeps all. A budget of 0 keeps nothing."""
    q, k, v = arrays
    group = q.shape[0] // k.shape[0]
    own = {name: fact for name, fact in facts.items() if name != "sink_logit"}
    kept = np.ones(k.shape[:2], bool)
    for head, options in enumerate(asked):
        if options is None:
            continue
        if options.get("budget") == 0:
            kept[head] = False
            continue
        queries = slice(head * group, (head + 1) * group)
        if "sink_logit" in facts:
            own["sink_logit"] = facts["sink_logit"][queries]
        kept[head] = evict(Layer(q[queries], k[head : head + 1], v[head : head + 1], **own), **options).kept[0]
    return kept


AMOUNTS = ("compression_ratio", "keep", "sigma", "budget", "budgets")  # ways to say how much is kept
SHARED = ("semantics", "window", "backend", "precision", "threads")  # options of evict() that are compensate()'s too


@dataclass(eq=False)
class RecipePress(CachePress):
    """What a recipe does to a prompt's cache in every layer and head."""

    file: str
    layers: list[dict[str, Any]]  # of the recipe, every field written out
    kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def post_init_from_model(self, model):
        config = model.config.get_text_config()
        found, heads = config.num_hidden_layers, getattr(config, "num_key_value_heads", None)
        if found != len(self.layers) or heads not in (None, len(self.layers[0]["sigma"])):
            raise _core.InputError(f"{self.file}: expected a model of {len(self.layers)} layers x {len(self.layers[0]['sigma'])} KV heads, "
                                   f"found {found} x {heads}")

    def changes(self, module, hidden_states, keys, values, kwargs):
        layer = self.layers[module.layer_idx]
        queries, facts = rotated_queries(module, hidden_states, kwargs), facts_of(module, kwargs)
        stored = Stored(**{**layer["stored"], "turned": tuple(layer["stored"]["turned"])})
        asked = []
        for sigma, tokens in zip(layer["sigma"], layer.get("tokens") or [None] * len(layer["sigma"])):
            budget = {"sigma": sigma} if tokens is None else {"budget": tokens}
            all_stay = sigma == 0 if tokens is None else tokens >= keys.shape[2]
            asked.append(None if all_stay else {"policy": layer["policy"], "semantics": layer["semantics"], **budget})
        return [Change(kept=kept_by_heads([states.detach()[one] for states in (queries, keys, values)], facts, asked), stored=stored)
                for one in range(keys.shape[0])]


def recipe_press(file: str) -> RecipePress:
    return RecipePress(file, json.loads(_core.recipe(file))["layers"])


@dataclass(eq=False)
class ResultsPress(CachePress):
    """What a case of a result folder left of the prompt of its dump, for a model that reads that prompt."""

    results: Results
    case: Case
    kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def post_init_from_model(self, model):
        shape, count = self.results.summary["dump"], model.config.get_text_config().num_hidden_layers
        of_model = list(range(count))
        if shape["layers"] != count:  # its manifest says which
            run = self.results.run
            of_model = Dump.open(Path(run.get("directory", "")) / str(run.get("dump", ""))).model_layers(shape["layers"], count)
        self.layers = {of_model[layer]: layer for layer in self.results.layers}

    def changes(self, module, hidden_states, keys, values, kwargs):
        layer = self.layers.get(module.layer_idx)
        if layer is None:
            return None
        size = self.results.summary["dump"]
        wanted = [[1, size["n_kv"], size["l"], size[d]] for d in ("d", "d_v")]
        found = [list(states.shape) for states in (keys, values)]
        if found != wanted:
            raise _core.InputError(f"{self.results.folder}: expected a model that reads the prompt that these are of, keys and values of shape "
                                   f"{wanted[0]} and {wanted[1]}, found {found[0]} and {found[1]}")
        change = self.case.change(layer)
        if change.last is not None:
            raise _core.InputError(f"{self.results.folder}: expected a case that ends with the prompt, found one that evicts as it decodes")
        if change.read is not None:
            raise _core.InputError(f"{self.results.folder}: expected a case that evicts, found one that keeps the whole prompt and reads less")
        if change.heads(size["n_kv"]) != size["n_kv"]:
            raise _core.InputError(f"{self.results.folder}: expected a kept set of every KV head, found those of query heads")
        return [change]


def case_press(results: Results, name: str) -> ResultsPress:
    if not isinstance(results, Results):
        raise _core.InputError(f"{results.folder}: expected results of one dump, found those over several; open one of them")
    cases, left_out = cases_of(results)
    named = {case.name: case for case in cases}
    if name not in named:
        there = ", ".join(list(named)[:20]) + (f" and {len(named) - 20} more" if len(named) > 20 else "")
        raise _core.InputError(f"case: expected one of {results.folder}'s: {there or 'none'}; found '{name}'"
                               + (f": {left_out[name]}" if name in left_out else ""))
    return ResultsPress(results, named[name])


def policy_press(policy: Optional[str], given: Mapping[str, Any]) -> Press:
    """given: press()'s other arguments. Rejects at once what evict() and compensate() would reject in the model's first forward pass."""
    options = {"semantics": "kvpress", **given}
    scores = named_scores(options.pop("score", None))
    for name, score in scores.items():
        if not callable(score):
            raise _core.InputError(f"score {name}: expected a function of (q, k, v), found {type(score).__name__}")
    amounts = {name: options.pop(name) for name in AMOUNTS if name in options} or {"compression_ratio": 0.5}
    if len(amounts) > 1:
        raise _core.InputError(f"press: expected one of {', '.join(AMOUNTS)}, found {' and '.join(amounts)}")
    compensation = {name: options.pop(name) for name in ("compensate", "reference", "reference_rows") if name in options}
    if compensation and "compensate" not in compensation:
        raise _core.InputError(f"{next(iter(compensation))} requires compensate")
    if policy is None and scores:
        policy = f"score:{next(iter(scores))}"

    (name, amount), = amounts.items()
    budgets = budgets_of(amount) if name == "budgets" else None
    asked = {"budget": max(1, int(budgets.min()))} if budgets is not None else {"sigma" if name == "compression_ratio" else name: amount}
    if amounts == {"compression_ratio": 0}:  # nothing is evicted
        asked = {"keep": 1}
    try:
        _core.check("evict", {"scores": scores}, {"policy": policy, **options, **asked})
        if compensation:
            compensation["method"] = compensation.pop("compensate")
            _core.check("compensate", {}, {**compensation, **{name: options[name] for name in SHARED if name in options}})
    except _core.InputError as error:
        text = str(error)
        raise _core.InputError(text.replace("sigma", name, 1) if text.startswith("sigma") else text) from None
    if name in ("keep", "sigma", "budget"):
        options |= asked
    if scores:
        options["score"] = scores
    return Press(policy, amount if name == "compression_ratio" else None, budgets, options, compensation or None)


def budgets_of(budgets) -> np.ndarray:
    found = np.asarray(budgets)
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.integer) or found.size == 0 or found.min() < 0:
        raise _core.InputError(f"budgets: expected tokens [layers, n_kv], whole numbers from 0 on, found {found.dtype} of shape {list(found.shape)}")
    return found


def scores_of_heads(name, found, layer) -> np.ndarray:
    if np.shape(found) != (layer.n_kv, layer.prompt_len):
        raise _core.InputError(f"score {name}: expected shape [{layer.n_kv}, {layer.prompt_len}], found shape {list(np.shape(found))}")
    return np.asarray(found)


def rotated_queries(module, hidden_states, kwargs) -> torch.Tensor:
    """[batch, n_q, rows, d], as the layer has attended with them."""
    queries = get_prerope_query_states(module, hidden_states)
    cos, sin = (part.unsqueeze(1) for part in kwargs["position_embeddings"])
    turned, rest = queries.split([cos.shape[-1], queries.shape[-1] - cos.shape[-1]], -1)
    first, second = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, rest), -1)


def facts_of(module, kwargs) -> dict[str, Any]:
    """How the layer attends, for Layer()."""
    sinks = getattr(module, "sinks", None)
    facts = {"scale": module.scaling, "sliding_window": getattr(module, "sliding_window", None),
             "logit_softcap": getattr(module, "attn_logit_softcapping", None), "rope": rope_of(module, *kwargs["position_embeddings"]),
             "sink_logit": None if sinks is None else sinks.detach().float().cpu().numpy()}
    return {name: value for name, value in facts.items() if value is not None}


def rope_of(module, cos, sin) -> Optional[dict[str, Any]]:
    """The rotation with these cosines and sines [batch, l, rotary_dim] of positions 0 to l - 1; None: of no buffer of the model's."""
    rotary = getattr(module, "rotary_emb", None)
    tolerance = PROBE_TOLERANCES.get(str(cos.dtype).removeprefix("torch."), PROBE_TOLERANCES["float32"])
    at = torch.linspace(0, cos.shape[1] - 1, 16, dtype=torch.float64).long()
    for name, _ in () if rotary is None else rotary.named_buffers(recurse=False):
        if not name.endswith("inv_freq") or "original" in name:
            continue
        style, factor, inv_freq = rotation_now(rotary, name, "half")
        angle = (at.double()[:, None] * torch.tensor(inv_freq, dtype=torch.float64)).tile(2)
        if all(found[:, at].shape[1:] == wanted.shape and (found[:, at].double().cpu() - factor * wanted).abs().max() < tolerance
               for found, wanted in ((cos, angle.cos()), (sin, angle.sin()))):
            return {"style": style, "inv_freq": list(inv_freq), "attention_factor": factor}
    return None

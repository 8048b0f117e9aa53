"""What a result folder changed of the cache, case by case, and whether a dump is its own, for kvvalidate.py."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import torch
import xxhash

from changed_cache import Change
from dump_check import StoredArray, as_float64
from dump_files import read_json, require
from kvresults import Results, ResultsError
from model_loop import GrowingCaches, Layer, ModelLoop
from number_formats import Stored, kivi, token_by_token

ROW_KEYS = ("policy", "semantics", "phase", "budget", "kept")  # of a case's row of figures
KEYS = (*ROW_KEYS, "protocol")  # of a case in validate.csv
DECODES = ("decode", "append-only")  # phases that evict while they decode; decode:N too
FEEDBACK = "+feedback"  # behind a phase: the model decides about its own caches
# Options of `evict` that make a policy's rule.
CACHE_OPTIONS = ("window", "sinks", "recent", "pool", "per_query_head", "decode_window", "prompt")
DUMPED = ("gate", "k", "o", "q", "residual_norm", "v", "wo")
# Of the norm of k about its mean: how far the model's keys may be from the dump's, in whose dtype the capture computed.
# Measured: 0.09 (a mixture of experts; else 0.02), 0.003, 5e-7. Weights that are 5 % off give 0.24 and more.
TOLERANCES = {"bfloat16": 0.2, "float16": 0.05, "float32": 0.02, "float64": 0.02}


@dataclass(frozen=True)
class Case:
    """An eviction, division of a budget or selection of channels. change(layer) reads what it did to a layer; or grow(rule,
    T) makes caches that evict again as the model runs, of a layer that attends by the rule, for T positions."""

    name: str  # its files'
    row_keys: tuple[str, ...]
    change: Callable[[int], Change] | None = None
    grow: Callable[[Layer, int], GrowingCaches] | None = None
    written: Sequence[Stored] = ()  # of every layer of the dump, in place of both

    @property
    def keys(self) -> tuple[str, ...]:
        """Stored behind a prompt that was read exactly, or written by the model into a cache in a format."""
        return (*self.row_keys, "written" if self.written else "stored")

    def changes(self, layers: Mapping[int, int]) -> dict[int, Change] | None:
        """Of these of the dump's layers, by their numbers in the model; None where caches change as the model runs."""
        return self.change and {of_model: self.change(layer) for layer, of_model in layers.items()}

    def feed(self, loop: ModelLoop, layers: Mapping[int, int]) -> torch.Tensor:
        """The logits behind the decoding steps, with these of the dump's layers changed, each with its number in the model."""
        if self.written:
            return loop.feed_written({of_model: self.written[layer] for layer, of_model in layers.items()})
        if self.grow is None:
            return loop.feed(self.changes(layers))
        return loop.feed_growing({at: self.grow(loop.layers[at], loop.positions) for at in layers.values()})


def cases_of(results: Results, feedback: bool = False, written: bool = False) -> tuple[list[Case], dict[str, str]]:
    """All that can be validated, in the order of the tables, and why what else there is cannot; with feedback also the
    evictions whose caches the model's own numbers decide about, with written also formats that are stored token by token."""
    cases, left_out = {}, {}
    finders = [("evictions", evictions), ("budgets", budgets), ("channels", channels), ("compensation", compensation)]
    for name, find in finders + [("evictions", with_feedback)] * feedback + [("evictions", as_written)] * written:
        if name not in results.tables:
            continue
        rows = (row for row in results.rows(name) if not row["layer"] and not row["kv_head"])  # of the whole model
        try:
            for label, case in find(results, rows):
                if isinstance(case, str):
                    left_out[label] = case
                else:
                    cases[case.keys] = case
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"found others ({error!r})"
            raise ResultsError(f"{results.folder}: expected the options and {name} of a run, {found}") from None
    return list(cases.values()), left_out


Found = Iterator["tuple[str, Case | str]"]  # a name, and the case or why there is none


def evictions(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    options = results.summary.get("options", {}).get("evict", {})
    formats = stored_formats(options, results)
    prunes, l = options.get("channels") is not None, results.summary["dump"]["l"]

    def change(name: str, recent: int, stored: list[Stored] | None, layer: int) -> Change:
        kept, pruned = results.kept(name, layer).values, results.pruned(name, layer).values if prunes else None
        read = results.read(name, layer).values if has(results, "read", name) else None
        return Change(kept=kept, read=read, pruned=pruned, recent=recent, stored=stored and stored[layer])

    def while_decoding(name: str, layer: int) -> Change:
        return Change(last=results.last_rows(name, layer).values)

    for keys in once(rows):
        policy, semantics, phase, budget, kept = keys
        name = f"{policy}-{semantics}-{phase}-{kept or 'mixed'}".replace(":", "_")
        steps = f"{policy}-{semantics}-{phase}-{budget}".replace(":", "_")
        if decodes(phase) and not has(results, "last_rows", steps):
            yield name, "these results do not say when tokens leave while it decodes (evict writes that: --force)"
        elif decodes(phase):
            yield name, Case(name, keys, functools.partial(while_decoding, steps))
        elif prunes and not has(results, "pruned", name):
            yield name, "these results do not say which channels were pruned (evict writes that: --force)"
        else:
            stored = formats.get(policy.partition("~")[2]) or next(iter(formats.values()), None)
            yield name, Case(name, keys, functools.partial(change, name, recent_of(options, semantics, l), stored))


def stored_formats(options: dict[str, Any], results: Results) -> dict[str, list[Stored]]:
    """What every layer's cache is stored as, by the format's name."""
    if "stored" not in options and options.get("bits") is not None:  # results that know KIVI's alone
        return {"": [kivi(options["bits"], options["group"], options["residual"])] * results.summary["dump"]["layers"]}

    @functools.cache
    def centers(file: str) -> np.ndarray:
        path = Path(results.run.get("directory", "")) / file  # as it was given there
        vectors, print_of = np.load(path).astype(np.float64), options["centers"][file]
        found = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(vectors))
        require(found == print_of, path, f"the vectors that keys were centered around (XXH3 {print_of})", found)
        return vectors

    def stored(number: int, layer: dict[str, Any]) -> Stored:
        given = {"centered": centers(layer["centered"])[number]} if isinstance(layer.get("centered"), str) else {}
        pairs = {name: tuple(layer[name]) for name in ("turned", "scales") if name in layer}
        return Stored(**{**layer, **pairs, **given})

    return {name: list(itertools.starmap(stored, enumerate(layers))) for name, layers in options.get("stored", {}).items()}


def decodes(phase: str) -> bool:
    return phase.partition(":")[0] in DECODES


def once(rows: Iterator[dict[str, str]]) -> dict[tuple[str, ...], None]:
    """The keys of every eviction among the rows of its figures."""
    return dict.fromkeys(tuple(row[key] for key in ROW_KEYS) for row in rows)


def has(results: Results, kind: str, name: str) -> bool:
    try:
        return name in results.names(kind)
    except ResultsError:
        return False


def recent_of(options: dict[str, Any], semantics: str, l: int) -> int:
    """The kept keys that lose no channels: as asked for, or the semantics' own; a kept set of the user's follows the first."""
    asked = options.get("recent")
    if isinstance(asked, str):  # "5%" of the prompt, or "all"
        share = 100.0 if asked == "all" else float(asked.rstrip("%"))
        return max(1, int(share * l / 100 + 0.5))
    if asked is not None:
        return asked
    first = options["semantics"] if isinstance(options["semantics"], str) else options["semantics"][0]
    return 0 if (first if semantics == "given" else semantics).startswith("kvpress") else 32


def with_feedback(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    """Phases that evict more than once, their scores formed by what the model makes of the caches that are left."""
    options, size = results.summary.get("options", {}).get("evict", {}), results.summary["dump"]
    for policy, semantics, phase, budget, kept in once(rows):
        if not decodes(phase) and not phase.startswith("blockwise:"):
            continue
        name = f"{policy}-{semantics}-{phase}-{kept or 'mixed'}{FEEDBACK}".replace(":", "_")
        if options.get("channels") is not None or options.get("bits") is not None:
            yield name, "key channels and bits belong to what is left of the whole prompt"
            continue
        if "triattention" in policy:
            yield name, "triattention undoes the rotation of queries and keys, which caches of a running model are not told"
            continue
        asked = {key: options.get(key) for key in CACHE_OPTIONS}
        asked |= {"policy": policy, "semantics": semantics, "phase": phase}
        asked["budget" if budget.isdigit() else "sigma"] = int(budget) if budget.isdigit() else float(budget)
        grow = functools.partial(growing_caches, asked, size["l"])
        yield name, Case(name, (policy, semantics, phase + FEEDBACK, budget, kept), grow=grow)


def as_written(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    """Whole caches in a format, every key and value stored as the model makes it."""
    formats = stored_formats(results.summary.get("options", {}).get("evict", {}), results)
    for policy, semantics, phase, budget, kept in once(rows):
        base, _, name = policy.partition("~")
        stored = formats.get(name) or next(iter(formats.values()), None)
        if base != "none" or phase != "prefill" or stored is None:
            continue
        if all(map(token_by_token, stored)):
            yield policy, Case(f"{policy} written", (policy, semantics, phase, budget, kept), written=stored)
        else:
            yield f"{policy} written", "groups of tokens and recent tokens in 16 bits are not stored token by token"


def growing_caches(asked: dict[str, Any], l: int, rule: Layer, T: int) -> GrowingCaches:
    import kvreplay  # where it is missing was found before

    facts = {"scale": rule.scale, "sliding_window": rule.window, "logit_softcap": rule.softcap,
             "sink_logit": None if rule.sinks is None else rule.sinks.double().cpu().numpy()}
    sizes = (rule.n_q, len(rule.k), rule.k.shape[2], rule.v.shape[2])
    try:
        return kvreplay.GrowingCaches(*sizes, l, T - l, precision="f64", **asked, **facts)
    except kvreplay.InputError as error:
        raise ResultsError(f"{asked['policy']} in phase {asked['phase']}{FEEDBACK}: {error}") from None


def budgets(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    semantics = results.summary.get("options", {}).get("budget", {}).get("semantics", "paper")
    for row in rows:
        order, method, sigma = (row[key] for key in ("order", "method", "sigma"))
        name = f"{order}-{method}-{sigma}".replace(":", "_")
        read = functools.partial(results.kept, name)
        keys = (f"{order}~{method}", semantics, "prefill", sigma, "")
        yield keys[0], Case(name, keys, lambda layer, read=read: Change(kept=read(layer).values))


def channels(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    l = results.summary["dump"]["l"]
    for row in rows:
        method, ratio, recent = (row[key] for key in ("method", "ratio", "recent"))
        if not method:
            continue
        name = f"{method}-{ratio}".replace(":", "_")
        read = functools.partial(results.channel_array, name)
        keys = (f"channels:{method}", row["semantics"], "prefill", ratio, str(l))
        change = lambda layer, read=read, n=int(recent): Change(pruned=read(layer).values, recent=n)  # noqa: E731
        yield keys[0], Case(name, keys, change)


def compensation(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    for row in rows:
        policy, semantics, phase, budget, kept, method = (row[key] for key in (*ROW_KEYS, "method"))
        if method == "none":
            continue  # the eviction alone
        name = f"{policy}-{semantics}-{phase}-{kept or 'mixed'}-{method}".replace(":", "_")
        read = functools.partial(results.compensated, name)
        change = lambda layer, read=read: Change(held=read(layer))  # noqa: E731
        yield f"{policy}~{method}", Case(name, (f"{policy}~{method}", semantics, phase, budget, kept), change)


def leave_out_what_parts_a_cache(cases: list[Case], left_out: dict[str, str], dump: Dump,
                                 layers: Sequence[int]) -> list[Case]:
    """The cases in which those of the dump's layers that read one cache hold the same of it; the others go to left_out."""
    groups, whole = [group for group in dump.shared_caches() if set(group) & set(layers)], []
    for case in cases:
        why = next(filter(None, (apart(case, group, layers) for group in groups)), "")
        if why:
            left_out[case.name] = why
        else:
            whole.append(case)
    return whole


def apart(case: Case, group: list[int], layers: Sequence[int]) -> str:
    """Why a case cannot be one of the cache that these of the dump's layers read, if so."""
    one_cache = f"layers {', '.join(map(str, group[:-1]))} and {group[-1]} read one cache and"
    if case.written:
        return ""
    if case.change is None:
        return f"{one_cache} would each evict from it"
    if not set(group) <= set(layers):
        return f"{one_cache} these results have some of them"
    first, *others = (case.change(layer) for layer in group)
    if not all(same(first.kept, other.kept) and same(first.last, other.last) for other in others):
        return f"{one_cache} keep other tokens"
    if not all(same(first.pruned, other.pruned) and first.held is None is other.held for other in others):
        return f"{one_cache} hold other numbers"
    return ""


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b)


class Dump(NamedTuple):
    """A dump as kvcapture.py lays it out, as far as results are held against it."""

    folder: Path
    manifest: dict[str, Any]
    prints: dict[tuple[int, bool, bool], str]  # fingerprints that were asked for

    @staticmethod
    def open(folder: Path) -> Dump:
        found = "something else" if folder.exists() else "none"
        require(folder.is_dir(), folder, "a dump, as a folder (--dump says where)", found)
        try:
            manifest = read_json(folder / "manifest.json")
        except FileNotFoundError:
            manifest = {}
        require(isinstance(manifest, dict), folder / "manifest.json", "a JSON object", type(manifest).__name__)
        return Dump(folder, manifest, {})

    def layer_folder(self, layer: int) -> Path:
        return self.folder / f"layer_{layer:02}"

    def model_layers(self, layers: int, of_model: int) -> list[int]:
        """The model's number of each of the dump's layers."""
        given = self.manifest.get("layers")
        chosen = given or list(range(layers))
        numbers = isinstance(chosen, list) and all(type(i) is int and 0 <= i < of_model for i in chosen)
        fits = numbers and len(chosen) == layers and (given or layers == of_model)
        require(fits, f"{self.folder}: layers", f"those of the model's {of_model}", f"{layers} of the dump")
        return chosen

    def shared_caches(self) -> list[list[int]]:
        """Those of its layers that read one cache, by the first of them."""
        caches, groups = self.manifest.get("cache_of") or [], {}
        require(isinstance(caches, list) and all(type(i) is int for i in caches), f"{self.folder}: cache_of",
                "a layer of each layer", caches)
        for layer, cache in enumerate(caches):
            groups.setdefault(cache, []).append(layer)
        return [group for group in groups.values() if len(group) > 1]

    def fingerprint(self, layer: int, *, gradients: bool = True, gate: bool = True) -> str:
        """What summary.json's layer_fingerprints has of it; without the gradients, where they were added later, or
        without the gate, where it was not read."""
        key = layer, gradients, gate
        if key not in self.prints:
            self.prints[key] = self._fingerprint(*key)
        return self.prints[key]

    def _fingerprint(self, layer: int, gradients: bool, gate: bool) -> str:
        files = sorted(self.layer_folder(layer).glob("*.npy"))
        names = set(DUMPED) - ({"gate"} if not gate else set())
        paths = [path for path in files if path.stem in names or gradients and path.stem.startswith("g_")]
        require(paths, self.layer_folder(layer), "k.npy and its like, as kvcapture.py lays a dump out", "none")
        text = ""
        for path in paths:
            try:
                array = np.load(path, mmap_mode="r")
                data = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError, EOFError) as error:
                raise ResultsError(f"{path}: expected a .npy file, found {error}") from None
            bfloat16 = array.dtype.kind == "V" or array.dtype == np.uint16
            dtype = "bfloat16" if bfloat16 else array.dtype.name
            text += f"{path.stem} {dtype} [{', '.join(map(str, array.shape))}]\n{xxhash.xxh3_64_hexdigest(data)}\n"
        return xxhash.xxh3_64_hexdigest(text.encode())

    def require_of(self, results: Results) -> None:
        """Refuses a dump whose layers do not hold what these results are of."""
        prints = results.summary.get("layer_fingerprints")
        fits = isinstance(prints, dict) and set(prints) == set(map(str, results.layers))
        require(fits, results.folder / "summary.json", "a fingerprint of every layer", prints)
        for layer in results.layers:
            found, recorded = self.fingerprint(layer), prints[str(layer)]
            parts = ({"gradients": False}, {"gate": False}, {"gradients": False, "gate": False})
            if found != recorded and all(self.fingerprint(layer, **part) != recorded for part in parts):
                wanted = f"the dump that {results.folder} is of (XXH3 {recorded})"
                raise ResultsError(f"{self.folder}: layer {layer}: expected {wanted}, found another ({found})")

    def stored(self, layer: int, name: str, begin: int = 0, end: int | None = None) -> tuple[np.ndarray, str]:
        """Rows begin .. end - 1 of a layer's k or v, float64 [heads, rows, channels], and the dtype that they are stored in."""
        stored = StoredArray(self.layer_folder(layer) / f"{name}.npy")
        dtype = "bfloat16" if stored.dtype == np.uint16 else stored.dtype.name
        return as_float64(stored.rows(slice(begin, end))), dtype

    def require_keys(self, layer: int, k: np.ndarray, begin: int = 0) -> None:
        """Refuses a model whose keys k [n_kv, rows, d] of the positions from `begin` on are not the dump's."""
        dumped, dtype = self.stored(layer, "k", begin, begin + k.shape[1])
        require(dumped.shape == k.shape, f"the model's keys of layer {layer}", f"the dump's {dumped.shape}", k.shape)
        spread = np.linalg.norm(dumped - dumped.mean(1, keepdims=True))
        off = np.linalg.norm(k - dumped) / max(spread, 1e-300)
        wanted = f"those of {self.folder} to {TOLERANCES[dtype]:g} of their spread"
        why = "another model, or tokens.json of another text, or a rotation that the length of a text changes?"
        found = f"a difference of {off:.2g} ({why})"
        require(off <= TOLERANCES[dtype], f"the model's keys of layer {layer}", wanted, found)

"""Opens a result folder of any kvreplay command as data frames and arrays with named axes; needs NumPy and pandas only.

    from kvresults import open_results

    r = open_results("results/batch", dump="data/samples/pystdlib-lm")   # the dump only names the tokens
    r.agreement                                    # a CSV as a data frame; r.tables says which there are
    r.table("evictions", level="model")            # only the rows of heads, of layers or of the whole model
    r.tokens("exact_remove", layer=0)              # an array: kv_head x token; without a layer: layer x kv_head x token
    r.tokens("exact_remove").frame()               # the same as a long data frame: layer, kv_head, token, text, value
    r.maps("attn~exact_remove~spearman").wide()    # layers down, KV heads across

    r = open_results("results/prompts")            # of a command that was given several dumps
    r.agreement_over_dumps                         # mean, sd and a 95 % confidence interval over the dumps
    r.dumps["story"].agreement                     # the results of one of them

analysis/RESULTS-FORMAT.md says what every table and array holds.
"""
from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
import pandas as pd

SCHEMA = 1
DECODE, DIFF = "evict --phase decode", "evict --diff paper,kvpress"
# Every table, and the folders of arrays, one a layer or one for all; each with a command that writes it (`analyze`, too).
TABLES = {"heads": "tokens", "agreement": "tokens", "evictions": "evict", "decode": DECODE, "diff": DIFF,
          "budgets": "budget", "channels": "channels"}
LAYER_ARRAYS = {"tokens": "tokens", "kept": "evict` or `kvreplay budget", "diff": DIFF, "channels": "channels"}
WHOLE_ARRAYS = {"maps": "tokens", "curves": "budget", "decode": DECODE}
WORDS = ("policy", "semantics", "phase", "rows", "metric", "method", "order", "score", "reference", "other")
COUNTS = ("layer", "kv_head", "kept", "pruned")
AnyPath = Union[str, Path]


class ResultsError(Exception):
    """What a folder lacks, in one line."""


class NoTableError(ResultsError, AttributeError):
    """An attribute error as well, so that hasattr() answers and does not raise."""


@dataclass(frozen=True, repr=False, eq=False)
class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array and what its axes are: indexing, arithmetic and every method are NumPy's and give plain NumPy arrays."""

    name: str
    values: np.ndarray
    axes: dict[str, np.ndarray]  # in the order of the dimensions, with a label an entry
    texts: Optional[Sequence[str]] = None  # of the dump's tokens, by position

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        return np.array(self.values, dtype) if copy else np.asarray(self.values, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        return getattr(ufunc, method)(*(np.asarray(x) if isinstance(x, Array) else x for x in inputs), **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # nothing that copying and pickling ask of a half-made object
            raise AttributeError(name)
        return getattr(self.values, name)

    def __getitem__(self, key) -> Any:
        return self.values[key]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"{self.name}: {' x '.join(f'{axis} {len(at)}' for axis, at in self.axes.items())}, {self.values.dtype}"

    def frame(self) -> pd.DataFrame:
        """One row a value: a column for each axis, `text` beside `token` where the dump is known, and `value`."""
        columns: dict[str, Any] = {}
        for axis, labels in zip(self.axes, np.meshgrid(*self.axes.values(), indexing="ij")):
            columns[axis] = labels.reshape(-1)
            if axis == "token" and self.texts is not None:
                columns["text"] = np.asarray(self.texts, dtype=object)[columns[axis]]
        return pd.DataFrame({**columns, "value": self.values.reshape(-1)})

    def wide(self) -> pd.DataFrame:
        """One column for each label of the last axis, one row for each combination of the others."""
        if len(self.axes) < 2:
            raise ResultsError(f"{self.name}: wide() needs two axes, this has {len(self.axes)}; see frame()")
        *others, last = self.axes
        index = pd.MultiIndex.from_product([self.axes[axis] for axis in others], names=others)
        wide = pd.DataFrame(self.values.reshape(len(index), -1), index, pd.Index(self.axes[last], name=last))
        return wide if len(others) > 1 else wide.set_index(index.get_level_values(0))


class _Folder:
    """A finished result folder, with its tables as attributes that are read when first asked for."""

    _names: Sequence[str]  # of all tables that there may be

    def __init__(self, folder: AnyPath):
        self.folder = Path(folder)
        self.summary: dict[str, Any] = _summary(self.folder)
        self.run: dict[str, Any] = _json(self.folder / "run.json")

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in self._names:
            raise AttributeError(f"no {name}; the tables are {', '.join(self._names)}")
        try:
            return self.table(name)
        except ResultsError as error:
            raise NoTableError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.tables]

    @property
    def tables(self) -> list[str]:
        """The tables that are there."""
        return [name for name in self._names if (self.folder / f"{name}.csv").is_file()]

    def table(self, name: str, level: Optional[str] = None) -> pd.DataFrame:
        """A table, or its rows of one level: head, layer (no kv_head) or model (neither), without the empty columns."""
        if name not in self.tables:
            raise ResultsError(f"{self.folder}: no {name}.csv; {self._instead_of(name)}")
        if name not in self.__dict__:
            self.__dict__[name] = _read(self.folder / f"{name}.csv", _table)
        return _of_level(self.folder, name, self.__dict__[name], level)

    def _instead_of(self, name: str) -> str:
        """What to say of a table that is not there."""
        raise NotImplementedError


class Results(_Folder):
    """A finished result folder. Tables are attributes (`heads`, `agreement`, ...) and are read when first asked for."""

    _names = tuple(TABLES)

    def __init__(self, folder: AnyPath, dump: Optional[AnyPath] = None):
        super().__init__(folder)
        self.layers: list[int] = self.summary["layers"]
        self.texts = None if dump is None else _token_texts(Path(dump), self.summary["dump"]["T"])

    def __repr__(self) -> str:
        return f"{self.folder}: {self.summary['dump']['model']}, {len(self.layers)} layers, tables {', '.join(self.tables)}"

    def _instead_of(self, name: str) -> str:
        return f"it comes from `kvreplay {TABLES[name]}`" if name in TABLES else "no command writes it"

    @property
    def metrics(self) -> list[str]:
        """The metrics of the token arrays, in the order of `heads`."""
        return [column for column in self.table("heads") if column not in ("layer", "kv_head")]

    @property
    def scores(self) -> list[str]:
        """The scores that `agreement` has figures for."""
        return list(self.table("agreement")["score"].unique())

    @property
    def references(self) -> list[str]:
        """What `agreement` compares the scores with."""
        return list(self.table("agreement")["reference"].unique())

    def names(self, kind: str) -> list[str]:
        """The arrays of a kind that are there: of tokens, kept, diff, channels, maps, curves or decode."""
        return sorted(path.stem for path in self._home(kind).glob("*.npy"))

    def tokens(self, metric: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token]: a metric of every candidate token; heads are query heads with --per-query-head."""
        return self.array("tokens", metric, layer)

    def kept(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token], true where kept: "snapkv-paper-prefill-448" of evict, "snapkv-lu-0.5" of budget."""
        return self.array("kept", name, layer)

    def kept_difference(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token]: 1 where only the first of two semantics keeps a token, -1 where only the other does."""
        return self.array("diff", name, layer)

    def channel_array(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, channel] and the like: "iap-0.5" (true where pruned), "iap_order", "interaction", "spectrum" ..."""
        return self.array("channels", name, layer)

    def maps(self, name: str) -> Array:
        """[layer, kv_head]: one figure of a table for every head, as "attn~exact_remove~spearman"."""
        return self.array("maps", name)

    def curves(self, name: str) -> Array:
        """[layer, kv_head, budget]: an order's loss; "<order>~lu" and "profile": [sigma, layer, kv_head], prune ratios."""
        return self.array("curves", name)

    def budget_curves(self) -> Array:
        """[sigma, layer, kv_head]: the prune ratios of `lu` for the first order, as kvpress reads them."""
        self._home("curves")  # or its error: both come from one command
        values = _read(self.folder / "budget_curves.npy", np.load)
        return self._labelled("budget_curves", values, ("sigma", "layer", "kv_head"))

    def decode_steps(self, name: str) -> Array:
        """[layer, kv_head, step]: the output error at every decoding step of a run with evictions in it."""
        return self.array("decode", name)

    def array(self, kind: str, name: str, layer: Optional[int] = None) -> Array:
        """Any array, by its folder (tokens, kept, diff, channels, maps, curves, decode) and its file name without .npy."""
        home = self._home(kind)
        if not (home / f"{name}.npy").is_file():
            near = difflib.get_close_matches(name, self.names(kind), 3, 0.4)
            raise ResultsError(f"{home}: no {name}.npy; " + (f"near: {', '.join(near)}" if near else f"see names({kind!r})"))
        if kind in WHOLE_ARRAYS:
            return self._labelled(f"{kind}/{name}", _read(home / f"{name}.npy", np.load), _axes(kind, name))
        if layer is not None and layer not in self.layers:
            raise ResultsError(f"{self.folder}: no layer {layer}; computed were {', '.join(map(str, self.layers))}")
        folders = map(self._layer_folder, self.layers if layer is None else [layer])
        each = [_read(folder / kind / f"{name}.npy", np.load) for folder in folders]
        axes = _axes(kind, name, "kv_head" if len(each[0]) == self.summary["dump"]["n_kv"] else "query_head")
        if layer is None:
            return self._labelled(f"{kind}/{name}", np.stack(each), ("layer", *axes))
        return self._labelled(f"{kind}/{name} of layer {layer}", each[0], axes)

    def _home(self, kind: str) -> Path:
        command = {**LAYER_ARRAYS, **WHOLE_ARRAYS}.get(kind)
        if command is None:
            raise ResultsError(f"no arrays are called {kind}: expected {', '.join([*LAYER_ARRAYS, *WHOLE_ARRAYS])}")
        home = (self._layer_folder(self.layers[0]) if kind in LAYER_ARRAYS else self.folder) / kind
        if not home.is_dir():
            raise ResultsError(f"{self.folder}: no {kind} arrays; they come from `kvreplay {command}`")
        return home

    def _layer_folder(self, layer: int) -> Path:
        return self.folder / f"layer_{layer:02d}"

    def _labelled(self, name: str, values: np.ndarray, axes: Sequence[str]) -> Array:
        known = {"layer": np.array(self.layers), "sigma": np.arange(1, 100) / 100}
        labels = {axis: known.get(axis, np.arange(size)) for axis, size in zip(axes, values.shape)}
        if values.shape != tuple(map(len, labels.values())):
            wanted = " x ".join(f"{axis} {len(known[axis])}" if axis in known else axis for axis in axes)
            raise ResultsError(f"{self.folder}: {name} has shape {values.shape}, expected {wanted}")
        return Array(name, values, labels, self.texts)


class ResultsOverDumps(_Folder):
    """What a command given several dumps of one model wrote: `dumps` opens the results of each, by name; the tables over all, of
    means, deviations and 95 % confidence intervals over the dumps, are attributes: `agreement_over_dumps`, ..."""

    _names = tuple(f"{name}_over_dumps" for name in TABLES)

    def __repr__(self) -> str:
        return f"{self.folder}: {len(self.summary['dumps'])} dumps, tables {', '.join(self.tables)}"

    def _instead_of(self, _name: str) -> str:
        return f"there are {', '.join(self.tables) or 'none'}"

    @functools.cached_property
    def dumps(self) -> dict[str, Results]:
        """The results of every dump, by its name, in the order in which they were given."""
        return {dump["name"]: Results(self.folder / dump["name"]) for dump in self.summary["dumps"]}

    @property
    def dump_list(self) -> pd.DataFrame:
        """dumps.csv: name, model, fingerprint, l and decoding steps of each."""
        return _read(self.folder / "dumps.csv", _table)


def open_results(folder: AnyPath, dump: Optional[AnyPath] = None) -> Union[Results, ResultsOverDumps]:
    """Opens a result folder; with its dump, or a tokens.json, the data frames of tokens have their texts. One over several dumps
    opens as ResultsOverDumps, and takes no dump."""
    if _summary(Path(folder)).get("kind") != "over dumps":
        return Results(folder, dump)
    if dump is not None:
        raise ResultsError(f"{folder}: results over several dumps; open one of them, {Path(folder) / 'NAME'}, with its dump")
    return ResultsOverDumps(folder)


def _of_level(folder: Path, name: str, frame: pd.DataFrame, level: Optional[str]) -> pd.DataFrame:
    if level is None:
        return frame
    given = {"head": ["layer", "kv_head"], "layer": ["layer"], "model": []}.get(level)
    if given is None:
        raise ResultsError(f"level {level}: expected head, layer or model")
    empty = ["layer", "kv_head"][len(given):]
    rows = frame[frame[empty].isna().all(axis=1) & frame[given].notna().all(axis=1)]
    if rows.empty:
        raise ResultsError(f"{folder}: {name}.csv has no rows of a {level}")
    return rows.drop(columns=empty).astype({column: "int64" for column in given}).reset_index(drop=True)


def _axes(kind: str, name: str, head: str = "kv_head") -> tuple[str, ...]:
    """The axes of an array of all layers, or of one layer's."""
    if kind in WHOLE_ARRAYS:
        sigmas = kind == "curves" and (name.endswith("~lu") or name == "profile")
        last = {"maps": (), "curves": ("budget",), "decode": ("step",)}[kind]
        return ("sigma", "layer", "kv_head") if sigmas else ("layer", "kv_head", *last)
    if kind != "channels":
        return (head, "token")
    if name == "rope_pair":
        return ("channel",)
    if name.startswith("query_"):
        return ("query_head", "channel")
    if name.endswith("interaction"):
        return (head, "channel", "other_channel")
    return (head, "eigenvalue" if name == "spectrum" else "rank" if name.endswith("_order") else "channel")


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        if not folder.is_dir():
            raise ResultsError(f"{folder}: no such folder")
        if any((folder / name).exists() for name in ("run.json", ".kvreplay")) or any(folder.glob("layer_*")):
            raise ResultsError(f"{folder}: no summary.json: an unfinished run; the same command with --resume finishes it")
        raise ResultsError(f"{folder}: no summary.json: not a result folder of kvreplay")
    summary = _json(path)
    if summary.get("program") != "kvreplay" or "schema" not in summary:
        raise ResultsError(f"{path}: not of a result folder of kvreplay")
    if summary["schema"] != SCHEMA:
        raise ResultsError(f"{path}: schema {summary['schema']}, expected {SCHEMA}; another version of kvreplay wrote it")
    return summary


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    found = _read(path, lambda path: json.loads(path.read_text(encoding="utf-8")))
    return found if isinstance(found, dict) else {}


def _token_texts(path: Path, positions: int) -> list[str]:
    """One text a position, or one id where there are no texts."""
    found = _json(path := path / "tokens.json" if path.is_dir() else path)
    texts = [str(each) for each in found.get("text") or found.get("ids") or []]
    if len(texts) != positions:
        raise ResultsError(f"{path}: {len(texts)} tokens, expected the {positions} of the dump that was analysed")
    return texts


def _table(path: Path) -> pd.DataFrame:
    # By default pandas takes a user's score called "null" for a gap, and before 3.1 its floats may be off by the last bit.
    exact = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
    frame = pd.read_csv(path, keep_default_na=False, na_values=["", "nan"], dtype={word: str for word in WORDS}, **exact)
    for column in frame.columns.intersection(COUNTS):
        given = frame[column].dropna()
        if frame[column].hasnans and (given == given.round()).all():
            frame[column] = frame[column].astype("Int64")
    return frame

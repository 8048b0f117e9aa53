"""Opens a result folder of any kvreplay command as data frames and arrays with named axes; needs NumPy, and pandas for frames.

    from kvresults import open_results

    r = open_results("results/batch", dump="data/samples/pystdlib-lm")   # the dump only names the tokens
    r.agreement                                    # a CSV as a data frame; r.tables says which there are
    r.rows("agreement")                            # the same as the csv module reads it, without pandas
    r.table("evictions", level="model")            # only the rows of heads, of layers or of the whole model
    r.table("evictions", level="median head")      # beside its sums, which a few heads may rule: medians over the heads
    r.tokens("exact_remove", layer=0)              # an array: kv_head x token; without a layer: layer x kv_head x token
    r.tokens("exact_remove").frame()               # the same as a long data frame: layer, kv_head, token, text, value
    r.maps("attn~exact_remove~spearman").wide()    # layers down, KV heads across
    r.head_budgets("snapkv", "lu", 0.8)            # layer x kv_head: shares of all tokens kept

    r = open_results("results/prompts")            # of a command that was given several dumps
    r.agreement_over_dumps                         # mean, sd and a 95 % confidence interval over the dumps
    r.dumps["story"].agreement                     # the results of one of them
    r.left_one_out["story"].budgets                # its budgets by the profile of the others

analysis/RESULTS-FORMAT.md says what every table and array holds. What files.csv records is read as it was written or not
at all: whatever is missing, of another size or of another kind is a ResultsError of one line, with the package xxhash
other bytes are, too.
"""
from __future__ import annotations

import base64
import csv
import difflib
import functools
import html
import importlib.util
import io
import json
import math
import os
import re
import reprlib
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
else:
    class _Pandas:
        """pandas, imported on first use: the import takes longer than everything else here, and only frames need pandas."""

        def __getattr__(self, name):
            import pandas
            return getattr(pandas, name)

    pd = _Pandas() if importlib.util.find_spec("pandas") else None
try:
    import xxhash
except ImportError:
    xxhash = None

SCHEMA = 1
DECODE, DIFF = "evict --phase decode", "evict --diff paper,kvpress"


class _Kind(NamedTuple):
    command: str  # one that writes such a table, besides `analyze`
    columns: str  # that it has at least
    count: str = ""  # what summary.json's totals call its rows


TABLES = {
    "heads": _Kind("tokens", "layer,kv_head"),
    "agreement": _Kind("tokens", "layer,kv_head,score,reference,rows,window,reserve,metric,value", "agreement_rows"),
    "evictions": _Kind("evict", "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value", "eviction_rows"),
    "decode": _Kind(DECODE, "layer,kv_head,policy,semantics,budget,metric,value"),
    "diff": _Kind(DIFF, "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value"),
    "budgets": _Kind("budget", "layer,kv_head,order,method,sigma,budget,loss,output_error", "budget_rows"),
    "channels": _Kind("channels", "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value", "channel_rows"),
    "compensation": _Kind("evict --compensate fit", "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value",
                          "compensation_rows"),
}
OVER_DUMPS = {name: _Kind("", "layer,metric,n,mean,sd,ci_low,ci_high", f"{name}_rows")
              for name in (f"{table}_over_dumps" for table in TABLES)}
OVER_DUMPS["comparisons"] = _Kind("", "table,left,right,budget,metric,prompts,log_ratio,difference,low,high,wins,p", "comparison_rows")
# The folders of arrays, one a layer or one for all, each with a command that writes it.
LAYER_ARRAYS = {"tokens": "tokens", "kept": "evict` or `kvreplay budget", "read": "evict --policy quest", "last_rows": DECODE,
                "pruned": "evict --channels iap:0.5", "diff": DIFF, "channels": "channels", "key_costs": "evict --policy none --bits 4"}
WHOLE_ARRAYS = {"maps": "tokens", "curves": "budget", "decode": DECODE, "decode_tokens": DECODE}
WORDS = ("policy", "semantics", "phase", "rows", "metric", "method", "order", "score", "reference", "other",
         "name", "model", "fingerprint", "table", "left", "right")
PLACES = ("layer", "kv_head")
COUNTS = (*PLACES, "kept", "pruned")
DERIVED = ("kept", "kept_share", "pruned")  # which follow from what a row is of
SIZES = ("layers", "n_q", "n_kv", "d", "T", "T_q", "l")  # of the dump, in summary.json
NPY = re.compile(rb"\x93NUMPY\x01\x00(..)\{'descr': '(\|b1|\|u1|<i4|<f4|<f8)', 'fortran_order': False, "
                 rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n", re.DOTALL)
LARGEST = {".json": 1 << 28, ".csv": 1 << 32}  # bytes
AnyPath = Union[str, Path]
Written = Dict[str, Optional[Tuple[int, int]]]  # by a file's name: its bytes and their XXH3, if recorded


class ResultsError(Exception):
    """What a folder lacks, in one line that can be shown anywhere, however odd the names in it are."""

    def __init__(self, message: str):
        super().__init__(_line(message))


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

    def _repr_html_(self) -> str:
        *others, last = self.axes
        rows = self.values.reshape(-1, self.values.shape[-1]) if self.values.size else self.values
        return f"{html.escape(repr(self))}{picture(rows, last, ' x '.join(others))}"

    def frame(self) -> pd.DataFrame:
        """One row a value: a column for each axis, `text` beside `token` where the dump is known, and `value`."""
        _need_pandas(self.name)
        columns: dict[str, Any] = {}
        for axis, labels in zip(self.axes, np.meshgrid(*self.axes.values(), indexing="ij")):
            columns[axis] = labels.reshape(-1)
            if axis == "token" and self.texts is not None:
                columns["text"] = np.asarray(self.texts, dtype=object)[columns[axis]]
        return pd.DataFrame({**columns, "value": self.values.reshape(-1)})

    def wide(self) -> pd.DataFrame:
        """One column for each label of the last axis, one row for each combination of the others."""
        _need_pandas(self.name)
        if len(self.axes) < 2:
            raise ResultsError(f"{self.name}: wide() needs two axes, this has {len(self.axes)}; see frame()")
        *others, last = self.axes
        index = pd.MultiIndex.from_product([self.axes[axis] for axis in others], names=others)
        wide = pd.DataFrame(self.values.reshape(len(index), -1), index, pd.Index(self.axes[last], name=last))
        return wide if len(others) > 1 else wide.set_index(index.get_level_values(0))


def picture(rows: np.ndarray, across: str, down: str = "", title: str = "") -> str:
    """A heatmap for a notebook, as HTML, of a matrix; empty where there is no matplotlib. Decades are shown as such."""
    try:
        from matplotlib import colors, figure
    except ImportError:
        return ""
    values = np.asarray(rows, dtype=float)
    finite = values[np.isfinite(values)]
    if values.ndim != 2 or finite.size == 0:
        return ""
    top, positive = finite.max(), finite[finite > 0]
    if finite.min() < 0:
        style = {"cmap": "RdBu_r", "norm": colors.CenteredNorm(halfrange=np.abs(finite).max())}
    elif positive.size and top > 30 * np.median(positive):
        style = {"cmap": "viridis", "norm": colors.LogNorm(max(positive.min(), 1e-4 * top), top, clip=True)}
    else:
        style = {"cmap": "viridis"}
    down_count, across_count = values.shape
    size = (min(7, 3 + 0.1 * across_count), min(6, 1.3 + 0.12 * down_count))
    drawn = figure.Figure(figsize=size, dpi=100, layout="constrained")
    axes = drawn.add_subplot()
    # Cells of several pixels each, which resampling does not mix.
    cells = values.repeat(max(1, 400 // down_count), 0).repeat(max(1, 600 // across_count), 1)
    extent = (-0.5, across_count - 0.5, down_count - 0.5, -0.5)
    drawn.colorbar(axes.imshow(cells, aspect="auto", extent=extent, **style), ax=axes, pad=0.01)
    axes.set(xlabel=across, ylabel=down, title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    return f'<br><img src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _need_pandas(what: object) -> None:
    if pd is None:
        raise ResultsError(f"{what}: a data frame needs pandas; arrays and rows() do without")


class _Folder:
    """A finished result folder, with its tables as attributes that are read when first asked for."""

    _kinds: Dict[str, _Kind]  # of all tables that there may be

    def __init__(self, folder: AnyPath):
        self.folder = Path(folder)
        self.summary: dict[str, Any] = _summary(self.folder)
        self._written = _written(self.folder)

    @functools.cached_property
    def run(self) -> dict[str, Any]:
        """run.json: how, where and for how long the command ran."""
        return _json(self.folder / "run.json")

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in self._kinds:
            raise AttributeError(_line(f"no {name}; the tables are {', '.join(self._kinds)}"))
        try:
            return self.table(name)
        except ResultsError as error:
            raise NoTableError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.tables]

    @property
    def tables(self) -> list[str]:
        """The tables that there are."""
        return [name for name in self._kinds if f"{name}.csv" in self._written]

    def table(self, name: str, level: Optional[str] = None) -> pd.DataFrame:
        """A table, or its rows of one level: head, layer (no kv_head) or model (neither), without the empty columns; or of the
        median head: of every figure that heads have the median over them."""
        if name not in self.tables:
            raise ResultsError(f"{self.folder}: no {name}.csv; {self._instead_of(name)}")
        if name not in self.__dict__:
            kind, totals = self._kinds[name], _field(self.summary, "totals", dict)
            self.__dict__[name] = self._read_table(f"{name}.csv", kind.columns, totals.get(kind.count))
        return _of_level(self.folder, name, self.__dict__[name], level)

    def rows(self, name: str) -> list[dict[str, str]]:
        """A table's rows, its fields as they are written."""
        if name not in self.tables:
            raise ResultsError(f"{self.folder}: no {name}.csv; {self._instead_of(name)}")
        data = self._table_bytes(f"{name}.csv", self._kinds[name].columns)
        return _parsed(self.folder / f"{name}.csv", "a table",
                       lambda: list(csv.DictReader(io.StringIO(_text(data), newline=""), strict=True)))

    def _table_bytes(self, name: str, columns: str) -> bytearray:
        path = self.folder / name
        data = _bytes(path, LARGEST[".csv"], self._written.get(name))
        found = _parsed(path, "a table", lambda: _columns(data))
        if not set(columns.split(",")) <= set(found) or len(set(found)) < len(found):
            raise ResultsError(f"{path}: expected columns {columns}, found {','.join(found) or 'none'}")
        return data

    def _read_table(self, name: str, columns: str, rows: object = None) -> pd.DataFrame:
        _need_pandas(self.folder / name)
        path, data = self.folder / name, self._table_bytes(name, columns)
        frame = _parsed(path, "a table", lambda: _frame(data))
        if rows not in (None, len(frame)):
            raise ResultsError(f"{path}: expected {reprlib.repr(rows)} rows, as summary.json says, found {len(frame)}")
        return frame

    def _instead_of(self, name: str) -> str:
        """What to say of a table that is not there."""
        raise NotImplementedError


class Compensated(NamedTuple):
    """What a KV head's cache holds of a prompt once kept tokens make up for evicted ones."""

    tokens: np.ndarray  # [m] positions, ascending
    bias: np.ndarray  # [m], on their logits
    values: np.ndarray  # [m, d_v]
    keys: Optional[np.ndarray] = None  # [m, d]; None: the tokens' own


class Results(_Folder):
    """A finished result folder. Tables are attributes (`heads`, `agreement`, ...) and are read when first asked for."""

    _kinds = TABLES

    def __init__(self, folder: AnyPath, dump: Optional[AnyPath] = None):
        super().__init__(folder)
        self.layers, sizes = _layers_and_sizes(self.folder / "summary.json", self.summary)
        self._sizes = {"layer": len(self.layers), "sigma": 99, "kv_head": sizes["n_kv"], "query_head": sizes["n_q"],
                       "token": sizes["l"], "position": sizes["T"], "budget": sizes["l"] + 1,
                       "step": min(sizes["T"] - sizes["l"], sizes["T_q"]), "byte": (sizes["l"] + 7) // 8,
                       **dict.fromkeys(("channel", "other_channel", "eigenvalue", "rank"), sizes["d"])}
        self._arrays: dict[str, list[str]] = {}  # by folder, without .npy
        for folder, _, file in (name.rpartition("/") for name in sorted(self._written)):
            if file.endswith(".npy"):
                self._arrays.setdefault(folder, []).append(file[:-4])
        self.texts = None if dump is None else _token_texts(Path(dump), sizes["T"])

    def __repr__(self) -> str:
        model = self.summary["dump"].get("model")
        return _line(f"{self.folder}: {model}, {len(self.layers)} layers, tables {', '.join(self.tables)}")

    def _instead_of(self, name: str) -> str:
        if name in TABLES:
            return f"it comes from `kvreplay {TABLES[name].command}`"
        return f"no command writes it; {_alternatives(name, self.tables)}"

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
        """The arrays of a kind that are there: of tokens, kept, read, last_rows, pruned, diff, channels, key_costs, maps, curves or decode."""
        command = {**LAYER_ARRAYS, **WHOLE_ARRAYS}.get(kind)
        if command is None:
            raise ResultsError(f"no arrays are called {kind}: expected {', '.join([*LAYER_ARRAYS, *WHOLE_ARRAYS])}")
        folders = [f"{_layer_folder(layer)}/{kind}" for layer in self.layers] if kind in LAYER_ARRAYS else [kind]
        names = next((self._arrays[folder] for folder in folders if folder in self._arrays), None)
        if names is None:
            raise ResultsError(f"{self.folder}: no {kind} arrays; they come from `kvreplay {command}`")
        return sorted(names)

    def tokens(self, metric: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token]: a metric of every candidate token; heads are query heads with --per-query-head."""
        return self.array("tokens", metric, layer)

    def kept(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token], true where kept: "snapkv-paper-prefill-448" of evict, "snapkv-lu-0.5" of budget."""
        return self.array("kept", name, layer)

    def read(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, step, token], true where a decoding step reads the token, of policies that keep the whole prompt:
        "quest-paper-prefill-176"."""
        packed = self.array("read", name, layer)
        bits = np.unpackbits(packed.values, axis=-1, count=self._sizes["token"], bitorder="little").astype(bool)
        return self._labelled(packed.name, bits, (*list(packed.axes)[:-1], "token"))

    def last_rows(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, position]: the last row that sees each position in a phase that decodes; l - 1 where the prompt's cut
        took it, T where it stays."""
        return self.array("last_rows", name, layer)

    def pruned(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, channel], true where the kept keys of an eviction lose the channel: "h2o-paper-prefill-448"."""
        return self.array("pruned", name, layer)

    def key_costs(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, channel]: what storing the whole prompt's keys in a format costs the logits: "none~k4v16-paper-prefill-448"."""
        return self.array("key_costs", name, layer)

    def kept_difference(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, token]: 1 where only the first of two semantics keeps a token, -1 where only the other does."""
        return self.array("diff", name, layer)

    def channel_array(self, name: str, layer: Optional[int] = None) -> Array:
        """[layer, head, channel] and the like: "iap-0.5" (true where pruned), "iap_order", "interaction", "spectrum" ..."""
        return self.array("channels", name, layer)

    def compensated(self, name: str, layer: int) -> list[Compensated]:
        """What the cache of every KV head of a layer holds of the prompt: "snapkv-paper-prefill-448-fit"."""
        folder = f"{_layer_folder(int(layer))}/compensated"
        names = sorted({at[len(folder) + 1 :].partition("/")[0] for at in self._written if at.startswith(f"{folder}/")})
        if name not in names:
            raise ResultsError(f"{self.folder}: no {name} in {folder}; {_alternatives(name, names)}")
        l, d, d_v = self._sizes["token"], self._sizes["channel"], self.summary["dump"]["d_v"]
        held = []
        for head in range(self._sizes["kv_head"]):
            arrays = {}
            for what in Compensated._fields:
                at = f"{folder}/{name}/{what}_{head}.npy"
                if what != "keys" or at in self._written:
                    data = _bytes(self.folder / at, 4 * l * max(d, d_v) + 4096, self._written.get(at))
                    arrays[what] = _array(self.folder / at, data)
            tokens = arrays["tokens"]
            wanted = {"tokens": (len(tokens),), "bias": (len(tokens),), "values": (len(tokens), d_v), "keys": (len(tokens), d)}
            found = {key: array.shape for key, array in arrays.items()}
            if {"keys": wanted["keys"], **found} != wanted or not np.all(np.diff(tokens) > 0) or len(tokens) and not 0 <= tokens[0] <= tokens[-1] < l:
                raise ResultsError(f"{self.folder / folder / name}: head {head}: expected ascending positions below {l} and their "
                                   f"numbers, found {found}")
            held.append(Compensated(**arrays))
        return held

    def maps(self, name: str) -> Array:
        """[layer, kv_head]: one figure of a table for every head, as "attn~exact_remove~spearman"."""
        return self.array("maps", name)

    def curves(self, name: str) -> Array:
        """[layer, kv_head, budget]: an order's loss; "<order>~lu", "<order>~profile" and "profile": [sigma, layer, kv_head],
        prune ratios."""
        return self.array("curves", name.replace(":", "_"))

    def budget_curves(self) -> Array:
        """[sigma, layer, kv_head]: the prune ratios of `lu` for the first order, as kvpress reads them."""
        self.names("curves")  # or its error: both come from one command
        return self._labelled("budget_curves", *self._read_array("budget_curves.npy", ("sigma", "layer", "kv_head")))

    def head_budgets(self, order: str, method: str, sigma: Union[str, float]) -> Array:
        """[layer, kv_head]: each head's share of all tokens that a division of a budget keeps."""
        name = f"{order}-{method}-{sigma}".replace(":", "_")
        names = sorted(at[len("head_budgets/") : -len(".json")] for at in self._written if at.startswith("head_budgets/"))
        if name not in names:
            raise ResultsError(f"{self.folder}: no {name}.json in head_budgets; {_alternatives(name, names)}")
        path = self.folder / "head_budgets" / f"{name}.json"
        shares, heads = _json(path, self._written[f"head_budgets/{name}.json"]), self._sizes["kv_head"]
        layers = list(dict.fromkeys(key.partition("H")[0] for key in shares))  # as the model numbers them
        wanted = [f"{layer}H{head}" for layer in layers for head in range(heads)]
        if list(shares) != wanted or len(layers) != len(self.layers) or not all(type(share) is float for share in shares.values()):
            raise ResultsError(f"{path}: expected shares of {heads} heads in {len(self.layers)} layers, found {reprlib.repr(shares)}")
        values = np.array(list(shares.values())).reshape(len(layers), heads)
        return self._labelled(f"head_budgets/{name}", values, ("layer", "kv_head"))

    def kl_by_step(self) -> Dict[Tuple[str, ...], np.ndarray]:
        """[steps] for each case that kvvalidate.py measured, by (policy, semantics, phase, budget, kept, protocol): KL in
        nats."""
        table, path = self.folder / "validate.csv", self.folder / "validate_steps.npy"
        data = _bytes(table, LARGEST[".csv"])
        lines = _parsed(table, "a table", lambda: list(csv.reader(io.StringIO(_text(data), newline=""), strict=True)))
        keys, older = (lines[0].index("metric") if "metric" in lines[0] else 0), ("stored",)  # before there was a protocol
        cases = list(dict.fromkeys((*line[:keys], *(older if keys == 5 else ())) for line in lines[1:]))
        kl = _array(path, _bytes(path, LARGEST[".csv"]))
        wanted = (len(cases), self._sizes["position"] - self._sizes["token"])
        if kl.shape != wanted:
            raise ResultsError(f"{path}: expected {wanted[0]} cases x {wanted[1]} steps, found shape {kl.shape}")
        return dict(zip(cases, kl))

    def decode_steps(self, name: str) -> Array:
        """[layer, kv_head, step]: the output error at every decoding step of a run with evictions in it."""
        return self.array("decode", name)

    def decode_tokens(self, name: str) -> Array:
        """[layer, kv_head, step]: the tokens that every decoding step of such a run attends over, decoded ones included."""
        return self.array("decode_tokens", name)

    def array(self, kind: str, name: str, layer: Optional[int] = None) -> Array:
        """Any array, by its folder (tokens, kept, read, last_rows, pruned, diff, channels, key_costs, maps, curves, decode, decode_tokens) and its file name
        without .npy."""
        if name not in (names := self.names(kind)):
            raise ResultsError(f"{self.folder}: no {name}.npy of {kind}; {_alternatives(name, names)}")
        axes = _axes(kind, name)
        if kind in WHOLE_ARRAYS:
            return self._labelled(f"{kind}/{name}", *self._read_array(f"{kind}/{name}.npy", axes))
        if layer is not None and layer not in self.layers:
            raise ResultsError(f"{self.folder}: no layer {layer}; computed were {', '.join(map(str, self.layers))}")
        each = []
        for at in self.layers if layer is None else [int(layer)]:
            values, axes = self._read_array(f"{_layer_folder(at)}/{kind}/{name}.npy", axes)
            each.append(values)
        if layer is None:
            return self._labelled(f"{kind}/{name}", np.stack(each), ("layer", *axes))
        return self._labelled(f"{kind}/{name} of layer {layer}", each[0], axes)

    def _read_array(self, name: str, axes: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
        """A file's array and what its axes are, "head" told to be of KV heads or of query heads."""
        readings = [tuple(head if axis == "head" else axis for axis in axes) for head in ("kv_head", "query_head")]
        shapes = [tuple(self._sizes[axis] for axis in reading) for reading in readings]
        path = self.folder / name
        values = _array(path, _bytes(path, 8 * math.prod(shapes[1]) + 4096, self._written.get(name)))
        if values.shape not in shapes:
            wanted = (" x ".join(f"{axis} {self._sizes[axis]}" for axis in each) for each in dict.fromkeys(readings))
            raise ResultsError(f"{path}: expected {' or '.join(wanted)}, found shape {values.shape}")
        return values, readings[shapes.index(values.shape)]

    def _labelled(self, name: str, values: np.ndarray, axes: Sequence[str]) -> Array:
        known = {"layer": np.array(self.layers), "sigma": np.arange(1, 100) / 100}
        labels = {axis: known.get(axis, np.arange(size)) for axis, size in zip(axes, values.shape)}
        return Array(name, values, labels, self.texts)


class ResultsOverDumps(_Folder):
    """What a command given several dumps of one model wrote: `dumps` opens the results of each, by name, and `left_one_out` its
    budgets by the profile of the others; the tables over all, of means, deviations and 95 % confidence intervals over the dumps,
    are attributes: `agreement_over_dumps`, ..."""

    _kinds = OVER_DUMPS

    def __init__(self, folder: AnyPath):
        super().__init__(folder)
        self._dump_names = _dump_names(self.folder / "summary.json", self.summary)

    def __repr__(self) -> str:
        return _line(f"{self.folder}: {len(self._dump_names)} dumps, tables {', '.join(self.tables)}")

    def _instead_of(self, _name: str) -> str:
        return f"there are {', '.join(self.tables) or 'none'}"

    @functools.cached_property
    def dumps(self) -> dict[str, Results]:
        """The results of every dump, by its name, in the order in which they were given."""
        return {name: Results(self.folder / name) for name in self._dump_names}

    @functools.cached_property
    def left_one_out(self) -> dict[str, Results]:
        """Budgets divided by the mean profile of the other dumps, by the dump's name; empty where the run had none."""
        names = _field(self.summary, "leave_one_out", list)
        if not set(map(str, names)) <= set(self._dump_names):
            raise ResultsError(f"{self.folder / 'summary.json'}: leave_one_out: expected dumps, found {reprlib.repr(names)}")
        return {name: Results(self.folder / "leave_one_out" / name) for name in names}

    @property
    def dump_list(self) -> pd.DataFrame:
        """dumps.csv: name, model, fingerprint, l and decoding steps of each."""
        return self._read_table("dumps.csv", "name,model,fingerprint,l,steps", len(self._dump_names))


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
    if level == "median head":
        heads = _of_level(folder, name, frame, "head").drop(columns=[*PLACES, *(column for column in DERIVED if column in frame)])
        keys = [column for column in heads if (column != "value" if "value" in heads else column in (*WORDS, "sigma"))]
        if not keys:
            return heads.median().to_frame().T
        return heads.groupby(keys, sort=False, dropna=False).median().reset_index()[list(heads)]
    given = {"head": [*PLACES], "layer": ["layer"], "model": []}.get(level)
    if given is None:
        raise ResultsError(f"level {level}: expected head, layer, model or median head")
    empty = [*PLACES[len(given):]]
    rows = frame[frame[empty].isna().all(axis=1) & frame[given].notna().all(axis=1)]
    if rows.empty:
        raise ResultsError(f"{folder}: {name}.csv has no rows of a {level}")
    return rows.drop(columns=empty).astype({column: "int64" for column in given}).reset_index(drop=True)


def _layer_folder(layer: int) -> str:
    return f"layer_{layer:02d}"


def _axes(kind: str, name: str) -> tuple[str, ...]:
    """The axes of an array of all layers, or of one layer's, where "head" is of KV heads or of query heads."""
    if kind in WHOLE_ARRAYS:
        sigmas = kind == "curves" and (name.endswith(("~lu", "~profile")) or name == "profile")
        last = {"maps": (), "curves": ("budget",), "decode": ("step",), "decode_tokens": ("step",)}[kind]
        return ("sigma", "layer", "kv_head") if sigmas else ("layer", "kv_head", *last)
    if kind == "read":
        return ("head", "step", "byte")  # of a bit a token
    if kind != "channels":
        return ("head", {"last_rows": "position", "pruned": "channel", "key_costs": "channel"}.get(kind, "token"))
    if name == "rope_pair":
        return ("channel",)
    if name.startswith("query_"):
        return ("query_head", "channel")
    if name.endswith("interaction"):
        return ("head", "channel", "other_channel")
    return ("head", "eigenvalue" if name == "spectrum" else "rank" if name.endswith("_order") else "channel")


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not os.path.lexists(path):
        if not os.path.isdir(folder):
            raise ResultsError(f"{folder}: no such folder")
        if any(os.path.exists(folder / name) for name in ("run.json", ".kvreplay")) or any(folder.glob("layer_*")):
            raise ResultsError(f"{folder}: no summary.json: an unfinished run; the same command with --resume finishes it")
        raise ResultsError(f"{folder}: no summary.json: not a result folder of kvreplay")
    summary = _json(path)
    if summary.get("program") != "kvreplay" or "schema" not in summary:
        raise ResultsError(f"{path}: not of a result folder of kvreplay")
    if summary["schema"] != SCHEMA:
        found = reprlib.repr(summary["schema"])
        raise ResultsError(f"{path}: schema {found}, expected {SCHEMA}; another version of kvreplay wrote it")
    return summary


def _field(json_object: dict[str, Any], key: str, kind: type) -> Any:
    """A member of summary.json, or an empty one where it is none of this kind."""
    found = json_object.get(key)
    return found if type(found) is kind else kind()


def _layers_and_sizes(path: Path, summary: dict[str, Any]) -> tuple[list[int], dict[str, int]]:
    """The layers computed, and the sizes of the dump that all arrays follow from."""
    dump = _field(summary, "dump", dict)
    for key in SIZES:
        found = dump.get(key)
        least = 0 if key in ("l", "T_q") else 1
        if type(found) is not int or not least <= found <= 1 << 40:
            found = reprlib.repr(found)
            raise ResultsError(f"{path}: dump.{key}: expected a whole number of at least {least}, found {found}")
    if max(dump["l"], dump["T_q"]) > dump["T"]:
        found = ", ".join(f"{key} {dump[key]}" for key in SIZES)
        raise ResultsError(f"{path}: dump: expected l and T_q at most T, found {found}")
    layers = summary.get("layers")
    good = isinstance(layers, list) and all(type(at) is int and 0 <= at < dump["layers"] for at in layers)
    if not good or sorted(set(layers)) != layers:
        found = reprlib.repr(layers)
        raise ResultsError(f"{path}: layers: expected ascending ones below {dump['layers']}, found {found}")
    return layers, {key: dump[key] for key in SIZES}


def _dump_names(path: Path, summary: dict[str, Any]) -> list[str]:
    """The folders of the single dumps."""
    names = [dump.get("name") if isinstance(dump, dict) else None for dump in _field(summary, "dumps", list)]
    for name in names or [None]:
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise ResultsError(f"{path}: dumps: expected each with the name of a folder, found {reprlib.repr(name)}")
    return names


def _token_texts(path: Path, positions: int) -> list[str]:
    """One text a position, or one id where there are no texts."""
    found = _json(path := path / "tokens.json" if os.path.isdir(path) else path)
    texts = _field(found, "text", list) or _field(found, "ids", list)
    if len(texts) != positions or any(type(each) not in (str, int) for each in texts):
        raise ResultsError(f"{path}: {len(texts)} tokens, expected the {positions} of the dump that was analysed")
    return [str(each) for each in texts]


def _alternatives(name: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), names, 3, 0.4)
    if near:
        return f"near: {', '.join(near)}"
    return f"there are {', '.join(names[:20]) or 'none'}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _line(text: str) -> str:
    """For a terminal: what cannot be seen escaped, without the middle of what is too long to be read."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 1000 else f"{text[:600]} ... {text[-300:]}"


# ---------------------------------------------------------------- files


def _bytes(path: Path, most: int, written: Optional[tuple[int, int]] = None) -> bytearray:
    """What a regular file holds, at most so many bytes; just as it was written, where that was recorded."""

    def refused(found: object, wanted: str = "a file") -> ResultsError:
        if written:
            wanted = f"the {written[0]} bytes that were written (XXH3 {written[1]:016x})"
        return ResultsError(f"{path}: expected {wanted}, found {found}")

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # asked before it is opened: a pipe may never answer
            raise refused("a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a device or a socket")
        size = found.st_size
        if size > most or written and size != written[0]:
            raise refused(f"{size} bytes", f"at most {most} bytes")
        data = bytearray(size)
        with open(path, "rb") as file:
            if file.readinto(data) != size:
                raise refused("fewer while it was read")
    except FileNotFoundError:
        raise refused("none") from None
    except (OSError, ValueError, MemoryError) as error:  # ValueError: of a name that no file can have
        raise refused(getattr(error, "strerror", None) or error or "no memory for it") from None
    if written and xxhash is not None and xxhash.xxh3_64_intdigest(data) != written[1]:
        raise refused("other bytes")
    return data


def _text(data: bytes) -> str:
    return data.decode("utf-8-sig")  # a byte order mark is no part of it


def _parsed(path: Path, what: str, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except Exception as error:  # json, csv and pandas raise of many kinds, also for what is too deep or too large
        raise ResultsError(f"{path}: cannot be read as {what}: {error or type(error).__name__}") from None


def _json(path: Path, written: Optional[tuple[int, int]] = None) -> dict[str, Any]:
    data = _bytes(path, LARGEST[".json"], written)
    found = _parsed(path, "JSON", lambda: json.loads(_text(data), object_pairs_hook=_once))
    if not isinstance(found, dict):
        raise ResultsError(f"{path}: expected a JSON object, found {reprlib.repr(found)}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object with a key twice")
    return found


def _written(folder: Path) -> Written:
    """The files of a run, as its files.csv records them; of results from before there was one, those that are there."""
    path = folder / "files.csv"
    if not os.path.lexists(path):
        return {at.relative_to(folder).as_posix(): None for at in folder.rglob("*") if at.is_file()}
    data = _bytes(path, LARGEST[".csv"])

    def parse() -> Written:
        columns, *rows = csv.reader(io.StringIO(_text(data), newline=""), strict=True)
        if columns != ["name", "bytes", "xxh3"] or not data.endswith(b"\n"):
            raise ValueError("other columns, or no line end")
        if any(len(row) != 3 or Path(row[0]).is_absolute() or ".." in Path(row[0]).parts for row in rows):
            raise ValueError("other than a name, bytes and xxh3 in each line")
        return {name: (int(size), int(xxh3, 16)) for name, size, xxh3 in rows}

    return _parsed(path, "kvreplay's record of what it wrote", parse)


def _columns(data: bytearray) -> list[str]:
    return next(csv.reader([_text(data[:1 << 16].split(b"\n")[0])]), [])


def _frame(data: bytes) -> pd.DataFrame:
    if not data.endswith(b"\n"):
        raise ValueError("the last line does not end")
    # By default pandas takes a user's score called "null" for a gap, and before 3.1 its floats may be off by the last bit.
    exact = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
    frame = pd.read_csv(io.BytesIO(data), keep_default_na=False, na_values=["", "nan"], index_col=False, low_memory=False,
                        dtype={word: str for word in WORDS}, **exact)
    if frame.empty:
        return frame
    for column in frame.columns.difference(WORDS):
        if frame[column].dtype.kind not in "iuf":
            raise ValueError(f"{column} is not of numbers")
    for column in frame.columns.intersection(COUNTS):
        given = frame[column].dropna()
        whole = (given == given.round()).all()
        if column in PLACES and not (whole and given.between(0, 1 << 40).all()):
            raise ValueError(f"{column} is not of whole numbers")
        if frame[column].hasnans and whole:
            frame[column] = frame[column].astype("Int64")
    return frame


def _array(path: Path, data: bytearray) -> np.ndarray:
    """The array of a .npy file as kvreplay writes it."""
    header = NPY.match(data[:4096])
    if not header or int.from_bytes(header[1], "little") != header.end() - 10:
        raise ResultsError(f"{path}: expected a .npy file of booleans, bytes, int32, float32 or float64, found another header")
    dtype, shape = np.dtype(header[2].decode()), tuple(int(size) for size in re.findall(rb"\d+", header[3]))
    wanted, found = math.prod(shape) * dtype.itemsize, len(data) - header.end()
    if found != wanted:
        raise ResultsError(f"{path}: expected {wanted} bytes behind the header, found {found}")
    return np.frombuffer(data, dtype, offset=header.end()).reshape(shape)

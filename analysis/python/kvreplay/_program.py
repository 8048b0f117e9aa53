"""The program `kvreplay`, which comes with the package."""
from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from . import _core
from ._evictions import named_scores, score_of
from ._layer import Dump
from ._options import takes
from .results import Results, ResultsOverDumps, open_results

AnyPath = Union[str, "os.PathLike[str]"]
Score = Callable[[Any, Any, Any], Any]


def program() -> str:
    """Where the program is."""
    return str(Path(__file__).resolve().with_name("bin") / "kvreplay")


def main() -> None:
    """The command `kvreplay`: becomes the program."""
    os.execv(program(), ["kvreplay", *sys.argv[1:]])


@takes(program=True)
def analyze(dump: Union[AnyPath, Dump, Sequence[Union[AnyPath, Dump]]], out: AnyPath, *,
            score: Union[str, Score, Mapping[str, Score], None] = None, **options: Any) -> Union[Results, ResultsOverDumps]:
    """Runs every analysis of a dump, or of several, into the folder `out`, and opens it: `kvreplay analyze`, with its options
    as keywords ('_' for '-'; True for a flag; a list, or commas): force=True, only=["tokens", "evict"], layers="0,3-5". An
    option of one part: **{"evict.window": 64}. `kvreplay analyze --help` has them all. Ctrl-C stops it; resume=True goes on.

    score: a function of one layer's (q, k, v) of the prompt that gives [n_kv, l], higher is kept, as evict() takes it; it is
    "mine", and measured like every other score, in every layer of every dump. {name: function} for another name. Text is
    --score's.
    """
    several = [dump] if isinstance(dump, (str, os.PathLike, Dump)) else list(dump)
    dumps = [one.path if isinstance(one, Dump) else os.fspath(one) for one in several]
    splits = {one.split for one in several if isinstance(one, Dump)}
    if options.get("prompt_len") is not None:
        splits = splits - {None} | {options["prompt_len"]}
    if len(splits) > 1:
        raise _core.InputError(f"prompt_len: expected one for all dumps, found {', '.join(sorted(map(str, splits)))}")
    options["prompt_len"] = split = next(iter(splits), None)
    with tempfile.TemporaryDirectory(prefix="kvreplay-") as folder:
        scores = ["--score", score] if isinstance(score, str) else written_scores(named_scores(score), dumps, split, Path(folder))
        run("analyze", *dumps, "--out", os.fspath(out), "--quiet", *scores, *words_of(options))
    return open_results(out, dump=dumps[0] if len(dumps) == 1 else None)


class Comparison(str):
    """What `kvreplay compare` says of two results; `tables`: its figures, "prompts" of results over several dumps, otherwise
    "evictions" and so on, a list of dictionaries of text each (pandas.DataFrame(..) of it is a frame).
    """

    tables: Dict[str, List[Dict[str, str]]]

    def __repr__(self) -> str:
        return str(self)


Rows = Union[str, Mapping[str, Any], None]


@takes(program=True)
def compare(a: Union[AnyPath, Results, ResultsOverDumps], b: Union[AnyPath, Results, ResultsOverDumps, None] = None, *,
            left: Rows = None, right: Rows = None, **options: Any) -> Comparison:
    """Compares two results, a and b, prompt by prompt if they are over several dumps; or two selections of rows of one result,
    `left` and `right`: {"policy": "score:mine"} and {"policy": "snapkv"}. `kvreplay compare`, with its options as keywords.
    """
    folders = [os.fspath(getattr(one, "folder", one)) for one in (a, a if b is None else b)]
    chosen = {name: rows if isinstance(rows, str) else ",".join(f"{key}={value}" for key, value in rows.items())
              for name, rows in (("left", left), ("right", right)) if rows is not None}
    with tempfile.TemporaryDirectory(prefix="kvreplay-") as folder:
        printed = run("compare", *folders, *words_of({"out": f"{folder}/compared", **chosen, **options}))
        found = Comparison(printed.partition("\nevery figure: ")[0].rstrip("\n"))
        found.tables = {}
        for path in sorted(Path(folder, "compared").glob("compare_*.csv")):
            with open(path, newline="", encoding="utf-8") as file:
                found.tables[path.stem.removeprefix("compare_")] = list(csv.DictReader(file))
    return found


def words_of(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
    return words


def written_scores(scores: Mapping[str, Any], dumps: Sequence[str], split: Union[int, str, None], folder: Path) -> list[str]:
    """Options of the program for functions whose scores of every dump's layers are computed here."""
    words = []
    for name, score in scores.items():
        if not callable(score):
            raise _core.InputError(f"score {name}: expected text or a function of (q, k, v), found {type(score).__name__}")
        arrays = folder / str(len(words))
        arrays.mkdir()
        for path, dump_name in zip(dumps, _core.dump_names(dumps)):
            each = []
            for layer in Dump(path, split):
                found = score_of(score, layer)
                if np.ma.is_masked(found):
                    raise _core.InputError(f"score {name}: expected an array without masked entries, found some")
                found = np.asarray(found)
                each.append(found if found.dtype.kind in "iu" else found.astype(np.float64))  # integers are not rounded
                if each[-1].shape != (layer.n_kv, layer.prompt_len):
                    raise _core.InputError(f"score {name}: expected shape [{layer.n_kv}, {layer.prompt_len}], "
                                           f"found {list(each[-1].shape)} for layer {len(each) - 1} of {path}")
            np.save(arrays / f"{dump_name}.npy", np.stack(each))
        words += ["--score", f"{name}={arrays}/{{dump}}.npy"]
    return words


def run(*words: str, ends: Sequence[int] = (0,)) -> str:
    """What the program prints, where its exit status is one of `ends`; what it refuses is an InputError."""
    with subprocess.Popen([program(), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            printed, said = running.communicate()
        except KeyboardInterrupt:
            running.send_signal(signal.SIGINT)  # where only this process got it
            running.wait()
            raise
    if running.returncode == 130:
        raise KeyboardInterrupt(said.strip())
    if running.returncode not in ends:
        line = said.strip().removeprefix("kvreplay: ")
        raise _core.InputError(line) if running.returncode == 2 else RuntimeError(line or f"kvreplay ended with {running.returncode}")
    return printed

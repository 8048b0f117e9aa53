"""validate.csv, validate_layers.csv, validate_steps.npy and validate.json of a result folder, for kvvalidate.py."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Tuple

import numpy as np
import torch
import transformers

from dump_files import read_text, require, write_json
from answers import COLUMNS as ANSWER_COLUMNS
from kvresults import ResultsError
from model_loop import FIGURES
from validation_cases import KEYS

SAME_NLL = 1e-3  # nats a step: far above what other hardware rounds, far below what another model says
Figures = Dict[Tuple[str, ...], Dict[str, Optional[float]]]  # by a case's keys


class ValidationFiles:
    """What was found of the cases: `whole` and the KL of every step, `steps`, by their keys, `single` by the layer changed
    alone and these."""

    def __init__(self, folder: Path, how: dict[str, Any], also: dict[str, Any], judged: bool = False):
        """how: what the figures depend on; also: what else validate.json is to say; judged: are there answers?"""
        self.folder, self.how, self.also = folder, how, also
        self.whole: Figures = {}
        self.single: Figures = {}
        self.judged = judged
        self.answers: Dict[Tuple[str, ...], Dict[str, Any]] = {}
        self.steps: Dict[Tuple[str, ...], np.ndarray] = {}

    def take_up(self) -> None:
        """What an earlier validation finished, if there is one; refused where it was computed otherwise."""
        if not (self.folder / "validate.json").exists():
            return
        try:
            before = json.loads(read_text(self.folder / "validate.json"))
            for key, now in self.how.items():
                was, what = before[key], f"{self.folder}: cannot resume (--force begins anew): {key}"
                near = key == "nll" and None not in (now, was) and abs(now - was) <= SAME_NLL
                require(near or was == now, what, was, now)
            if not all((self.folder / name).exists() for name in ("validate_steps.npy", *["answers.csv"] * self.judged)):
                return  # written before there were these: all is done again
            self.whole = read_figures(self.folder / "validate.csv", KEYS)
            kl = np.load(self.folder / "validate_steps.npy")
            if kl.shape[1:] != (self.how["steps"],) or len(kl) < len(self.whole):
                raise ValueError(f"validate_steps.npy of shape {kl.shape}")
            self.steps = dict(zip(self.whole, kl))
            if self.judged:
                self.answers = read_answers(self.folder / "answers.csv")
            if self.how["each_layer"]:
                self.single = read_figures(self.folder / "validate_layers.csv", ("layer", *KEYS))
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            found = f"found a damaged one ({error!r}; --force begins anew)"
            raise ResultsError(f"{self.folder}: expected a validation to resume, {found}") from None

    def write(self, finished: bool) -> None:
        """validate.csv last: a case that it has is done."""
        origin = f"kvvalidate.py: torch {torch.__version__}, transformers {transformers.__version__}"
        write_json(self.folder / "validate.json", {**self.how, "finished": finished, **self.also, "origin": origin})
        if self.how["each_layer"]:
            write_figures(self.folder / "validate_layers.csv", ("layer", *KEYS), self.single)
        else:
            (self.folder / "validate_layers.csv").unlink(missing_ok=True)
        kl = np.array(list(self.steps.values()), np.float64).reshape(-1, self.how["steps"])
        file = io.BytesIO()
        np.save(file, kl)
        replace(self.folder / "validate_steps.npy", file.getvalue())
        if self.judged:
            write_answers(self.folder / "answers.csv", self.answers)
        write_figures(self.folder / "validate.csv", KEYS, self.whole)


def write_figures(path: Path, keys: Iterable[str], figures_of: Figures) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*keys, "metric", "value"])
    for case, values in figures_of.items():
        for metric, value in values.items():
            table.writerow([*case, metric, "" if value is None else repr(value)])
    replace(path, text.getvalue().encode("utf-8"))


def write_answers(path: Path, answers: dict[tuple[str, ...], dict[str, Any]]) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*KEYS, *ANSWER_COLUMNS])
    for case, found in answers.items():
        table.writerow([*case, *("" if value is None else value for value in found.values())])
    replace(path, text.getvalue().encode("utf-8"))


def read_answers(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row.get(key, "stored") for key in KEYS): {name: row[name] for name in ANSWER_COLUMNS} for row in rows}


def replace(path: Path, data: bytes) -> None:
    """All of the file or nothing: an interruption leaves the former one."""
    new = path.with_suffix(".new")
    try:
        new.write_bytes(data)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def read_figures(path: Path, keys: Iterable[str]) -> Figures:
    """The cases of a table whose figures are all there. Tables without the column `protocol` are of stored caches."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        header, older = next(rows, []), [*(key for key in keys if key != "protocol"), "metric", "value"]
        if header not in ([*keys, "metric", "value"], older):
            raise ValueError(f"columns {','.join(header)}")
        found: Figures = {}
        for *case, metric, value in rows:
            case = (*case, "stored") if header == older else tuple(case)
            found.setdefault(case, {})[metric] = float(value) if value else None
    return {case: values for case, values in found.items() if tuple(values) == FIGURES}

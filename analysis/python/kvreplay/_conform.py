"""Whether an implementation keeps what a policy keeps: the program's `conform`, for arrays and test suites."""
from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Union

import numpy as np

from . import _core
from ._layer import Dump
from ._options import takes
from ._program import AnyPath, run, words_of


class Conformance(str):
    """What `kvreplay conform` says. True in a condition where everything conforms, but for ties."""

    ok: bool
    cases: List[Dict[str, Any]]  # of every budget: "verdict", "text", "first", "readings", "costs", .. as --json has them

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return str(self)


@takes(program=True)
def conform(dump: Union[AnyPath, Dump], policy: str, kept: Any = None, *, cache: Any = None, scores: Any = None, budgets: Any = None,
            **options: Any) -> Conformance:
    """Checks the kept sets of an implementation of a policy on a dump's prompt: `kvreplay conform`, with its options as keywords
    (keep=0.2, sigma=0.8, semantics="kvpress", numbers="float16", variants=0).

    kept: what kept_of() found; booleans [layers, n_kv, l]; positions [layers, n_kv, n], or lists of them; a file; of several
    budgets a list of files. cache: the folder of what is held, or what kept_of() found. scores: what was ranked by,
    [layers, n_kv, l]. budgets: tokens of every head, [layers, n_kv].

        assert kvreplay.conform("DUMP", "snapkv", kept, keep=0.2)        # what fails prints the verdict
    """
    given = {"as": policy, "prompt_len": dump.split if isinstance(dump, Dump) else None, **options}
    path = dump.path if isinstance(dump, Dump) else os.fspath(dump)
    with tempfile.TemporaryDirectory(prefix="kvreplay-") as folder:
        for name, value in (("kept", kept), ("scores", scores), ("budgets", budgets)):
            if value is not None:
                given[name] = file_of(value, name, Path(folder))
        if cache is not None:
            if hasattr(cache, "save_cache"):
                cache.save_cache(Path(folder) / "cache")
                cache = Path(folder) / "cache"
            given["cache"] = os.fspath(cache)
        found = json.loads(run("conform", path, "--json", *words_of(given), ends=(0, 1)))
    result = Conformance(found["report"])
    result.ok, result.cases = found["ok"], found["cases"]
    return result


def file_of(value: Any, name: str, folder: Path) -> Any:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, (str, os.PathLike)) for one in value):
        return [os.fspath(one) for one in value]
    if hasattr(value, "save"):
        value.save(folder / f"{name}.npy")
        return str(folder / f"{name}.npy")
    if isinstance(value, (list, tuple)):
        file = folder / f"{name}.json"
        try:
            file.write_text(json.dumps(value, default=lambda each: np.asarray(each).tolist()))
        except TypeError as error:
            raise _core.InputError(f"{name}: expected arrays or lists of positions, found {error}") from error
        return str(file)
    np.save(folder / f"{name}.npy", np.asarray(value))
    return str(folder / f"{name}.npy")

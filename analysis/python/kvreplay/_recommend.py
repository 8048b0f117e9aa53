"""Which recipe within so many bytes: the program's `recommend`."""
from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Union

from ._options import takes
from ._program import AnyPath, run, words_of
from .results import Results, ResultsOverDumps


class Recommended(str):
    """What `kvreplay recommend` says, as --json has it."""

    recommendations: List[Dict[str, Any]]  # of every number of bytes: "candidates", the cheapest first, "first_over_second", ..
    front: List[Dict[str, Any]]  # what none beats in both bytes and nats, the same everywhere
    run: List[Dict[str, Any]]  # recipes of which there are results, all heads at once

    def __repr__(self) -> str:
        return str(self)


@takes(program=True)
def recommend(results: Any, bytes: Union[str, float, Sequence[Union[str, float]]], *, engine: Optional[str] = None, out: Optional[AnyPath] = None,
              **options: Any) -> Recommended:
    """The cheapest recipe for a model within so many bytes, from what evict or analyze measured: `kvreplay recommend`, with its
    options as keywords (context=32768, batch=8, without=["dialogue"]).

    results: a folder or opened results, or several of the same prompts. bytes: "20%", 0.2, "1.5GiB", or several. engine: what is
    to run it, --for. out: the file for the recipe, for press() and evict --recipe; RuntimeError where nothing is small enough for it.

        pandas.DataFrame(kvreplay.recommend("results/levers", "20%").front)
    """
    several = [results] if isinstance(results, (str, os.PathLike, Results, ResultsOverDumps)) else list(results)
    given = {"bytes": bytes, "for": engine, "out": None if out is None else os.fspath(out), **options}
    folders = [os.fspath(getattr(one, "folder", one)) for one in several]
    found = json.loads(run("recommend", *folders, "--json", *words_of(given)))
    result = Recommended(found["report"])
    result.recommendations, result.front, result.run = found["recommendations"], found["front"], found.get("run", [])
    return result

#!/usr/bin/env python3
"""Holds judged answers against a plain loop over transformers' own cache, which has of kvvalidate.py how a model is read.

  answer_check.py --model NAME=FILE [--work build/answers] [--cases 200] [--seed 0]

Of the evictions that answer_record.py had judged, so many are drawn. The model reads the prompt once more; what a head evicted
is gathered out of its cache; and the model decodes freely from the question to the end of its answer. Whether that is right has to
be what answers.csv says. Exit status 1 where it is not.
"""
from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from study import read

from answer_tasks import score  # noqa: E402  data/capture
from kvresults import Results, open_results  # noqa: E402
from kvvalidate import load_model, tokenizer_of  # noqa: E402


class Judged(NamedTuple):
    """A case of one sample, and whether its answer was found to be right."""

    dump: Path
    results: Results
    row: dict[str, str]

    @property
    def l(self) -> int:
        return self.results.summary["dump"]["l"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, metavar="NAME=FILE", help="as answer_record.py had it")
    add("--work", type=Path, default=Path("build/answers"), help="where answer_record.py wrote")
    add("--cases", type=int, default=200, metavar="N")
    add("--seed", type=int, default=0, metavar="N", help="that cases are drawn by (default 0)")
    args = parser.parse_args()
    name, file = args.model.split("=", 1)
    found = list(judged(args.work / name))
    found = random.Random(args.seed).sample(found, min(args.cases, len(found)))
    found.sort(key=lambda case: (case.dump, case.l))
    model, tokenizer = load_model(file, "float32", None), tokenizer_of(file)
    cache, read_so_far, flips, others = None, None, 0, []
    for number, case in enumerate(found):
        ids = json.loads((case.dump / "tokens.json").read_text())["ids"]
        if read_so_far != (case.dump, case.l):
            with torch.no_grad():
                cache = model(input_ids=torch.tensor([ids[: case.l]]), use_cache=True, logits_to_keep=1).past_key_values
            read_so_far = case.dump, case.l
        task = json.loads((case.dump / "manifest.json").read_text())["task"]
        begin = task["spans"]["answer"][0]
        said = decode(model, gathered(cache, case), ids[case.l : begin], case.l, task["longest"], tokenizer.ends)
        right = int(score(tokenizer.join(said), task["references"]) == 1)
        flips += not right
        if right != int(case.row["right"]):
            others.append(f"{case.dump.name} {case.row['policy']} {case.row['budget']} of {case.l} tokens: "
                          f"{case.row['answer']!r}, decoded freely {tokenizer.join(said)!r}")
        print(f"{number + 1} of {len(found)}: {flips} flipped, {len(others)} judged otherwise", flush=True)
    print("\n".join(others) or f"{len(found)} answers, {flips} of them wrong, all as they were judged")
    return 1 if others else 0


def judged(folder: Path):
    """The evictions that were judged, by all folders of results."""
    for part in sorted(folder.glob("*/*/answers.csv")):
        results = open_results(part.parent)
        if results.summary.get("options", {}).get("evict", {}).get("channels"):
            continue  # what is kept there lost channels
        kept = results.names("kept") if "evictions" in results.tables else ()
        for row in read(part):
            keeps = f"{row['policy']}-{row['semantics']}-{row['phase']}-{row['kept']}" in kept
            if row["right"] and keeps and "~" not in row["policy"] and row["policy"] != "none":
                yield Judged(folder / "dumps" / part.parent.name, results, row)


def gathered(cache, case: Judged):
    """The prompt's cache with what is kept: as many tokens in every head of a layer."""
    cache, row = copy.deepcopy(cache), case.row
    name = f"{row['policy']}-{row['semantics']}-{row['phase']}-{row['kept']}"
    for i, layer in enumerate(cache.layers):
        kept = case.results.kept(name, i).values
        at = torch.from_numpy(np.stack([np.flatnonzero(head) for head in kept]))[None, :, :, None]
        layer.keys = layer.keys.gather(2, at.expand(-1, -1, -1, layer.keys.shape[3]))
        layer.values = layer.values.gather(2, at.expand(-1, -1, -1, layer.values.shape[3]))
    return cache


def decode(model, cache, given: list[int], begin: int, longest: int, ends: set[int]) -> list[int]:
    """What the model says, greedily, behind these tokens from position `begin` on: to an end of the text or `longest` tokens."""
    said, fed = [], given
    while len(said) < longest:
        held, rows = cache.layers[0].keys.shape[2], len(fed)
        seen = torch.cat((torch.ones(rows, held, dtype=torch.bool), torch.ones(rows, rows, dtype=torch.bool).tril()), dim=1)
        at = torch.arange(begin, begin + rows)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([fed]), past_key_values=cache, position_ids=at[None], attention_mask=seen[None, None],
                        use_cache=True, logits_to_keep=1)
        begin, chosen = begin + rows, int(out.logits[0, -1].argmax())
        if chosen in ends:
            break
        said.append(chosen)
        fed = [chosen]
    return said


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Perplexity over length: texts that a model reads in blocks of 128 tokens over a cache of fixed size, cut after every block.

  perplexity.py --model NAME=FILE ... [--policy NAME ...] [--budget N ...] [--prompt NAME ...] [--out DIR]
  perplexity.py --write        puts the tables of perplexity.csv beside this script into README.md

The model reads the first 4,096 tokens of each text. After every block each layer's cache is cut to the budget by the queries, keys and
values that the model computed over the cut caches (kvvalidate.py --feedback). perplexity.csv has a
row per case: the mean negative log-likelihood of tokens 3 to 512, 1,024, 2,048 and 4,096, in nats. Cases in the file are not run again.
Needs torch, transformers and kvreplay's Python package. SmolLM2-135M takes about 30 seconds of one core per case.
"""
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from analysis import fill, table, times
from study import HERE, read, write_csv  # finds data/capture, too

from prompts import PROMPTS

BLOCK, LENGTHS, BUDGETS = 128, (512, 1024, 2048, 4096), (128, 256, 512, 1024)
WHOLE = "whole"  # in place of a policy
TEXTS = ("licence", "manual", "code", "services")
POLICIES = ("streaming", "keydiff", "h2o", "h2o+joint", "h2o+caote", "h2o+fastcaote", "tova", "tova+caote", "tova+fastcaote", "snapkv")
COLUMNS = ("model", "prompt", "policy", "budget", *(f"nll_{length}" for length in LENGTHS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE", help="a GGUF file")
    parser.add_argument("--policy", nargs="+", default=POLICIES, metavar="NAME")
    parser.add_argument("--budget", nargs="*", type=int, default=BUDGETS, metavar="N", help="tokens of every head")
    parser.add_argument("--prompt", nargs="+", default=TEXTS, metavar="NAME", choices=[prompt.name for prompt in PROMPTS])
    parser.add_argument("--length", type=int, default=LENGTHS[-1], choices=LENGTHS, help="tokens of a text that are read (default: all)")
    parser.add_argument("--out", type=Path, default=HERE, help="where perplexity.csv is (default: beside this script)")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        page = HERE / "README.md"
        page.write_text(fill(page.read_text(encoding="utf-8"), tables(read(HERE / "perplexity.csv"))), encoding="utf-8")
        return 0
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, file)
    return 0


def measure(args, model, file) -> None:
    """Runs the cases of one model that perplexity.csv lacks, and writes the file after each."""
    from kvvalidate import load_model, tokenizer_of
    from model_loop import ModelLoop

    path = args.out / "perplexity.csv"
    rows = read(path) if path.exists() else []
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    cases = [("", WHOLE), *((budget, policy) for budget in args.budget for policy in args.policy)]
    tokenizer, ids = tokenizer_of(file), {}
    with ModelLoop(load_model(file, "float32", None)) as loop:
        for budget, policy in cases:
            for prompt in (prompt for prompt in PROMPTS if prompt.name in args.prompt):
                case = model, prompt.name, policy, str(budget)
                if case in done:
                    continue
                began = time.process_time()
                if prompt.name not in ids:
                    ids[prompt.name] = tokenizer.encode(prompt.text())[: args.length]
                    if len(ids[prompt.name]) < args.length:
                        sys.exit(f"perplexity: {prompt.name}: expected {args.length} tokens, found {len(ids[prompt.name])}")
                nll = losses(loop, ids[prompt.name], policy, budget)
                found = [f"{nll[: length - 2].mean():.5f}" if length <= args.length else "" for length in LENGTHS]
                rows.append(dict(zip(COLUMNS, (*case, *found))))
                write_csv(path, COLUMNS, rows)
                print(*case, *found, f"{time.process_time() - began:.0f} s", flush=True)


def losses(loop, ids, policy, budget):
    """The negative log-likelihood of tokens 3, 4, ... read in blocks over caches of `budget` tokens, in nats."""
    import torch
    from validation_cases import growing_caches

    of = {"policy": "streaming", "budget": len(ids)} if policy == WHOLE else {"policy": policy, "budget": budget}
    asked = {**of, "phase": f"blockwise:{BLOCK}", "threads": 1}
    loop.begin(ids, 1)
    caches = {i: growing_caches(asked, len(ids), layer, len(ids)) for i, layer in loop.layers.items()}
    found, following = [], torch.tensor(ids[2:])  # the first logits are those behind token 2
    for logits in loop.grow(caches):
        rows, following = following[: len(logits)], following[len(logits) :]
        logits = logits[: len(rows)].double().cpu()
        found.append((logits.logsumexp(-1) - logits[range(len(rows)), rows]).numpy())
    return np.concatenate(found)


def ratios(rows):
    """{(model, policy, budget): {length: [log of the perplexity over the whole cache's, by text]}}, of lengths above the budget."""
    nll = {tuple(row[name] for name in COLUMNS[:4]): [row[name] for name in COLUMNS[4:]] for row in rows}
    found = {}
    for (model, prompt, policy, budget), values in nll.items():
        for length, mine, whole in zip(LENGTHS, values, nll[model, prompt, WHOLE, ""]):
            if policy != WHOLE and mine and length > int(budget):
                found.setdefault((model, policy, budget), {}).setdefault(length, {})[prompt] = float(mine) - float(whole)
    return found


def tables(rows):
    """By name: the perplexity of the whole cache, of each policy over it by length, and of each policy over H2O's."""
    header = [f"{length:,} tokens" for length in LENGTHS]
    whole = [[row["model"], row["prompt"], *(f"{np.exp(float(row[name])):.2f}" if row[name] else "" for name in COLUMNS[4:])]
             for row in rows if row["policy"] == WHOLE]
    models, found = list(dict.fromkeys(row["model"] for row in rows)), ratios(rows)
    lines = [[model, budget, f"`{policy}`", *(times(list(of[length].values())) if length in of else "" for length in LENGTHS)]
             for (model, policy, budget), of in sorted(found.items(), key=lambda case: (models.index(case[0][0]), int(case[0][2])))]
    pairs = []
    for (model, policy, budget), of in found.items():
        if policy != "h2o" and (base := found.get((model, "h2o", budget))):
            last = max(of)
            pairs.append([model, budget, f"`{policy}`", f"{last:,}", times([of[last][text] - base[last][text] for text in of[last]], 3)])
    return {"perplexity whole": table(["model", "text", *header], whole),
            "perplexity pairs": table(["model", "tokens kept", "policy", "tokens read", "perplexity over `h2o`'s"],
                                      sorted(pairs, key=lambda line: (models.index(line[0]), int(line[1])))),
            "perplexity": table(["model", "tokens kept", "perplexity over the whole cache's", *header], lines)}


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""OBCache's figure 2 on its own kind of prompt: how many of the first generated step's 40 costliest tokens scores find in a passkey prompt.

  kvcapture.py --gguf FILE --task niah_single_2 --samples 5 --length 4096 --out FOLDER      (beside data/capture)
  passkey.py --program KVREPLAY --work DIR --model NAME FOLDER [--out DIR]
  passkey.py --program KVREPLAY --work DIR --model NAME --answers FILE FOLDER [--out DIR]

Writes passkey.csv, a row a prompt, score, window and reserve: the mean over query heads, each with its own scores and its own costliest
tokens, as OBCache has them. The prompt ends where the answer begins. --answers feeds the model of that file the prompts cut to a tenth and
less, down to 40 tokens, behind the question, and writes passkey_answers.csv. page.py reads both.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from divisions import keep
from study import CAPTURE, HERE, read, shorter

CACHES = {"query heads": ["--per-query-head"], "groups": []}
POLICIES = [f"h2o{score}[window=16,recent=16]" for score in ("", "+attn_sq", "+value", "+key", "+joint")] + [
    f"snapkv{score}[window=16]" for score in ("", "+key", "+joint")]
ANSWERED = ("model", "prompt", "caches", "policy", "budget", "kept", "right", "kl_answer")
COLUMNS = ("model", "prompt", "tokens", "score", "window", "reserve", "recall")
WINDOWS, RESERVES, FOUND = ("1", "16", "32", "64"), (0, 20), 40
SCORES = ("attn", "attn_sq", "value", "key", "joint", "exact_joint")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that kvcapture.py --task wrote")
    parser.add_argument("--program", default="kvreplay", help="the kvreplay to run")
    parser.add_argument("--work", type=Path, default=Path("build/study/passkey"), help="where results are written")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="asks the model, a GGUF file or a folder")
    parser.add_argument("--out", type=Path, default=HERE, help="where the tables are (default: beside this script)")
    args = parser.parse_args()
    if args.answers:
        keep(args.out / "passkey_answers.csv", ANSWERED, args.model, [row for caches in CACHES for row in answers(args, caches)])
        return 0
    rows = []
    for dump in sorted(path.parent for path in args.folder.glob("*/manifest.json")):
        prompt_len = json.loads((dump / "manifest.json").read_text())["task"]["spans"]["answer"][0]
        for window in WINDOWS:
            results = args.work / dump.name
            subprocess.run([args.program, "tokens", dump, "--out", results, "--prompt-len", str(prompt_len), "--window", window, "--per-query-head",
                            "--metrics", ",".join((*SCORES, "oracle_next")), "--threads", args.threads, "--force", "--quiet"], check=True)
            oracle = heads_of(results, "oracle_next")
            for score in SCORES:
                values = heads_of(results, score)
                rows += [{"prompt": dump.name, "tokens": prompt_len, "score": score, "window": window, "reserve": reserve,
                          "recall": shorter(np.mean([recall(*pair, reserve) for pair in zip(values, oracle, strict=True)]))} for reserve in RESERVES]
    keep(args.out / "passkey.csv", COLUMNS, args.model, rows)
    return 0


def answers(args, caches):
    """Evicts from all prompts, feeds the model what stays, and yields what it answers."""
    dumps, results = sorted(path.parent for path in args.folder.glob("*/manifest.json")), args.work / caches.replace(" ", "_")
    subprocess.run([args.program, "evict", *dumps, "--out", results, "--prompt-len", "question", "--sigma", "0.9,0.95,0.98,0.99", "--policy",
                    ",".join(POLICIES), *CACHES[caches], "--threads", args.threads, "--force", "--quiet"], check=True)
    subprocess.run([sys.executable, CAPTURE / "kvvalidate.py", "--model", args.answers, "--results", results, "--force"], check=True)
    for dump in dumps:
        for row in read(results / dump.name / "answers.csv"):
            yield {"prompt": dump.name, "caches": caches, "policy": row["policy"], "budget": row["budget"], "kept": row["kept"],
                   "right": row["right"], "kl_answer": shorter(row["kl_answer"])}


def heads_of(results, metric):
    """[query heads of all layers, l]"""
    return np.concatenate([np.load(layer / "tokens" / f"{metric}.npy") for layer in sorted(results.glob("layer_*"))])


def recall(score, oracle, reserve):
    """Of the oracle's largest FOUND tokens those among the score's, the last `reserve` tokens being of these whatever it says; of equals
    the first."""
    score = score.copy()
    score[len(score) - reserve:] = np.inf
    chosen, best = (set(np.argsort(-values, kind="stable")[:FOUND]) for values in (score, oracle))
    return len(chosen & best) / FOUND


if __name__ == "__main__":
    sys.exit(main())

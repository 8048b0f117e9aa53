#!/usr/bin/env python3
"""LU-KV's protocol: a profile of one context with many questions, used on other tasks and on running text.

  transfer.py --program KVREPLAY --work DIR --model NAME=FILE KIND=FOLDER ... [--out DIR]

The context is the story of the study's prompts, the questions are those of prompts/questions.txt. Each question that the model
answers is captured, the question unseen, and gives a profile by `lu`; their mean divides the budgets of the dumps in FOLDER, and as
well the mean of the other dumps' there. Writes transfer.csv, a row a dump, division and budget: true KL, whether the answer is right (of
questions), and the correlation over heads of the budgets with those of `lu`, which knows the dump's decoding steps; asked.csv has the
questions. page.py reads transfer.csv.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from answer_record import ASKED_COLUMNS
from divisions import heads_of, keep
from study import CAPTURE, HERE, read, shorter, write_csv

SIGMAS, ORDER = ("0.5", "0.8"), "snapkv"
TOLD, ASKED = HERE / "prompts" / "story.txt", HERE / "prompts" / "questions.txt"
COLUMNS = ("model", "kind", "prompt", "divided_by", "budget", "true_kl", "right", "correlation")
PROFILES = {"questions": "profile of the questions", "others": "profile of the others"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", metavar="KIND=FOLDER", help="dumps of texts, or of questions that the model answers")
    parser.add_argument("--program", default="kvreplay", help="the kvreplay to run")
    parser.add_argument("--work", type=Path, default=Path("build/study/transfer"), help="where dumps and results are written")
    parser.add_argument("--model", required=True, metavar="NAME=FILE")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--out", type=Path, default=HERE, help="where transfer.csv is (default: beside this script)")
    args = parser.parse_args()
    model, file = args.model.split("=", 1)
    profiles, rows = ",".join(map(str, profiles_of(args, file))), []
    for kind, folder in (text.split("=", 1) for text in args.kinds):
        dumps = sorted(path.parent for path in Path(folder).glob("*/manifest.json"))
        results = {name: args.work / f"{kind}_{name}" for name in PROFILES}
        for name, profile in (("questions", profiles), ("others", "leave-one-out")):
            methods = "uniform,pyramid,ada,lu" if name == "questions" else "lu"  # the rest is the same
            divide(args, dumps, results[name], methods, profile)
        subprocess.run([sys.executable, CAPTURE / "kvvalidate.py", "--model", file, "--results", *results.values(), "--resume"], check=True)
        rows += [{"kind": kind, **row} for name in PROFILES for row in rows_of(results[name], [dump.name for dump in dumps], name)]
        keep(args.out / "transfer.csv", COLUMNS, model, rows)
    path, name = args.out / "asked.csv", ASKED.stem
    others = [row for row in read(path) if (row["model"], row["task"]) != (model, name)] if path.exists() else []
    asked = [{**{column: row.get(column) for column in ASKED_COLUMNS}, "model": model} for row in read(args.work / name / "tasks.csv")]
    write_csv(path, ASKED_COLUMNS, others + asked)
    return 0


def profiles_of(args, file):
    """Of every question that the model answers, the prune ratios of `lu`."""
    context = TOLD.read_text(encoding="utf-8")
    lines = [line.split(" | ") for line in ASKED.read_text(encoding="utf-8").splitlines()]
    args.work.mkdir(parents=True, exist_ok=True)
    asked = args.work / "questions.jsonl"
    asked.write_text("".join(json.dumps({"context": context, "question": question, "prefix": "The answer is", "references": [answer], "longest": 12})
                             + "\n" for question, answer in lines))
    dumps, results = args.work / "questions", args.work / "profiles"
    subprocess.run([sys.executable, CAPTURE / "kvcapture.py", "--gguf", file, "--task", asked, "--samples", str(len(lines)), "--length", "4096",
                    "--out", dumps, "--resume"], check=True)
    found = sorted(path.parent for path in dumps.glob("*/manifest.json"))
    divide(args, found, results, "lu", "none")
    return [results / dump.name / "curves" / f"{ORDER}~lu.npy" for dump in found]


def divide(args, dumps, results, methods, profile):
    subprocess.run([args.program, "budget", *dumps, "--out", results, "--order", ORDER, "--method", methods, "--sigma", ",".join(SIGMAS),
                    "--profile", profile, "--threads", args.threads, "--force", "--quiet"], check=True)


def rows_of(results, prompts, name):
    """Of the profile of others only that; what else is there stands beside the profile of the questions."""
    _, budgets = heads_of(results, prompts)
    for prompt in prompts:
        for part in (results / prompt, results / "leave_one_out" / prompt):
            if not part.exists():
                continue
            right = {(row["policy"], row["budget"]): row["right"] for row in read(part / "answers.csv")} if (part / "answers.csv").exists() else {}
            for row in read(part / "validate.csv"):
                method = row["policy"].split("~")[1]
                if row["metric"] == "kl" and (name == "questions" or method == "profile"):
                    at = row["budget"]
                    same = np.corrcoef(budgets[prompt, ORDER, at, method], budgets[prompt, ORDER, at, "lu"])[0, 1] if method != "uniform" else ""
                    yield {"prompt": prompt, "divided_by": PROFILES[name] if method == "profile" else method, "budget": at,
                           "true_kl": shorter(row["value"]), "right": right.get((row["policy"], at), ""), "correlation": shorter(same)}


if __name__ == "__main__":
    sys.exit(main())

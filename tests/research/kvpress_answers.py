#!/usr/bin/env python3
"""Asks the record's questions in kvpress' own pipeline, with a kvreplay policy as its press, and holds the answers against ours.

  PYTHONPATH=build/release/python kvpress_answers.py --model NAME=FILE --policy snapkv --sigma 0.8 [--task niah_multikey_1] [--work build/answers]

What kvpress' evaluation does with a sample of its data: the context is read and compressed, the question is then asked, the score is
the share of the references that the answer has. Needs kvpress 0.5 beside torch and transformers. Exit status 1 where an answer is
right here and wrong there, or wrong here and right there.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from study import read

from answer_tasks import score  # noqa: E402  data/capture
from capture_tasks import read_tasks  # noqa: E402
from kvvalidate import load_model, tokenizer_of  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, metavar="NAME=FILE", help="as answer_record.py had it")
    add("--work", type=Path, default=Path("build/answers"), help="where answer_record.py wrote")
    add("--policy", default="snapkv")
    add("--sigma", default="0.8", help="the share that is evicted")
    add("--task", default="niah_multikey_1")
    args = parser.parse_args()
    try:
        import kvpress  # noqa: F401  registers its pipeline
        import kvreplay
        import transformers
    except ImportError as missing:
        print(f"kvpress_answers: expected kvpress, transformers and kvreplay, found {missing}", file=sys.stderr)
        return 2
    name, file = args.model.split("=", 1)
    ours = {row["sample"]: row for row in read(args.work / name / "answers.csv")
            if (row["task"], row["policy"], row["budget"], row["protocol"]) == (args.task, args.policy, args.sigma, "agnostic")}
    tokenizer, model = tokenizer_of(file), load_model(file, "float32", None)
    how = json.loads((args.work / name / "dumps" / "tasks.json").read_text())
    drawn = argparse.Namespace(task=args.task, samples=1 + max(map(int, ours)), length=how["length"], haystack=None, seed=how["seed"])
    (task,) = read_tasks(drawn, tokenizer, sys.maxsize)
    ask = transformers.pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer.own)
    others = right = 0
    for number, sample in enumerate(task.samples):
        if str(number) not in ours:
            continue
        press = kvreplay.press(args.policy, float(args.sigma), semantics="paper")
        said = ask(sample.context, question=f"\n\n{sample.question}", answer_prefix=sample.prefix, press=press,
                   max_new_tokens=sample.longest)["answer"]
        found, mine = int(score(said, sample.references) == 1), int(ours[str(number)]["right"])
        right, others = right + found, others + (found != mine)
        print(f"{args.task} {number}: {'right' if found else 'wrong'} in kvpress, {'right' if mine else 'wrong'} here: {said!r}", flush=True)
    print(f"{args.policy} {args.sigma}: kvpress {right} of {len(ours)} right, here {sum(row['right'] == '1' for row in ours.values())}, "
          f"{others} judged otherwise")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What the figures in nats would say with endless samples: half of D^T F D, exactly.

  second_order.py --work build/study --model NAME=FILE [--prompt NAME] [--sigma 0.8]

The model runs with every attention output moved by a small part of the change D that a case makes in it, up and down:
KL(full || o + eps D) / eps^2. What is left between this and the true KL is beyond second order, and no gradients at the
full model can say it. Beside it, of the steps whose true KL is LARGE and more, and of the others: their part of the
true KL, and what second order says of it. DIR/<model>/<prompt>/second_order.csv; needs the prompt's dump
(study.py --keep-dumps).
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data" / "capture"))

from kvresults import open_results  # noqa: E402
from kvvalidate import load_model  # noqa: E402
from model_loop import Fed, ModelLoop, figures_of_steps  # noqa: E402
from validation_cases import cases_of  # noqa: E402

from study import ALONE, SECOND_ORDER, named, shorter, write_csv  # noqa: E402

EPS, LARGE = 0.02, 0.5


class Partly(ModelLoop):
    """A model in the loop whose attention outputs go a part of the way from full to changed."""

    part = 1.0

    def _heads_of(self, text, index, layer, query, key, value):
        changed = super()._heads_of(text, index, layer, query, key, value)
        if index not in text.changes:
            return changed
        full = super()._heads_of(Fed({}, text.end), index, layer, query, key, value)
        return full + self.part * (changed - full)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/study"), help="where study.py wrote")
    parser.add_argument("--model", required=True, metavar="NAME=FILE", help="as study.py had it")
    parser.add_argument("--prompt", default=ALONE)
    parser.add_argument("--sigma", nargs="+", default=["0.8"])
    args = parser.parse_args()
    name, file = args.model.split("=", 1)
    folder = args.work / name / args.prompt
    results = open_results(folder / "evict")
    ids = json.loads((folder / "dump" / "tokens.json").read_text())["ids"]
    rows = []
    with Partly(load_model(file, "float32", None)) as loop:
        full = loop.read(ids, results.summary["dump"]["l"])
        for case in cases_of(results)[0]:
            policy, budget = named(case.keys[0], case.keys[3])
            if budget not in args.sigma:
                continue
            changes, steps = {layer: case.change(layer) for layer in results.layers}, {}
            for loop.part in (EPS, -EPS, 1.0):
                steps[loop.part] = figures_of_steps(full, loop.feed(changes))[0]
            second, true = (steps[EPS] + steps[-EPS]) / EPS**2 / 2, steps[1.0]
            parts = [(x * where).mean() for where in (true >= LARGE, true < LARGE) for x in (true, second)]
            figures = dict(zip(SECOND_ORDER[4:], map(shorter, (second.mean(), true.mean(), *parts))))
            rows.append({"model": name, "prompt": args.prompt, "policy": policy, "budget": budget, **figures})
            print(" ".join(rows[-1].values()), flush=True)
    write_csv(folder / "second_order.csv", SECOND_ORDER, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

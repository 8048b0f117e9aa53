#!/usr/bin/env python3
"""Measures whether a choice of `kvreplay recommend` holds on kinds of prompts that it was not made on.

  advice.py --program KVREPLAY --work DIR --model NAME=FILE ... [--draws N] [--out DIR]
  advice.py --write [DIR]      puts the tables of DIR/advice.csv (default: beside this script) into RECIPES.md

There are sixteen prompts of four kinds: code, conversations with a system prompt, texts to summarise, and lookups. Of every kind in
turn, recipes and plain settings are chosen on 1, 2, 4 and 8 prompts of the other three kinds, and the model decodes each prompt of the
kind over both. What is there is not done again.
"""
from __future__ import annotations

import argparse
import importlib
import itertools
import json
import random
import sys
from pathlib import Path

import numpy as np

from analysis import fill, table, times
from prompts import OWN, Prompt
from recipes import LEVERS, measured_in
from study import HERE, Steps, common_options, read, write_csv

STEPS = 64
CODE = (Prompt("code", "code", 700, "/usr/lib/python3.11/heapq.py", "def heappush"),
        Prompt("cpp", "code", 700, "/usr/include/c++/12/bits/stl_heap.h", "  template<typename _RandomAccess"),
        Prompt("shell", "code", 700, "/usr/bin/ldd"),
        Prompt("textwrap", "code", 700, "/usr/lib/python3.11/textwrap.py"))
# A topic of Python's help, a question with its answer, and the question that is answered.
CHATS = (("with", "What is a context manager for?", "It sets something up before a block and cleans up behind it.", "Which two methods does it need?"),
         ("exceptions", "What ends a program?", "An exception that no handler catches.", "How do I raise one, and what is its class?"),
         ("import", "Where are modules looked for?", "First among those that are loaded, then along a path.", "What happens if none is found?"),
         ("formatstrings", "How do I align a number to the right?", "With > before the width.", "How do I show two decimals of a float?"))
SUMMARIES = ("/usr/share/common-licenses/GPL-3", "story.txt", "/usr/lib/python3.11/email/architecture.rst", "/usr/share/common-licenses/Artistic")
LOOKUPS = (("recall.txt", 2500, "Where was the violin case found, and on which shelf is it?"), ("keys.txt", 800, "Which keys have delta, jade and willow?"),
           ("/etc/services", 1700, "Which ports do ssh, smtp and domain have?"), ("list.txt", 2300, "Repeat the third, the fifth and the last line."))
RULES = "You are the support assistant of a programming language. Answer from the manual below, in at most three sentences, and say so " \
        "where the manual has no answer. Never mention the manual.\n\n"


def source(path, characters):
    return (OWN / path if "/" not in path else Path(path)).read_text(encoding="utf-8")[:characters]


def conversations():
    """Messages by name and kind."""
    topics = importlib.import_module("pydoc_data.topics").topics
    for topic, asked, answered, last in CHATS:
        yield f"chat_{topic}", [{"role": "system", "content": RULES + topics[topic][:2000]}, {"role": "user", "content": asked},
                                {"role": "assistant", "content": answered}, {"role": "user", "content": last}]
    for path in SUMMARIES:
        yield f"summary_{Path(path).stem.lower().replace('-', '')}", [
            {"role": "user", "content": f"Summarise this text in three sentences.\n\n{source(path, 2600)}"}]
    for path, characters, asked in LOOKUPS:
        yield f"lookup_{Path(path).stem}", [{"role": "user", "content": f"{source(path, characters)}\n\n{asked}"}]


KINDS, CHOSEN_ON = ("code", "chat", "summary", "lookup"), (1, 2, 4, 8)
COLUMNS = ("model", "within", "kind", "chosen_on", "draw", "way", "prompt", "share", "predicted", "true_kl", "true_same_top1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--draws", type=int, default=2, metavar="N", help="of the prompts that choose, for every kind and number (default 2)")
    parser.add_argument("--within", default="20", metavar="PERCENT", help="of the bytes (default 20)")
    parser.add_argument("--write", nargs="?", type=Path, const=HERE, metavar="DIR")
    args = parser.parse_args()
    if args.write:
        page = HERE / "RECIPES.md"
        page.write_text(fill(page.read_text(encoding="utf-8"), tables(read(args.write / "advice.csv"))), encoding="utf-8")
        return 0
    rows = []
    for model, file in (text.split("=", 1) for text in args.model):
        rows += measure(args, model, Path(file))
    (args.out or args.work).mkdir(parents=True, exist_ok=True)
    write_csv((args.out or args.work) / "advice.csv", COLUMNS, rows)
    return 0


def measure(args, model, file):
    """Captures, measures every lever, chooses for every kind on prompts of the others, and runs the choices on the kind's prompts."""
    folder = args.work / model / "advice"
    dumps = capture(args, model, file, folder)
    run = Steps(args, folder)
    run("levers", args.program, "evict", *dumps, "--out", folder / "levers", "--force", "--quiet", "--threads", args.threads, *LEVERS)
    rows = []
    for kind in KINDS:
        seen, unseen = ([dump for dump in dumps if dump.name.startswith(kind) == is_kind] for is_kind in (False, True))
        recipes = {"": [], "_worst": []}
        for count, draw in itertools.product(CHOSEN_ON, range(args.draws)):
            name = f"{args.within}_{kind}_{count}_{draw}"
            choosing = random.Random(name).sample(seen, count)
            to = folder / "chosen" / name
            to.mkdir(parents=True, exist_ok=True)
            without = ("--without", ",".join(dump.name for dump in dumps if dump not in choosing))
            for by, ways in (("mean", to), ("worst", to / "worst")):
                ways.mkdir(exist_ok=True)
                run(f"choose_{name}" + "_worst" * (by == "worst"), args.program, "recommend", folder / "levers", "--bytes", f"{args.within}%", "--by", by,
                    "--quiet", "--out", ways / "{way}.json", *without)
            plain = min(to.glob("*-everywhere.json"), key=lambda path: json.loads(path.read_text())["chosen"]["chosen_on_all"])
            for runs, way, path in (("", "recipe", to / "both-each.json"), ("", "plain", plain), ("_worst", "worst", to / "worst" / "both-each.json")):
                recipes[runs].append(f"{way}_{count}_{draw}={path}")
        for runs, chosen in recipes.items():
            name = f"{args.within}_{kind}{runs}"
            ran = folder / f"run_{name}"
            run(f"run_{name}", args.program, "evict", *unseen, "--out", ran, "--force", "--quiet", "--threads", args.threads, "--recipe", ",".join(chosen))
            run(f"validate_{name}", "kvvalidate.py", "--model", file, "--dump", *unseen, "--results", ran,
                "--resume" if any(ran.glob("**/validate.json")) else "--force")
            for dump in unseen:
                rows += cases_of(args, model, kind, ran / dump.name)
    return rows


def cases_of(args, model, kind, results):
    for policy, case in measured_in(results).items():
        way, count, draw = policy.partition("~")[2].split("_")
        yield {"model": model, "within": args.within, "kind": kind, "chosen_on": count, "draw": draw, "way": way, "prompt": results.name,
               "share": case["share"], "predicted": case["together"], "true_kl": case["true_kl"], "true_same_top1": case["true_same_top1"]}


def tables(rows):
    """By the number of prompts that chose: the recipe's KL over the plain setting's, of all unseen prompts and of the worst of a kind."""
    lines = []
    for model, within in dict.fromkeys((row["model"], row["within"]) for row in rows):
        for count in CHOSEN_ON:
            at = {(row["kind"], row["draw"], row["way"], row["prompt"]): float(row["true_kl"]) for row in rows
                  if (row["model"], row["within"], int(row["chosen_on"])) == (model, within, count)}
            draws = list(dict.fromkeys((kind, draw) for kind, draw, *_ in at))
            prompts = list(dict.fromkeys((kind, prompt) for kind, _, _, prompt in at))
            # One value a prompt: draws of the same prompt are no independent measurements.
            ratios = [np.mean([np.log(at[kind, draw, "recipe", prompt] / at[kind, draw, "plain", prompt]) for of, draw in draws if of == kind])
                      for kind, prompt in prompts]
            worst = {way: [max(kl for (of, one, of_way, _), kl in at.items() if (of, one, of_way) == (kind, draw, way)) for kind, draw in draws]
                     for way in ("recipe", "plain", "worst")}
            by_kind = [f"{np.exp(np.mean([ratio for (of, _), ratio in zip(prompts, ratios) if of == kind])):.2f}" for kind in KINDS]
            kl = [np.exp(np.mean([np.log(value) for (_, _, of, _), value in at.items() if of == way])) for way in worst]
            lines.append([model, f"{within} %", str(count), " / ".join(f"{nats:.2g}" for nats in kl), times(ratios), " / ".join(by_kind),
                          " / ".join(f"{max(values):.2g}" for values in worst.values()),
                          f"{sum(mine <= its for mine, its in zip(worst['recipe'], worst['plain']))} of {len(draws)}"])
    return {"advice": table(["model", "within", "chosen on", "recipe / plain setting / recipe by worst, nats", "ratio", "ratio of " + " / ".join(KINDS),
                             "worst prompt of the three, nats", "no worse on the worst prompt of a kind"], lines)}


def capture(args, model, file, folder) -> list[Path]:
    dumps = folder / "dumps"
    dumps.mkdir(parents=True, exist_ok=True)
    run, found = Steps(args, folder), []
    options = ("--model" if file.is_dir() else "--gguf", file, "--name", model, "--force", "--gradients", 16, "--rows", "future", "--decode", STEPS)
    for prompt in CODE:
        text = folder / f"{prompt.name}.txt"
        text.write_text(prompt.text(), encoding="utf-8")
        found.append(dumps / f"code_{prompt.name}")
        run(f"capture_{prompt.name}", "kvcapture.py", *options, "--prompt", text, "--prompt-len", prompt.tokens, "--out", found[-1])
    for name, messages in conversations():
        asked = folder / f"{name}.json"
        asked.write_text(json.dumps(messages), encoding="utf-8")
        found.append(dumps / name)
        run(f"capture_{name}", "kvcapture.py", *options, "--messages", asked, "--out", found[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())

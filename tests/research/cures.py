#!/usr/bin/env python3
"""What 4-bit keys cost a model, plain, rotated and centered, stored behind the prompt and written as engines write them.

  cures.py --gather MODEL=RESULTS ...   adds the figures of result folders over several dumps, fed to the model, to cures.csv
  cures.py --write                      puts the tables into sim/cache/CURES.md

RESULTS come from
  kvreplay evict DUMP ... --policy none --bits kq4_0v16 --rotate none,hadamard --center none,k,k:4 --out RESULTS
  kvvalidate.py --model MODEL --results RESULTS --written

Needs NumPy.
"""
import csv
import math
import sys
from pathlib import Path

from analysis import significant, table

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "sim" / "cache" / "CURES.md"
COLUMNS = ("model", "prompt", "tokens", "format", "protocol", "true_kl", "true_same_top1")
FORMATS = {"kq4_0v16": "plain", "kq4_0v16+hadamard": "rotated", "kq4_0v16+center": "centered", "kq4_0v16+center:4": "centered, first 4 tokens left out",
           "kq4_0v16+hadamard+center": "centered and rotated", "kq4_0v16+hadamard+center:4": "centered and rotated, first 4 tokens left out"}
HEADER = ("keys in `q4_0`, values exact", "stored, nats a step", "written, nats a step", "written over plain keys",
          "least share of steps whose likeliest token stays (written)")
PROTOCOLS = {"prefill": "stored", "prefill+written": "written"}


def gathered(model, results):
    """Rows of one model's prompts."""
    for path in sorted(Path(results).glob("*/validate.csv")):
        found = {}
        for row in csv.DictReader(path.open(encoding="utf-8")):
            if row["metric"] in ("kl", "same_top1"):
                found.setdefault((row["policy"].partition("~")[2], row["phase"], row["kept"]), {})[row["metric"]] = float(row["value"])
        for (name, phase, tokens), value in found.items():
            yield dict(zip(COLUMNS, (model, path.parent.name, tokens, name, PROTOCOLS[phase], f"{value['kl']:.6g}", f"{value['same_top1']:.4g}")))


def tables(rows):
    """By mark: nats of every format in both protocols, and each over plain keys on the same prompt."""
    kl = {(row["model"], row["prompt"], row["format"], row["protocol"]): float(row["true_kl"]) for row in rows}
    same = {(row["model"], row["format"]): [] for row in rows}
    for row in rows:
        if row["protocol"] == "written":
            same[row["model"], row["format"]].append(float(row["true_same_top1"]))
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        prompts = list(dict.fromkeys(row["prompt"] for row in rows if row["model"] == model))
        lines = []
        for name, said in FORMATS.items():
            logs = {protocol: [math.log(kl[model, prompt, name, protocol]) for prompt in prompts] for protocol in PROTOCOLS.values()}
            over = [math.log(kl[model, prompt, name, "written"] / kl[model, prompt, "kq4_0v16", "written"]) for prompt in prompts]
            lines.append((said, significant(logs["stored"], 3), significant(logs["written"], 3), "" if name == "kq4_0v16" else significant(over, 3),
                          f"{100 * min(same[model, name]):.0f} %"))
        found[f"cures {model}"] = table(HEADER, lines)
    return found


def read():
    with (HERE / "cures.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main():
    if "--gather" in sys.argv:
        rows = [row for text in sys.argv[2:] for row in gathered(*text.split("=", 1))]
        with (HERE / "cures.csv").open("w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            out.writeheader()
            out.writerows(rows)
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, text in tables(read()).items():
        begin = page.index(f"<!-- {name} -->") + len(f"<!-- {name} -->")
        page = page[:begin] + f"\n{text}\n" + page[page.index("<!-- end -->", begin):]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

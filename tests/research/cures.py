#!/usr/bin/env python3
"""Measures what low-bit keys cost a model, plain, rotated and centered, stored behind the prompt and written as engines write them.

  cures.py --model NAME=FILE.gguf ... [--prompt NAME ...] [--format NAME ...] [--longest N] [--steps N] [--out DIR]
  cures.py --foretell NAME=RESULTS ...   adds output errors and predicted nats of result folders to cures.csv
  cures.py --write                       puts the tables into sim/cache/CURES.md, and draws cures.svg

Values stay in 16 bits. --out adds the rows to cures.csv after each prompt; finished cases are not repeated. RESULTS are of dumps with
the same prompts, lengths and steps:

  kvreplay evict DUMP ... --policy none --residual 0 --bits kq4_0v16,knvfp4v16 --rotate none,hadamard --center none,k --out RESULTS

Needs torch and transformers; the picture needs Matplotlib.
"""
from __future__ import annotations

import argparse
import fnmatch
import math
import sys
from itertools import combinations
from pathlib import Path

from analysis import fill, significant, table, with_interval
from intervals import interval, share_interval
from orders import CLEAR
from prompts import PROMPTS
from study import CAPTURE, HERE, STEPS, read, shorter, write_csv

PAGE = HERE.parents[1] / "sim" / "cache" / "CURES.md"
FIGURES = {"output_error": "output error", "loss_step": "predicted nats"}
COLUMNS = ("model", "prompt", "tokens", "steps", "format", "protocol", "true_kl", "true_same_top1", *FIGURES)
CHOSEN = ("dialogue", "table", "german", "code", "story", "shell", "list", "email", "cpp", "artistic", "recall", "keys")
CURES = {"": "plain", "+hadamard": "rotated", "+center": "centered", "+hadamard+center": "centered and rotated"}
MORE = {"+center:4": "centered, first 4 tokens left out", "+hadamard+center:4": "centered and rotated, first 4 tokens left out",
        "+center:other": "centered, by another prompt", "+hadamard+center:other": "centered and rotated, by another prompt"}
SCALED = {"+scales:other": "scale a layer, of another prompt"}  # in place of 1: its largest key is the format's largest number
# Cures of each format of keys, and its bits with scales. KIVI's groups hold a channel's tokens: a center does not change what they read.
FORMATS = {"q4_0": (4.5, (*CURES, *MORE)), "nvfp4": (4.5, tuple(CURES)), "tq4": (4.25, ("", "+center")), "tq3": (3.25, ("", "+center")),
           "fp8": (8, ("", "+center", *SCALED)), "int8": (8, ("", *SCALED)), "4": (5, ("", "+hadamard"))}
LARGEST = {"fp8": 448, "int8": 127}
WHOLE_GROUPS = "4"  # keys in groups of tokens: stored only


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--prompt", nargs="+", default=CHOSEN, choices=[prompt.name for prompt in PROMPTS], metavar="NAME")
    parser.add_argument("--format", nargs="+", default=["*"], metavar="NAME", help="of these only, as in kq4_0v16+hadamard (*: any)")
    parser.add_argument("--longest", type=int, default=1000, metavar="N", help="tokens of a prompt at most (default 1000)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"decoding steps (default {STEPS})")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR")
    parser.add_argument("--foretell", nargs="+", default=[], metavar="NAME=RESULTS")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file))
    if args.foretell:
        foretell(args.out / "cures.csv", [text.split("=", 1) for text in args.foretell])
    if args.write:
        rows = read(HERE / "cures.csv")
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables(rows)), encoding="utf-8")
        draw(rows, PAGE.with_name("cures.svg"))
    return 0


def measure(args, model: str, file: Path) -> None:
    sys.path.insert(0, str(CAPTURE))
    from gguf_file import GgufFile
    from kvvalidate import load_model
    from model_attention import interleaved_in_ggml
    from model_loop import ModelLoop, figures
    from changed_cache import Change
    from prompt_tokens import find_tokenizer

    path = args.out / "cures.csv"
    tokenizer = find_tokenizer(None, GgufFile(file), {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name})
    chosen = [prompt for prompt in PROMPTS if prompt.name in args.prompt]
    wanted = [f"k{name}v16{cure}" for name, (_, cures) in FORMATS.items() for cure in cures]
    wanted = [name for name in wanted if any(fnmatch.fnmatchcase(name, each) for each in args.format)]
    with ModelLoop(load_model(str(file), "float32", None)) as loop:
        other = None
        for prompt in (chosen[-1], *chosen):  # each is centered by the prompt before it, too
            length = min(prompt.tokens, args.longest)
            ids = tokenizer.encode(prompt.text())[: length + args.steps]
            if other is None:
                loop.read(ids[:length + 1], length)
                other = dict(loop.layers)
                continue
            rows = read(path) if path.exists() else []
            known = {(row["format"], row["protocol"]) for row in rows if (row["model"], row["prompt"]) == (model, prompt.name)}
            full = loop.read(ids, length)
            own = dict(loop.layers)
            for name in wanted:
                stored = {i: stored_as(name, layer.k.shape[2], interleaved_in_ggml(loop.model.config), other[i].k) for i, layer in own.items()}
                for protocol in ("written", "stored"):
                    of_other = name.endswith(":other")
                    left_out = "stored" if of_other else "written" if name.startswith(name_of(WHOLE_GROUPS)) else ""
                    if (name, protocol) in known or protocol == left_out:
                        continue
                    if protocol == "written":
                        loop.layers = other if of_other else own  # whose keys' means are the centers
                        changed = loop.feed_written(stored)
                        loop.layers = own
                    else:
                        changed = loop.feed({i: Change(stored=format) for i, format in stored.items()})
                    found = figures(full, changed, ids[length + 1:])
                    rows.append(dict(zip(COLUMNS, (model, prompt.name, length, len(ids) - length, name, protocol, f"{found['kl']:.6g}",
                                                   f"{found['same_top1']:.4g}"))))
                    write_csv(path, COLUMNS, rows)
            print(f"{model} {prompt.name}: {len(rows)} rows in all", flush=True)
            other = own


def stored_as(name: str, d: int, interleaved: bool, other):
    """A format as kvreplay names it, of keys with d channels, in llama.cpp's order where it is another; `other` keys give its scale."""
    from number_formats import Stored

    bits, *cures = name.split("+")
    center = next((cure for cure in cures if cure.startswith("center")), None)
    first = None if center is None else int(center.partition(":")[2]) if center[7:].isdigit() else 0
    bits = bits[1:].removesuffix("v16")
    scale = float(other.abs().max()) / LARGEST[bits] if "scales:other" in cures else 1.0
    return Stored(bits, "16", scales=(scale, 1.0), turned=(d & -d if "hadamard" in cures else 0, 0), residual=0, centered=first,
                  interleaved=interleaved)


def foretell(path: Path, folders) -> None:
    """Adds to each written or stored case the figures that a replay of the same prompt's dump has for the format."""
    found = {}
    for model, results in folders:
        for part in sorted(Path(results).glob("*/evictions.csv")):
            for row in read(part):
                if not row["layer"] and not row["kv_head"] and row["rows"] == "future" and row["metric"] in FIGURES:
                    found[model, part.parent.name, row["policy"].partition("~")[2], row["metric"]] = shorter(row["value"])
    rows = read(path)
    for row in rows:
        row.update({name: found.get((row["model"], row["prompt"], row["format"], name), row[name]) for name in FIGURES})
    write_csv(path, COLUMNS, rows)


class Cases:
    """True KL by model, prompt, format and protocol."""

    def __init__(self, rows):
        self.rows = {(row["model"], row["prompt"], row["format"], row["protocol"]): row for row in rows}
        self.prompts = {}
        for row in rows:
            self.prompts.setdefault(row["model"], {})[row["prompt"]] = None

    def kl(self, *key) -> float:
        return float(self.rows[key]["true_kl"])

    def logs(self, model, name, protocol, over=None, over_protocol=None):
        """Of a format's KL, or of its ratio to another's, on each prompt that has both."""
        other = over and (over, over_protocol or protocol)
        some = [prompt for prompt in self.prompts[model]
                if (model, prompt, name, protocol) in self.rows and (not over or (model, prompt, *other) in self.rows)]
        return [math.log(self.kl(model, prompt, name, protocol) / (self.kl(model, prompt, *other) if over else 1)) for prompt in some]

    def fewer(self, model, logs) -> str:
        """The number of prompts, where it is not all of the model's."""
        return "" if len(logs) == len(self.prompts[model]) else f" ({len(logs)} prompts)"

    def least_same(self, model, name):
        return min(float(row["true_same_top1"]) for key, row in self.rows.items() if (key[0], *key[2:]) == (model, name, "written"))


def name_of(bits, cure="") -> str:
    return f"k{bits}v16{cure}"


def tables(rows):
    """By mark: cures of q4_0, both protocols, other formats, and the order of the cures by the figures of a dump."""
    cases = Cases(rows)
    plain = name_of("q4_0")
    cures, protocols, formats = [], [], []
    for cure, said in (CURES | MORE).items():
        if cure.endswith(":4"):  # as the whole mean, within its interval
            continue
        name, cells = name_of("q4_0", cure), []
        for model in cases.prompts:
            logs, over = cases.logs(model, name, "written"), cases.logs(model, name, "written", plain)
            ratio = f", {significant(over)} times" if cure and logs else ""
            cells.append(f"{significant(logs)}{ratio}; {100 * cases.least_same(model, name):.0f} %{cases.fewer(model, logs)}" if logs else "")
        cures.append((said, *cells))
    for cure, said in CURES.items():
        name, cells = name_of("q4_0", cure), []
        for model in cases.prompts:
            logs = cases.logs(model, name, "stored")
            cells.append(f"{significant(logs)}, {significant(cases.logs(model, name, 'written', name, 'stored'))} times" if logs else "")
        protocols.append((said, *cells))
    for bits, (size, some) in list(FORMATS.items())[1:]:
        for cure in some:
            name, protocol, cells = name_of(bits, cure), "stored" if bits == WHOLE_GROUPS else "written", []
            for model in cases.prompts:
                logs, over = cases.logs(model, name, protocol), cases.logs(model, name, protocol, name_of(bits))
                cells.append(f"{significant(logs)}{f', {significant(over)} times' if cure else ''}{cases.fewer(model, logs)}" if logs else "")
            formats.append((f"`{bits}`" + (" (stored)" if protocol == "stored" else ""), f"{size:g}", (CURES | SCALED)[cure], *cells))
    models = [f"{model}, {len(prompts)}" for model, prompts in cases.prompts.items()]
    return {"cures written": table(("keys in `q4_0`, values exact", *models), cures),
            "cures protocols": table(("keys in `q4_0`", *models), protocols),
            "cures formats": table(("keys", "bits", "cure", *models), formats),
            "cures foretold": foretold_table(cases)}


def foretold_table(cases):
    """Of the pairs of a format's cures that are clearly apart in written KL, those that a figure puts in the right order."""
    figures = {"stored": "stored true KL", **FIGURES}
    lines = []
    for model, prompts in cases.prompts.items():
        right, best, counted = {figure: [] for figure in figures}, {figure: 0 for figure in figures}, 0
        for prompt in prompts:
            groups = [[name_of(bits, cure) for cure in some if cure in CURES] for bits, (_, some) in FORMATS.items() if bits != WHOLE_GROUPS]
            values = {name: {figure: (cases.kl(model, prompt, name, "stored") if figure == "stored" else
                                      float(cases.rows[model, prompt, name, "stored"][figure])) for figure in figures}
                      for group in groups for name in group if cases.rows.get((model, prompt, name, "stored"), {}).get("loss_step")}
            count = {figure: [0, 0] for figure in figures}
            for group in groups:
                some = [name for name in group if name in values and (model, prompt, name, "written") in cases.rows]
                truth = {name: cases.kl(model, prompt, name, "written") for name in some}
                for one, other in combinations(some, 2):
                    if max(truth[one], truth[other]) < CLEAR * min(truth[one], truth[other]):
                        continue
                    for figure in figures:
                        count[figure][0] += (values[one][figure] - values[other][figure]) * (truth[one] - truth[other]) > 0
                        count[figure][1] += 1
                if group[0] == name_of("q4_0") and len(some) == len(group):
                    counted += 1
                    for figure in figures:
                        best[figure] += min(some, key=lambda name: values[name][figure]) == min(some, key=truth.get)
            for figure in figures:
                right[figure].append(count[figure])
        if counted:
            lines.append((model, str(sum(pairs for _, pairs in right["stored"])),
                          *(f"{with_interval(share_interval([c for c in right[figure] if c[1]]), 100, 0)} %; {best[figure]} of {counted}"
                            for figure in figures)))
    return table(("model", "pairs", *figures.values()), lines)


DRAWN = {"": "plain", "+hadamard": "rotated (llama.cpp)", "+center": "centered", "+hadamard+center": "centered and rotated",
         "+hadamard+center:other": "the same, center of another prompt"}


def draw(rows, path) -> None:
    """Nats of each cure by model: stored and written, means and intervals over prompts."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "cures", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot
    cases = Cases(rows)
    figure, panels = pyplot.subplots(1, len(cases.prompts), figsize=(2.2 + 2.4 * len(cases.prompts), 2.8), sharey=True, sharex=True, squeeze=False)
    for panel, (model, prompts) in zip(panels[0], cases.prompts.items()):
        for protocol, face, shift in (("stored", "white", -0.13), ("written", "#d62728", 0.13)):
            points = [(i, *map(math.exp, interval(logs))) for i, cure in enumerate(DRAWN)
                      if (logs := cases.logs(model, name_of("q4_0", cure), protocol))]
            for i, middle, low, high in points:
                panel.plot([low, high], [i + shift] * 2, color="#d62728", linewidth=1)
                panel.plot(middle, i + shift, "o", color="#d62728", markerfacecolor=face, markersize=5, zorder=3,
                           label={"stored": "cache quantized behind the prompt", "written": "as engines write it"}[protocol] if not i else None)
        panel.set(xscale="log", ylim=(len(DRAWN) - 0.5, -0.5))
        panel.set_title(f"{model}\n{len(prompts)} prompts", fontsize=9)
        panel.set_yticks(range(len(DRAWN)), DRAWN.values())
        panel.grid(color="#dddddd", linewidth=0.6)
    figure.supxlabel("nats a step lost by 4-bit keys (q4_0)", fontsize=9, y=0.1)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=2, frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Holds `kvvalidate.py --written` against llama.cpp: KL of a cache in a format from one in 16 bits, the same forced tokens.

  engine.py --program KVREPLAY --version NAME --model NAME=FILE.gguf ... [--prompt NAME ...] [--keys LIST] [--values LIST] [--out DIR]
  engine.py --write             puts the tables of engine.csv into sim/cache/CURES.md

`kvreplay capture` captures a prompt and `kvreplay capture --judge` measures each format of keys and of values with and without
llama.cpp's rotation; transformers then stores them as the model makes them, too. --out adds the rows to engine.csv; finished prompts
are not repeated. Ends with one line and status 77 where the program has no llama.cpp. Needs torch and transformers.
"""
from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import subprocess
import sys
from pathlib import Path

from analysis import fill, table
from prompts import PROMPTS
from study import CAPTURE, HERE, read, shorter, write_csv

PAGE = HERE.parents[1] / "sim" / "cache" / "CURES.md"
FORMATS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
# ordered_kl: written with key channels in llama.cpp's order, where a GGUF file's differs from transformers'.
COLUMNS = ("engine", "model", "prompt", "tokens", "steps", "keys", "values", "rotated", "engine_kl", "written_kl", "ordered_kl",
           "engine_same_top1", "written_same_top1")
NEAR, SMALL = 1.2, 0.002  # the goal: a ratio, or a difference in nats
FLOOR = ("f16", "f16", "-")  # without flash attention, no format: arithmetic alone
KEY = ("model", "prompt", "keys", "values", "rotated")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/kvreplay"), help="kvreplay, built with llama.cpp")
    parser.add_argument("--version", default="llama.cpp", help="llama.cpp's name in the table")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--prompt", nargs="+", default=["code", "story"], choices=[prompt.name for prompt in PROMPTS], metavar="NAME")
    parser.add_argument("--longest", type=int, default=600, metavar="N", help="tokens of a prompt at most (default 600)")
    parser.add_argument("--steps", type=int, default=128, metavar="N", help="decoding steps (default 128)")
    parser.add_argument("--keys", default=",".join(FORMATS), help="formats of keys, values in 16 bits")
    parser.add_argument("--values", default=",".join(FORMATS), help="formats of values, keys in 16 bits")
    parser.add_argument("--work", type=Path, default=Path("build/study/engine"), help="where dumps are written")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables(read(HERE / "engine.csv"))), encoding="utf-8")
        return 0
    if not has_llama(args.program):
        print(f"engine: skipped: expected a kvreplay that was built with llama.cpp (--program), found {args.program}")
        return 77
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file))
    return 0


def has_llama(program: Path) -> bool:
    try:
        return "no llama.cpp" not in subprocess.run([program, "capture", "-", "--judge", "-"], stderr=subprocess.PIPE, text=True).stderr
    except OSError:
        return False


def cases(args) -> list[tuple[str, str, str]]:
    """(keys, values, rotated)"""
    formats = [(k, "f16") for k in args.keys.split(",") if k] + [("f16", v) for v in args.values.split(",") if v]
    return [FLOOR, *((*each, rotated) for each in formats for rotated in "10")]


def measure(args, model: str, file: Path) -> None:
    sys.path.insert(0, str(CAPTURE))
    from kvvalidate import load_model
    from model_loop import ModelLoop

    path = args.out / "engine.csv"
    rows = read(path) if path.exists() else []
    loaded = load_model(str(file), "float32", "cpu")
    with ModelLoop(loaded) as loop:
        for prompt in (prompt for prompt in PROMPTS if prompt.name in args.prompt):
            known = {tuple(row[name] for name in KEY) for row in rows}
            left = [case for case in cases(args) if (model, prompt.name, *case) not in known]
            if not left:
                continue
            length = min(prompt.tokens, args.longest)
            in_engine, ids = engine_figures(args.program, file, prompt.text(), length, args.steps, left, args.work)
            left, steps = [case for case in left if case in in_engine], len(ids) - length
            written = written_figures(loop, ids, length, [case for case in left if case != FLOOR])
            with channels_interleaved():
                of_keys = [case for case in left if case[0] != "f16"] if loaded.config.model_type == "llama" else []
                ordered = written_figures(loop, ids, length, of_keys)
            for case in left:
                (kl, same), (own_kl, own_same), (ordered_kl, _) = in_engine[case], *(found.get(case, ("", "")) for found in (written, ordered))
                rows.append(dict(zip(COLUMNS, (args.version, model, prompt.name, length, steps, *case, shorter(kl), shorter(own_kl),
                                               shorter(ordered_kl), shorter(same), shorter(own_same)))))
                print(f"{model} {prompt.name} {case}: {shorter(kl)} in the engine, {shorter(own_kl)} written", flush=True)
            write_csv(path, COLUMNS, rows)


def engine_figures(program, file, text, length, steps, some, work):
    """Mean KL and share of equal first tokens over the steps, by case (without rotated ones where llama.cpp rotates no head of this size);
    and the tokens."""
    def run(*arguments):
        subprocess.run([str(part) for part in (program, *arguments, "--quiet")], check=True)

    dump, results, prompt = work / "dump", work / "results", work / "prompt.txt"
    work.mkdir(parents=True, exist_ok=True)
    prompt.write_text(text, encoding="utf-8")
    run("capture", file, "--prompt", prompt, "--prompt-len", length, "--decode", steps, "--out", dump, "--force")
    d = json.loads((dump / "manifest.json").read_text())["head_dim"]
    block = d & -d
    rotations = {"0": "none", **({"1": "hadamard" if block == 64 else f"hadamard:{block}:64"} if d % 64 == 0 else {})}
    names = {}
    for case in some:
        if case != FLOOR and case[2] in rotations:
            keys, values = ("16" if name == "f16" else name for name in case[:2])
            names[f"none~k{keys}v{values}" + (f"+{rotations[case[2]]}" if case[2] == "1" else "")] = case
    bits = {name.split("~")[1].split("+")[0] for name in names}
    run("evict", dump, "--policy", "none", "--bits", ",".join(sorted(bits)), "--rotate", ",".join(rotations.values()), "--out", results, "--force")
    run("capture", file, "--judge", results)
    with open(results / "validate.csv", encoding="utf-8", newline="") as table:
        found = {(row["policy"], row["metric"]): float(row["value"]) for row in csv.DictReader(table) if row["value"]}
    figures = {case: (found[name, "kl"], found[name, "same_top1"]) for name, case in names.items()}
    if FLOOR in some:
        figures[FLOOR] = json.loads((results / "validate.json").read_text())["floor"], ""
    return figures, json.loads((dump / "tokens.json").read_text())["ids"]


def written_figures(loop, ids, length, some) -> dict[tuple, tuple[float, float]]:
    """As engine_figures(), of transformers' model in float32."""
    from model_loop import figures

    full, found = loop.read(ids, length), {}
    for case in some:
        changed = loop.feed_written({i: stored_as(case, layer) for i, layer in loop.layers.items()})
        said = figures(full, changed, ids[length + 1:])
        found[case] = said["kl"], said["same_top1"]
    return found


@contextlib.contextmanager
def channels_interleaved():
    """GGUF files of Llama models hold channels i and d/2 + i of a key, which RoPE turns together, side by side. A block of 32 numbers, or
    a rotation, then has other channels than in transformers."""
    import model_loop
    import torch

    quantize = model_loop.quantize

    def in_file_order(k, v, lost, stored, center=None):
        order = torch.arange(k.shape[1]).reshape(2, -1).T.reshape(-1)
        ordered = k[:, order]
        quantize(ordered, v, lost, stored, None if center is None else center[order])
        k[:, order] = ordered

    model_loop.quantize = in_file_order
    try:
        yield
    finally:
        model_loop.quantize = quantize


def stored_as(case, layer):
    """A layer's formats in this project's names: llama.cpp turns keys by the largest Hadamard matrix, values by one of 64."""
    from number_formats import Stored

    keys, values, rotated = case
    size_of_keys, size_of_values = layer.k.shape[2], layer.v.shape[2]
    largest = size_of_keys & -size_of_keys  # power of two that divides the head
    turned = (largest if rotated == "1" and size_of_keys % 64 == 0 and keys != "f16" else 0,
              64 if rotated == "1" and size_of_values % 64 == 0 and values != "f16" else 0)
    return Stored(*("16" if name == "f16" else name for name in (keys, values)), turned=turned, residual=0)


def near(row) -> bool:
    """True within the goal, in llama.cpp's order of channels."""
    engine, written = float(row["engine_kl"]), float(row["ordered_kl"] or row["written_kl"] or "nan")
    return abs(written - engine) <= SMALL or 1 / NEAR <= written / engine <= NEAR


def tables(rows):
    """KL of llama.cpp and written, the geometric means over prompts, by model, format and rotation."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    columns = [(model, name) for model in models for name in ("engine_kl", "written_kl") if any(row[name] for row in rows if row["model"] == model)]
    lines = []
    for side in ("keys", "values"):
        for name in FORMATS:
            for rotated in "10":
                some = [row for row in rows if (row[side], row["rotated"]) == (name, rotated)]
                cells = [cell([row for row in some if row["model"] == model], of) for model, of in columns]
                if any(cells):
                    lines.append((f"{side} in `{name}`", "yes" if rotated == "1" else "no", *cells))
    prompts = {model: len({row["prompt"] for row in rows if row["model"] == model}) for model in models}
    header = ("format", "rotated", *(f"{model}, {prompts[model]}: {'llama.cpp' if of == 'engine_kl' else 'written'}" for model, of in columns))
    counts = ((model, side, [row for row in rows if row["model"] == model and row[side] != "f16"]) for model in models for side in ("keys", "values"))
    both = ((model, side, [row for row in some if row["written_kl"]]) for model, side, some in counts)
    said = [f"{model} {side} {sum(map(near, some))} of {len(some)}" for model, side, some in both if some]
    floor = [f"{model} {cell(some)}" for model in models
             if (some := [row for row in rows if (row["model"], row["keys"], row["values"], row["rotated"]) == (model, *FLOOR)])]
    alone = f"\n16 bits without flash attention, over 16 bits with it: {', '.join(floor)} nats." if floor else ""
    return {"engine": f"{table(header, lines)}\n\nWithin 20 % or {SMALL} nats: {', '.join(said)}.{alone}"}


def cell(some, name="engine_kl") -> str:
    """Geometric mean of llama.cpp's KL or of KL written, and behind the latter that in llama.cpp's order of channels."""
    def mean(of):
        return f"{math.exp(sum(math.log(float(row[of])) for row in some) / len(some)):.2g}"

    if not some or not all(row[name] for row in some):
        return ""
    ordered = name == "written_kl" and all(row["ordered_kl"] for row in some)
    return mean(name) + (f" ({mean('ordered_kl')})" if ordered else "")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Holds `kvvalidate.py --written` against llama.cpp: KL of a cache in a format from one in 16 bits, the same forced tokens.

  engine.py --program KVREPLAY --version NAME --model NAME=FILE.gguf ... [--prompt NAME ...] [--keys LIST] [--values LIST] [--weights KIND]
            [--out DIR]
  engine.py --write             puts the tables of engine.csv into sim/cache/CURES.md

`kvreplay capture` captures a prompt and `kvreplay capture --judge` measures each format of keys and of values with and without
llama.cpp's rotation; transformers then stores them as the model makes them, too. With --weights float32 both multiply the file's weights
in float32; with quantized weights (file) llama.cpp rounds activations to 8 bits, which moves SmolLM2's predictions more than 8-bit values
do. --out adds the rows to engine.csv; finished prompts are not repeated. Ends with one line and status 77 where the program has no
llama.cpp. Needs torch, transformers and gguf.
"""
from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from pathlib import Path

from analysis import fill, significant, table
from prompts import PROMPTS
from study import CAPTURE, HERE, read, shorter, write_csv

PAGE = HERE.parents[1] / "sim" / "cache" / "CURES.md"
FORMATS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
COLUMNS = ("engine", "model", "weights", "prompt", "tokens", "steps", "keys", "values", "rotated", "engine_kl", "written_kl",
           "engine_same_top1", "written_same_top1")
NEAR, SMALL = 1.2, 0.002  # the goal: a ratio, or a difference in nats
FLOOR = ("f16", "f16", "-")  # without flash attention, no format: arithmetic alone
KEY = ("model", "weights", "prompt", "keys", "values", "rotated")


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
    parser.add_argument("--weights", default="float32", choices=("float32", "file"), help="as llama.cpp multiplies them (default float32)")
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
    from model_attention import interleaved_in_ggml
    from model_loop import ModelLoop

    path = args.out / "engine.csv"
    rows = read(path) if path.exists() else []
    loaded = load_model(str(file), "float32", "cpu")
    interleaved = interleaved_in_ggml(loaded.config)
    if args.weights == "float32":
        file = widened(file, args.work / f"{model}-float32.gguf")
    with ModelLoop(loaded) as loop:
        for prompt in (prompt for prompt in PROMPTS if prompt.name in args.prompt):
            known = {tuple(row[name] for name in KEY) for row in rows}
            left = [case for case in cases(args) if (model, args.weights, prompt.name, *case) not in known]
            if not left:
                continue
            length = min(prompt.tokens, args.longest)
            in_engine, ids = engine_figures(args.program, file, prompt.text(), length, args.steps, left, args.work)
            left, steps = [case for case in left if case in in_engine], len(ids) - length
            written = written_figures(loop, ids, length, [case for case in left if case != FLOOR], interleaved)
            for case in left:
                (kl, same), (own_kl, own_same) = in_engine[case], written.get(case, ("", ""))
                rows.append(dict(zip(COLUMNS, (args.version, model, args.weights, prompt.name, length, steps, *case, shorter(kl),
                                               shorter(own_kl), shorter(same), shorter(own_same)))))
                print(f"{model} {prompt.name} {case}: {shorter(kl)} in the engine, {shorter(own_kl)} written", flush=True)
            write_csv(path, COLUMNS, rows)


def widened(file: Path, out: Path) -> Path:
    """The same weights in 32 bits: llama.cpp then multiplies in float32, and does not round activations to 8 bits."""
    import gguf

    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    read_from = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, read_from.fields["general.architecture"].contents())
    for name, field in read_from.fields.items():
        if name not in ("general.architecture", "general.file_type", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"):
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=of_items)
    for tensor in read_from.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


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


def written_figures(loop, ids, length, some, interleaved) -> dict[tuple, tuple[float, float]]:
    """As engine_figures(), of transformers' model in float32."""
    from model_loop import figures

    full, found = loop.read(ids, length), {}
    for case in some:
        changed = loop.feed_written({i: stored_as(case, layer, interleaved) for i, layer in loop.layers.items()})
        said = figures(full, changed, ids[length + 1:])
        found[case] = said["kl"], said["same_top1"]
    return found


def stored_as(case, layer, interleaved=False):
    """A layer's formats in this project's names: llama.cpp turns keys by the largest Hadamard matrix, values by one of 64."""
    from number_formats import Stored

    keys, values, rotated = case
    size_of_keys, size_of_values = layer.k.shape[2], layer.v.shape[2]
    largest = size_of_keys & -size_of_keys  # power of two that divides the head
    turned = (largest if rotated == "1" and size_of_keys % 64 == 0 and keys != "f16" else 0,
              64 if rotated == "1" and size_of_values % 64 == 0 and values != "f16" else 0)
    return Stored(*("16" if name == "f16" else name for name in (keys, values)), turned=turned, residual=0, interleaved=interleaved)


def near(row) -> bool:
    """True within the goal."""
    engine, written = float(row["engine_kl"]), float(row["written_kl"] or "nan")
    return abs(written - engine) <= SMALL or 1 / NEAR <= written / engine <= NEAR


def tables(rows):
    """By model, format and rotation: llama.cpp's KL, and the ratio of KL written to it."""
    of_model = {row["model"]: [] for row in rows}
    for model in of_model:
        some = [row for row in rows if row["model"] == model]
        of_model[model] = [row for row in some if row["weights"] == "float32"] or some
    lines = []
    for side in ("keys", "values"):
        for name in FORMATS:
            for rotated in "10":
                cells = [cell([row for row in some if (row[side], row["rotated"]) == (name, rotated)]) for some in of_model.values()]
                if any(cells):
                    lines.append((f"{side} in `{name}`", "yes" if rotated == "1" else "no", *cells))
    header = ("format", "rotated", *(f"{model}, {len({row['prompt'] for row in some})}" for model, some in of_model.items()))
    counts = ((model, side, [row for row in some if row[side] != "f16" and row["written_kl"]])
              for model, some in of_model.items() for side in ("keys", "values"))
    said = [f"{model} {side} {sum(map(near, some))} of {len(some)}" for model, side, some in counts if some]
    floors = [f"{model}, weights in {'float32' if weights == 'float32' else 'their own bits'}, {cell(some)}" for model in of_model
              for weights in ("file", "float32") if (some := [row for row in rows if (row["model"], row["weights"]) == (model, weights) and
                                                              (row["keys"], row["values"], row["rotated"]) == FLOOR])]
    alone = f"\n16 bits without flash attention, over 16 bits with it: {'; '.join(floors)} nats." if floors else ""
    return {"engine": f"{table(header, lines)}\n\nWithin 20 % or {SMALL} nats: {', '.join(said)}.{alone}"}


def cell(some) -> str:
    """llama.cpp's KL, and the ratio of KL written to it where all have both: geometric means over prompts."""
    if not some:
        return ""
    logs = [math.log(float(row["engine_kl"])) for row in some]
    if not all(row["written_kl"] for row in some):
        return significant(logs)
    return f"{significant(logs)}; {significant([math.log(float(row['written_kl'])) - own for row, own in zip(some, logs)])} times"


if __name__ == "__main__":
    sys.exit(main())

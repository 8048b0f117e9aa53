#!/usr/bin/env python3
"""Compares `kvreplay capture` with kvcapture.py --gguf on the same tokens: q, k, v, o, kept sets, output errors, time and memory; and
the loss of formats by `kvreplay capture --judge` with that by kvvalidate.py.

  llama_capture.py --program KVREPLAY --model NAME=FILE.gguf ... [--work DIR]
  llama_capture.py --write      puts the tables of llama_capture.csv and llama_formats.csv into data/capture/README.md

KVREPLAY is built with llama.cpp; both run one thread. The tokens are the first 1,000 of Python's argparse.py and the next 128 as decoding
steps. A model that the table has is measured again. Needs torch and transformers; 5 GB of memory for Qwen2.5-Coder-0.5B.
"""
from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CAPTURE = HERE.parents[1] / "data" / "capture"
RECORD, FORMATS, PAGE = HERE / "llama_capture.csv", HERE / "llama_formats.csv", CAPTURE / "README.md"
COLUMNS = ("model", "number", "layer", "value")
LENGTH, STEPS, KEEP, POLICIES = 1000, 128, "0.2", ("snapkv", "h2o")
SIDES = ("llama.cpp", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/kvreplay")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--work", type=Path, default=Path("build/study/llama_capture"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    from analysis import fill  # needs NumPy, which the tables do not
    from study import write_csv
    rows, formats = read(RECORD), read(FORMATS)
    for model, file in (text.split("=", 1) for text in args.model):
        rows = [row for row in rows if row["model"] != model]
        rows += [dict(zip(COLUMNS, (model, *row))) for row in measure(args.program, file, args.work / model)]
        write_csv(RECORD, COLUMNS, rows)
        formats = [row for row in formats if row["model"] != model] + formats_of(args.program, model, file, args.work / model)
        write_csv(FORMATS, list(formats[0]), formats)
    if args.write:
        tables = {"llama": llama_table(rows), "llama formats": formats_table(formats)}
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def formats_of(program: str, model: str, file: str, work: Path) -> list[dict[str, str]]:
    """KL of whole caches, of the dump by transformers: as its gradients predict it, in transformers behind an exact prompt and written, and
    in llama.cpp."""
    cost(sys.executable, CAPTURE / "kvcapture.py", "--gguf", file, "--out", work / "transformers", "--gradients", 24, "--rows", "future",
         "--resume")
    d = json.loads((work / "transformers" / "manifest.json").read_text())["head_dim"]
    turned = "hadamard" if d == 64 else f"hadamard:{d & -d}:64"  # as llama.cpp does
    out = work / "formats"
    cost(program, "evict", work / "transformers", "--policy", "none", "--bits", "q8_0,kq8_0v16,k16vq8_0,q4_0,kq4_0v16,k16vq4_0", "--rotate",
         turned, "--out", out, "--force", "--quiet")
    cost(sys.executable, CAPTURE / "kvvalidate.py", "--model", file, "--results", out, "--written")
    in_torch = kl_of(out)
    cost(program, "capture", file, "--judge", out, "--force", "--quiet", "--threads", 1)
    predicted = {row["policy"]: f"{float(row['value']):.3g}" for row in read(out / "evictions.csv")
                 if not row["layer"] and not row["kv_head"] and (row["rows"], row["metric"]) == ("future", "loss_joint")}
    return [{"model": model, "format": name.removeprefix("none~").split("+")[0], "predicted": predicted[name], "stored": in_torch[name, "stored"],
             "written": in_torch[name, "written"], "llama.cpp": kl} for (name, _), kl in kl_of(out).items()]


def kl_of(results: Path) -> dict[tuple[str, str], str]:
    rows = read(results / "validate.csv")
    return {(row["policy"], row["protocol"]): f"{float(row['value']):.3g}" for row in rows if row["metric"] == "kl"}


def formats_table(rows) -> str:
    """A line per format, four columns per model."""
    models, formats = (list(dict.fromkeys(row[column] for row in rows)) for column in ("model", "format"))
    sides = ("predicted", "stored", "written", "llama.cpp")
    lines = ["| format | " + " | ".join(f"{model}: {side}" for model in models for side in sides) + " |", "|---" * (1 + len(sides) * len(models)) + "|"]
    for name in formats:
        cells = [row[side] for model in models for row in rows if (row["model"], row["format"]) == (model, name) for side in sides]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def llama_table(rows) -> str:
    """A line per number, a column per model; of numbers by layer the median and the largest."""
    models, numbers = (list(dict.fromkeys(row[column] for row in rows)) for column in ("model", "number"))
    lines = ["| | " + " | ".join(models) + " |", "|---|" + "---|" * len(models)]
    for number in numbers:
        cells = []
        for model in models:
            found = [row["value"] for row in rows if (row["model"], row["number"]) == (model, number)]
            cells.append(found[0] if len(found) == 1 else
                         f"{statistics.median(map(float, found)):.2g} ({max(map(float, found)):.2g})")
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measure(program: str, file: str, work: Path):
    """Rows (number, layer, value) of one model."""
    sys.path.insert(0, str(CAPTURE))
    import numpy as np
    from kvresults import open_results

    dumps = {side: work / side for side in SIDES}
    ours, theirs = dumps.values()
    spent = dict(zip(SIDES, (
        cost(program, "capture", file, "--prompt", "/usr/lib/python3.11/argparse.py", "--prompt-len", LENGTH, "--decode", STEPS,
             "--out", ours, "--force", "--quiet", "--threads", 1),
        cost(sys.executable, CAPTURE / "kvcapture.py", "--gguf", file, "--ids", ours / "tokens.json", "--prompt-len", LENGTH,
             "--decode", STEPS, "--dtype", "float16", "--out", theirs, "--force"))))
    styles = [json.loads((dump / "manifest.json").read_text())["rope"]["style"] for dump in (ours, theirs)]
    for name in "qkvo":
        for layer, path in enumerate(sorted(theirs.glob(f"layer_*/{name}.npy"))):
            mine, other = (np.load(dump / path.relative_to(theirs)).astype(float) for dump in (ours, theirs))
            if name in "qk" and styles[0] != styles[1]:  # pairs to halves
                mine = np.concatenate([mine[..., 0::2], mine[..., 1::2]], axis=-1)
            yield f"difference of {name}", layer, f"{np.linalg.norm(mine - other) / np.linalg.norm(other):.3g}"
    results = {}
    for side, dump in dumps.items():
        out = work / f"{side}-results"
        cost(program, "evict", dump, "--policy", ",".join(POLICIES), "--keep", KEEP, "--out", out, "--force", "--quiet")
        results[side] = open_results(str(out))
    for policy in POLICIES:
        names = [next(name for name in found.names("kept") if name.startswith(policy)) for found in results.values()]
        mine, other = (np.asarray(found.array("kept", name)).astype(bool) for found, name in zip(results.values(), names))
        alike = (mine & other).sum(-1) / other.sum(-1)
        yield f"{policy} alike", "", f"{alike.mean():.4f}"
        yield f"{policy} alike in the worst head", "", f"{alike.min():.3f}"
        for side, found in results.items():
            error = next(row["value"] for row in found.rows("evictions") if not row["layer"] and not row["kv_head"] and
                         (row["policy"], row["rows"], row["metric"]) == (policy, "future", "output_error"))
            yield f"{policy} output error {side}", "", f"{float(error):.4g}"
    for side, (seconds, megabytes) in spent.items():
        yield f"processor seconds {side}", "", f"{seconds:.1f}"
        yield f"peak MB {side}", "", f"{megabytes:.0f}"


def cost(*command) -> tuple[float, float]:
    """Processor seconds and peak MB of a command, which has to succeed."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command[:3]))} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


if __name__ == "__main__":
    main()

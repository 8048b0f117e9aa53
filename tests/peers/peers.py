#!/usr/bin/env python3
"""kvreplay beside its peers on the same tensors: NVIDIA kvpress 0.5.4, and the pseudo-code of OBCache in eager PyTorch.

  peers.py [DUMP] [--kvreplay PATH] [--shape l,w,G] [--device cpu|cuda] [--threads N] [--json]

First whether they agree, in float64 on a dump (the sample): every kept set and pruned channel of the presses that
`--semantics kvpress` reproduces, and OBCache's scores. Then how long they take, in float32 on random tensors (d = 128, one KV head
with G query heads, the last w of l prompt positions as window; w = l: all of them): a press' score() and topk() of half the tokens,
ThinKPress' compress(), scores in eager PyTorch; beside it the same question to kvreplay's Python package, with as many threads, in turns.

Needs `pip install -r tests/peers/requirements.txt` (skipped with one line without), the program and, for the times, the package.
Exit status 1 where they do not agree.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

try:
    import kvpress  # noqa: F401
    import numpy  # noqa: F401
    import torch
    import transformers
except ImportError as missing:
    MISSING = f"{missing} (pip install -r tests/peers/requirements.txt)"
else:
    MISSING = ""
    import agreement
    import presses
    try:
        import times
    except ImportError:
        times = None

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("4096,32,4", "32768,32,4", "4096,4096,4", "32768,32768,4")


def print_agreement(found):
    print("| peer | kvreplay | equal | worst difference |\n|---|---|---|---|")
    for one in found:
        worst = "" if one.worst is None else f"{one.worst:.1e} of the head's largest"
        tied = f", {one.tied} ties apart" if one.tied else ""
        print(f"| {one.peer} | `{one.kvreplay}` | {one.equal} of {one.of} {one.what}{tied} | {worst} |", flush=True)
        for where in one.unlike[:3]:
            print(f"differs: {where}", file=sys.stderr)
        yield one


def milliseconds(value):
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def print_times(found):
    header = None
    for one in found:
        if header != (one["device"], one["l"], one["w"], one["G"]):
            header = (one["device"], one["l"], one["w"], one["G"])
            print(f"\n{times.Shape(*header[1:])}, on the {header[0].upper()}\n")
            print("| question | PyTorch, ms | kvreplay, ms | ratio | kept or pruned alike |\n|---|---|---|---|---|")
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2g}"
        alike = "" if one["in_common"] is None else f"{100 * one['in_common']:.2f} %"
        last = one["note"] or alike
        print(f"| {one['question']} | {milliseconds(one['peer_ms'])} | {milliseconds(one['kvreplay_ms'])} | {ratio} | {last} |", flush=True)
        yield one


def why_no_gpu():
    """Why the GPU columns are left out, or nothing."""
    return times.kvreplay.why_no_cuda() if torch.cuda.is_available() else "torch sees no CUDA device"


def machine(threads):
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown processor")
    return {"date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}", "processor": model, "threads": threads,
            "load": round(os.getloadavg()[0], 1), "torch": torch.__version__, "transformers": transformers.__version__,
            "kvpress": version("kvpress")}  # fmt: skip


def read_shape(text):
    try:
        shape = times.Shape(*(int(part) for part in text.split(",")))
        if not (0 < shape.w <= shape.l and shape.l >= 8 and shape.G > 0):
            raise ValueError
    except (TypeError, ValueError):
        raise SystemExit(f"peers: --shape: expected l,w,G with w from 1 to l, found '{text}'") from None
    return shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path, default=ROOT / "data/samples/pystdlib-lm", metavar="DUMP")
    parser.add_argument("--kvreplay", type=Path, metavar="PATH", help="the program (build/release/bin/kvreplay)")
    parser.add_argument("--shape", action="append", metavar="l,w,G", help=f"shapes to time, as often as wanted ({' '.join(SHAPES)})")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what is timed (the CPU, and a GPU where there is one)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides (all cores)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each side (5)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="a turn goes on at least so long (0.3)")
    parser.add_argument("--only", choices=("agreement", "times"))
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    if MISSING:
        print(f"peers: skipped, {MISSING}")
        return 0
    if version("kvpress") != presses.VERSION:
        raise SystemExit(f"peers: kvpress: expected {presses.VERSION}, found {version('kvpress')}")
    shapes = [read_shape(text) for text in args.shape or SHAPES]
    program = args.kvreplay or ROOT / "build/release/bin/kvreplay"
    if args.only != "times" and not os.access(program, os.X_OK):
        raise SystemExit(f"peers: {program}: expected a program (./bootstrap.sh build, or --kvreplay PATH), found none")
    if args.only != "agreement" and times is None:
        raise SystemExit("peers: times need the Python package: pip install ., or PYTHONPATH (./bootstrap.sh build --python)")
    torch.set_num_threads(args.threads)

    report = {"machine": machine(args.threads)}
    out = sys.stdout
    if args.json:
        sys.stdout = open(os.devnull, "w")
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()), flush=True)
    if args.only != "agreement" and report["machine"]["load"] > 1:
        print("others compute on this machine: PyTorch's threads wait for each other, ratios are worth little", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="kvreplay-peers-") as folder:
        work = Path(folder)
        if args.only != "times":
            print(f"\n{args.dump.resolve().name}, float64\n")
            found = list(print_agreement(agreement.compare(args.dump, program, work)))
            report["agreement"] = [one.record() for one in found]
            report["agree"] = all(one.fine for one in found)
        if args.only != "agreement":
            report["times"] = []
            none = "not asked for" if args.device == "cpu" else why_no_gpu()
            for device in ("cpu", "cuda"):
                if device == "cuda" and none or args.device not in (None, device):
                    continue
                for shape in shapes:
                    report["times"] += print_times(times.measure(shape, args.threads, device, args.rounds, args.seconds))
            if none:
                print(f"\nno GPU here: {none}" if args.device != "cpu" else "")
                report["gpu"] = none
    if args.json:
        sys.stdout = out
        print(json.dumps(report, indent=1))
    return 0 if report.get("agree", True) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as end:
        if isinstance(end.code, str):
            print("peers:", end.code.removeprefix("peers: "), file=sys.stderr)
            sys.exit(2)
        raise

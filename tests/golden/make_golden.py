#!/usr/bin/env python3
"""Golden values of the token metrics, computed from their definitions in float64.

Nothing here shares code or closed forms with the C++ toolkit: an exact error is found by changing the
cache (key zeroed, value zeroed, token removed), computing the attention again and comparing the outputs.
The definitions are in golden_tokens.py and golden_agreement.py; agreement, which follows from the values, is only computed by --check.

  make_golden.py                          write the golden files of data/samples/pystdlib-lm
  make_golden.py --check DIR [--dump D]   compare a result folder of `kvreplay tokens` with a fresh computation
  make_golden.py --out DIR --dump D       write golden files of another dump
  make_golden.py --selftest               small cases with known answers
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one core, and sums in a fixed order

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np

from golden_agreement import top
from golden_dump import SAMPLE, layer_list, load_layer
from golden_tokens import METRICS, head_metrics

HERE = Path(__file__).resolve().parent


def sampled_positions(l):
    """Both ends, the edge of a window of 32, and 17 positions spread over the prompt."""
    wanted = {0, 1, 2, 3, l - 33, l - 32, l - 2, l - 1}
    wanted.update(j * (l - 1) // 16 for j in range(17))
    return sorted(p for p in wanted if 0 <= p < l)


def token_lines(index, g, metrics):
    for name, x in metrics.items():
        peak = int(top(x, 1)[0])
        yield [index, g, name, "sum", "", repr(float(x.sum()))]
        yield [index, g, name, "moment", "", repr(float(x @ np.arange(len(x))))]
        yield [index, g, name, "max", peak, repr(float(x[peak]))]
        for p in sampled_positions(len(x)):
            yield [index, g, name, "token", p, repr(float(x[p]))]


def write_csv(path, header, lines):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
    print(f"{path}: {path.stat().st_size} bytes")


def write_golden(dump, out, window, layers, prompt_len):
    tokens = []
    for index in layers:
        started = time.time()
        layer = load_layer(dump, index, prompt_len)
        for g in range(layer.n_kv):
            tokens += token_lines(index, g, head_metrics(layer, g, window))
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    stem = f"{dump.name}.w{min(window, layer.l)}"
    write_csv(out / f"{stem}.tokens.csv", ["layer", "kv_head", "metric", "what", "position", "value"], tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE, help="folder with layer_XX/{q,k,v}.npy (default: the sample dump)")
    parser.add_argument("--out", type=Path, help="write golden files of --dump here")
    parser.add_argument("--check", type=Path, metavar="DIR", help="result folder to compare; exit 1 on a miss")
    parser.add_argument("--window", type=int, help="rows that score (default: 32; with --check every window of the run)")
    parser.add_argument("--layers", help="such as 0,3-5 (default: all)")
    parser.add_argument("--prompt-len", type=int, help="split the dump here instead")
    parser.add_argument("--metrics", help="compare these only, comma-separated")
    parser.add_argument("--selftest", action="store_true")
    args = parser.parse_args()

    if args.selftest:
        import golden_tokens_test

        golden_tokens_test.selftest()
    elif args.check:
        from golden_tokens_check import check_result

        names = args.metrics.split(",") if args.metrics else METRICS
        layers = layer_list(args.layers, args.dump)
        sys.exit(0 if check_result(args.check, args.dump, args.window, layers, args.prompt_len, names) else 1)
    elif args.out:
        write_golden(args.dump, args.out, args.window or 32, layer_list(args.layers, args.dump), args.prompt_len)
    else:
        write_golden(SAMPLE, HERE, 32, range(6), None)
        write_golden(SAMPLE, HERE, 896, [0, 5], None)


if __name__ == "__main__":
    main()

"""What a call from Python costs beside what it computes: a call of next to no work, and a whole layer.

  PYTHONPATH=build/release/python python3 tests/python/overhead.py

Of a whole layer, what is not computation is what the call takes to make a Layer of the arrays, to look for NaN in them and to
hand out the results; the looking is timed as NumPy does it, which is no faster.
"""
import sys
import time

import numpy as np

import kvreplay


def best(call, repeats):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    return times[0], times[len(times) // 2]


def report(what, call, repeats):
    least, median = best(call, repeats)
    print(f"{what:<58} {1e6 * least:11.1f} {1e6 * median:11.1f}")
    return least


def main():
    random = np.random.default_rng(0)
    print(f"{'us':<58} {'least':>11} {'median':>11}")
    q, k, v = (random.normal(size=(1, 64, 64)).astype(np.float32) for _ in range(3))
    kept = random.random((1, 64)) < 0.5
    one = kvreplay.Layer(q, k, v)
    report("1 head, 64 tokens: Layer(q, k, v)", lambda: kvreplay.Layer(q, k, v), 2000)
    for threads in (None, 1):
        of = "" if threads is None else ", 1 thread"
        report(f"  token_metrics(q, k, v, metrics='attn', window=1){of}",
               lambda: kvreplay.token_metrics(q, k, v, metrics="attn", window=1, threads=threads), 2000)
        report(f"  token_metrics(q, k, v, metrics='exact_remove'){of}",
               lambda: kvreplay.token_metrics(q, k, v, metrics="exact_remove", threads=threads), 2000)
        report(f"  output_error(q, k, v, kept){of}", lambda: kvreplay.output_error(q, k, v, kept, threads=threads), 2000)
        report(f"  evict(q, k, v, 64, policy='snapkv', keep=0.5){of}",
               lambda: kvreplay.evict(q, k, v, 64, policy="snapkv", keep=0.5, threads=threads), 2000)
    report("  token_metrics(layer, metrics='knorm', window=1), 1 thread",
           lambda: kvreplay.token_metrics(one, metrics="knorm", threads=1), 2000)

    q, k, v = (random.normal(size=(n, 4096, 128)).astype(np.float32) for n in (32, 8, 8))
    layer = kvreplay.Layer(q, k, v)
    names = ("attn", "joint", "exact_remove")
    report("8 groups of 4 x 4096 x 128: Layer(q, k, v)", lambda: kvreplay.Layer(q, k, v), 200)
    for window in (32, 512):
        whole = report(f"  token_metrics(q, k, v, 3 metrics, window={window})",
                       lambda: kvreplay.token_metrics(q, k, v, metrics=names, window=window), 15)
        inner = report(f"  token_metrics(layer, 3 metrics, window={window})",
                       lambda: kvreplay.token_metrics(layer, metrics=names, window=window), 15)
        print(f"  making the Layer: {100 * (whole - inner) / whole:.2f} % of the call")
    copied = k.transpose(1, 0, 2).copy().transpose(1, 0, 2), v.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    report("  the same of k, v [T, n_kv, d], which are copied, window=32",
           lambda: kvreplay.token_metrics(q, *copied, metrics=names, window=32), 15)


if __name__ == "__main__":
    sys.exit(main())

"""What a call from Python costs: of next to no work, in wall time, and of a whole layer, in processor time beside its parts.

  PYTHONPATH=build/release/python python3 tests/python/overhead.py
"""
import sys
import time

import numpy as np

import kvreplay


def report(what, call, repeats, clock=time.perf_counter):
    times = []
    for _ in range(repeats):
        begin = clock()
        call()
        times.append(1e6 * (clock() - begin))
    times.sort()
    print(f"{what:<62} {times[0]:11.1f} {times[len(times) // 2]:11.1f}")


def main():
    random = np.random.default_rng(0)
    print(f"{'us':<62} {'least':>11} {'median':>11}")
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
        report(f"  compensate(q, k, v, 64, keep=kept, method='mean'){of}",
               lambda: kvreplay.compensate(q, k, v, 64, keep=kept, method="mean", threads=threads), 2000)
        report(f"  compensate(q, k, v, 64, keep=kept){of}", lambda: kvreplay.compensate(q, k, v, 64, keep=kept, threads=threads), 500)
        report(f"  evict(q, k, v, 64, policy='snapkv', keep=0.5){of}",
               lambda: kvreplay.evict(q, k, v, 64, policy="snapkv", keep=0.5, threads=threads), 2000)
    report("  token_metrics(layer, metrics='knorm', window=1), 1 thread",
           lambda: kvreplay.token_metrics(one, metrics="knorm", threads=1), 2000)

    print("8 groups of 4 heads, 4096 tokens, 128 channels, processor time, 1 thread")
    q, k, v = (random.normal(size=(n, 4096, 128)).astype(np.float32) for n in (32, 8, 8))
    few = np.ascontiguousarray(q[:, -32:])
    names = ("attn", "joint", "exact_remove")
    turned = k.transpose(1, 0, 2).copy().transpose(1, 0, 2)
    for what, call in (
            ("Layer(q, k, v): that it is checked", lambda: kvreplay.Layer(q, k, v)),
            ("metrics=knorm, 32 queries a head: that k and v are looked at", lambda: kvreplay.token_metrics(few, k, v, metrics="knorm", threads=1)),
            ("the same with all queries: q too", lambda: kvreplay.token_metrics(q, k, v, metrics="knorm", threads=1)),
            ("3 metrics, window 32, 32 queries a head", lambda: kvreplay.token_metrics(few, k, v, metrics=names, threads=1)),
            ("the same with all queries", lambda: kvreplay.token_metrics(q, k, v, metrics=names, threads=1)),
            ("the same of k [T, n_kv, d], which is copied", lambda: kvreplay.token_metrics(few, turned, v, metrics=names, threads=1))):
        report(f"  {what}", call, 9, time.process_time)


if __name__ == "__main__":
    sys.exit(main())

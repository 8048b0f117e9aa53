#!/usr/bin/env python3
"""Times the scores of OBCache (eq. 4-6) as its pseudo-code computes them: PyTorch, eager, every matrix materialised.

    peer_torch.py [--device cpu|cuda] [--shape l,w,G ...] [--threads N] [--json]

The same shapes as token_metrics_bench: one KV head with G query heads, d = 128, float32, causal, the last w rows.
It computes five of the eleven metrics (attn, attn_sq, value, key, joint); exact errors have no eager peer.
With --device cuda: cuda_bench's shapes in float32 and float16, and flash attention of the same shapes, as a table.
Exits 0 with one line where torch, or the GPU asked for, is missing.
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("peer_torch: skipped, torch is not installed")
    sys.exit(0)

D = 128


def scores(q, k, v, first_row, block):
    """attn, attn_sq, value, key, joint summed over the rows of q [G, w, d]; k, v [l, d]. Rows go in blocks of `block`."""
    l = k.shape[0]
    v_sq = v.square().sum(-1)
    sums = torch.zeros(5, l, device=k.device)
    columns = torch.arange(l, device=k.device)
    for head in q:
        for begin in range(0, head.shape[0], block):
            rows = head[begin : begin + block]
            z = rows @ k.T * D**-0.5
            hidden = columns[None, :] > (first_row + begin + torch.arange(rows.shape[0], device=k.device))[:, None]
            a = torch.softmax(z.masked_fill(hidden, float("-inf")), dim=-1)
            o = a @ v
            a_sq = a.square()
            v_dot_o = o @ v.T
            distance = v_sq[None, :] - 2 * v_dot_o + o.square().sum(-1)[:, None]
            sums[0] += a.sum(0)
            sums[1] += a_sq.sum(0)
            sums[2] += (a_sq * v_sq[None, :]).sum(0)
            sums[3] += ((a * z).square() * distance).sum(0)
            sums[4] += (a_sq * (v_sq[None, :] + 2 * z * (v_sq[None, :] - v_dot_o) + z.square() * distance)).sum(0)
    return sums


def median_seconds(run, synchronize, least_runs=5, least_seconds=2.0):
    run()
    synchronize()
    times = []
    start = time.perf_counter()
    while len(times) < least_runs or time.perf_counter() - start < least_seconds:
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", nargs="*", help="l,w,G (4096,4096,1 4096,32,1 4096,32,4)")
    parser.add_argument("--block", type=int, help="rows at once (4096; on cuda, what fits)")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print("peer_torch: skipped, torch sees no CUDA device")
            sys.exit(0)
        import peer_torch_cuda

        with torch.no_grad():
            peer_torch_cuda.main(options, scores, D)
        return
    for shape in options.shape or ["4096,4096,1", "4096,32,1", "4096,32,4"]:
        l, w, groups = (int(x) for x in shape.split(","))
        generator = torch.Generator().manual_seed(1)
        q = (2 * torch.randn(groups, w, D, generator=generator)).to(options.device)
        k, v = (torch.randn(l, D, generator=generator).to(options.device) for _ in range(2))
        with torch.no_grad():
            seconds = median_seconds(lambda: scores(q, k, v, l - w, options.block or 4096), lambda: None)
        result = {"l": l, "w": w, "G": groups, "ms": 1e3 * seconds, "torch": torch.__version__, "device": options.device}
        print(json.dumps(result) if options.json else f"l={l} w={w} G={groups}: {1e3 * seconds:.2f} ms")


if __name__ == "__main__":
    main()

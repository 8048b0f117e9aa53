#!/usr/bin/env python3
"""Times the scores of OBCache (eq. 4-6) as its pseudo-code computes them: PyTorch, eager, every matrix materialised.

    peer_torch.py [--device cpu|cuda] [--shape l,w,G ...] [--threads N] [--json]

The same shapes as token_metrics_bench: one KV head with G query heads, d = 128, float32, causal, the last w rows.
It computes five of the eleven metrics (attn, attn_sq, value, key, joint); exact errors have no eager peer.
With --device cuda: cuda_bench's shapes in float32 and float16, attention alone, and flash attention of the same shapes, as a table.
Exits 0 with one line where torch, or the GPU asked for, is missing.
"""

import argparse
import json
import sys
from pathlib import Path

try:
    import torch
except ImportError:
    print("peer_torch: skipped, torch is not installed")
    sys.exit(0)

sys.path.append(str(Path(__file__).resolve().parent.parent / "peers"))
from obcache import median_seconds, scores  # noqa: E402

D = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", nargs="*", help="l,w,G (4096,4096,1 4096,32,1 4096,32,4)")
    parser.add_argument("--block", type=int, help="rows at once (4096; on cuda, what fits)")
    parser.add_argument("--compile", action="store_true", help="on cuda, attention alone by torch.compile too")
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

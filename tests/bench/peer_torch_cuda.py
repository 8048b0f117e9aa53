"""The CUDA half of peer_torch.py: the same scores in row blocks that fit the device, and flash attention, timed with events."""

import json
import statistics
import time

import torch
from obcache import MATRICES

SHAPES = ["32768,32768,1", "32768,32,1", "32768,32,4", "131072,32,1", "131072,32,4", "131072,131072,4"]


def milliseconds(run, device):
    """The device's time between two events; on a CPU, where the script is only tried out, the clock's."""
    if device != "cuda":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def median_ms(run, device, runs=10, warm_up=2, most_ms=30_000.0):
    """Median of `runs` after a warm-up, or of 3 where those would take longer than most_ms."""
    for _ in range(warm_up):
        milliseconds(run, device)
    times = []
    while len(times) < 3 or (len(times) < runs and sum(times) < most_ms):
        times.append(milliseconds(run, device))
    return statistics.median(times)


def rows_at_once(l, w, element, device):
    """The largest power of two, w at most, whose matrices take at most half of the free memory."""
    free = 1 << 30
    if device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    block = 1
    while 2 * block <= w and 2 * block * l * element * MATRICES <= free // 2:
        block *= 2
    return block


def inputs(l, w, groups, d, dtype, device, copies):
    """Copies of q [G, w, d], k and v [l, d] with numbers of their own."""
    generator = torch.Generator(device=device).manual_seed(1)
    normal = lambda *size: torch.randn(*size, generator=generator, device=device).to(dtype)
    return [(2 * normal(groups, w, d), normal(l, d), normal(l, d)) for _ in range(copies)]


def copies_beyond_cache(l, w, groups, d, element, device):
    """How many inputs are more than twice the device's L2 cache."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20) if device == "cuda" else 0
    return 2 * cache // (element * d * (2 * l + groups * w)) + 1


def attention(q, k, v, causal):
    """One forward pass of q [G, w, d] over one KV head."""
    from torch.nn.functional import scaled_dot_product_attention

    heads = q.shape[0]
    k, v = (x[None, None].expand(1, heads, -1, -1) for x in (k, v))
    return scaled_dot_product_attention(q[None], k, v, is_causal=causal)


def column_sums(q, k, first, block, lse=None):
    """Attention alone, what SnapKV, TOVA and H2O sum: weights of the rows first .. first + w of q [G, w, d], by columns [G, l].
    With lse [G, w] of a flash kernel the softmax is that kernel's."""
    total = torch.zeros(q.shape[0], k.shape[0], dtype=torch.float32, device=q.device)
    positions = torch.arange(k.shape[0], device=q.device)
    for begin in range(0, q.shape[1], block):
        rows = q[:, begin : begin + block]
        z = (rows @ k.T).float() * q.shape[2] ** -0.5
        hidden = positions > first + begin + torch.arange(rows.shape[1], device=q.device)[:, None]
        z = z.masked_fill(hidden, -torch.inf)
        weights = z.softmax(-1) if lse is None else (z - lse[:, begin : begin + block, None]).exp()
        total += weights.sum(1)
    return total


def flash_and_columns(q, k, v, block):
    """FlashAttention's forward pass, which knows each row's sum, and columns from it; every row of the prompt."""
    kv = [x[None, None].expand(1, q.shape[0], -1, -1) for x in (k, v)]
    found = torch.ops.aten._scaled_dot_product_flash_attention(q[None], *kv, 0.0, True, False)
    return column_sums(q, k, 0, block, found[1][0, :, : q.shape[1]])


def flash_only():
    """Nothing but the flash kernel; raises where it cannot run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def readable(ms):
    """Three digits or so, never an exponent above 1."""
    return "" if ms is None else f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def attempt(run):
    """The median in ms, or why there is none."""
    try:
        return run(), ""
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None, "out of device memory"
    except RuntimeError as error:
        return None, str(error).strip().split("\n")[0][:80]


def main(options, scores, d):
    shapes = options.shape or SHAPES
    device = options.device
    if device == "cuda":
        name = torch.cuda.get_device_name()
        if not options.json:
            print(f"PyTorch {torch.__version__}, {name}; medians of 10 (of 3 where they take long), cuda events\n")
    if not options.json:
        print("| what | l | w | G | inputs | time, ms | |\n|---|---|---|---|---|---|---|")

    def row(what, l, w, groups, dtype, ms, note):
        if options.json:
            figures = {"what": what, "l": l, "w": w, "G": groups, "inputs": dtype, "ms": ms, "note": note}
            print(json.dumps(figures | {"torch": torch.__version__, "device": device}), flush=True)
        else:
            print(f"| {what} | {l} | {w} | {groups} | {dtype} | {readable(ms)} | {note} |", flush=True)

    for shape in shapes:
        l, w, groups = (int(x) for x in shape.split(","))
        for dtype in (torch.float32, torch.float16):
            element, kind = dtype.itemsize, str(dtype).removeprefix("torch.")
            given, note = attempt(
                lambda: inputs(l, w, groups, d, dtype, device, copies_beyond_cache(l, w, groups, d, element, device))
            )
            if given is None:
                row("inputs", l, w, groups, kind, None, note)
                continue

            block = min(options.block, w) if options.block else rows_at_once(l, w, element, device)

            def timed(run, given=given):
                at = iter(range(1 << 62))
                return lambda: median_ms(lambda: run(*given[next(at) % len(given)]), device)

            ms, note = attempt(timed(lambda q, k, v: scores(q, k, v, l - w, block)))
            row("eager PyTorch, 5 of the 11 metrics", l, w, groups, kind, ms, note or f"{block} rows at once")
            ms, note = attempt(timed(lambda q, k, v: column_sums(q, k, l - w, block)))
            row("eager PyTorch, attention alone", l, w, groups, kind, ms, note or f"{block} rows at once")
            if options.compile and w < l:
                compiled = torch.compile(column_sums)
                ms, note = attempt(timed(lambda q, k, v: compiled(q, k, l - w, block)))
                row("compiled PyTorch, attention alone", l, w, groups, kind, ms, note)
            causal = w == l
            if causal and dtype == torch.float16 and device == "cuda":
                ms, note = attempt(timed(lambda q, k, v: flash_and_columns(q, k, v, block)))
                row("flash attention, then attention alone", l, w, groups, kind, ms, note or f"{block} rows at once")
            if dtype == torch.float16 and device == "cuda":
                with flash_only():
                    ms, note = attempt(timed(lambda q, k, v: attention(q, k, v, causal)))
                what = "flash attention forward"
            else:
                ms, note = attempt(timed(lambda q, k, v: attention(q, k, v, causal)))
                what = "scaled_dot_product_attention"
            row(what, l, w, groups, kind, ms, note or ("causal" if causal else "every row sees every token"))

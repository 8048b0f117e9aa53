"""Scores of tokens as one writes them in PyTorch, eager, every matrix materialised: OBCache's (eq. 4-6) by its pseudo-code, CAOTE's
(eq. 20), and the exact error of a removal by its closed form."""

import statistics
import time

import torch

NAMES = ("attn", "attn_sq", "value", "key", "joint")
MATRICES = 14  # of [block, l] that scores() has alive at once, counted generously


def scores(q, k, v, first_row, block):
    """[5, l]: NAMES summed over the rows of q [G, w, d], positions first_row, ...; k, v [l, d]. Rows go in blocks of `block`."""
    l, d = k.shape
    v_sq = v.square().sum(-1)
    sums = torch.zeros(5, l, device=k.device, dtype=torch.promote_types(k.dtype, torch.float32))
    columns = torch.arange(l, device=k.device)
    for head in q:
        for begin in range(0, head.shape[0], block):
            rows = head[begin : begin + block]
            z = rows @ k.T * d**-0.5
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


def caote(q, k, v, first_row):
    """[l]: s / (1 - s) ||sum s v - v_p||, s the attention of the rows of q [G, w, d] averaged over rows; summed over heads."""
    total = torch.zeros(k.shape[0], device=k.device)
    for head in q:
        s = weights(head, k, first_row).mean(0)
        total += s / (1 - s) * (s @ v - v).norm(dim=-1)
    return total


def exact_remove(q, k, v, first_row, block):
    """[l]: [a / (1 - a)]^2 ||v_p - o||^2 summed over the rows of q [G, w, d], in blocks, and over heads."""
    v_sq = v.square().sum(-1)
    total = torch.zeros(k.shape[0], device=k.device)
    for head in q:
        for begin in range(0, head.shape[0], block):
            a = weights(head[begin : begin + block], k, first_row + begin)
            o = a @ v
            distance = v_sq[None, :] - 2 * (o @ v.T) + o.square().sum(-1)[:, None]
            total += ((a / (1 - a)).square() * distance).sum(0)
    return total


def weights(rows, k, first_row):
    """softmax(q k^T / sqrt(d)) [rows, l], causal."""
    hidden = torch.arange(len(k), device=k.device)[None, :] > (first_row + torch.arange(len(rows), device=k.device))[:, None]
    return torch.softmax((rows @ k.T * k.shape[1] ** -0.5).masked_fill(hidden, float("-inf")), dim=-1)


def timed(run, synchronize, least_runs=5, least_seconds=2.0):
    """Seconds of every run after a warm-up, on this thread's clock."""
    run()
    synchronize()
    times = []
    start = time.perf_counter()
    while len(times) < least_runs or time.perf_counter() - start < least_seconds:
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - begin)
    return times


def median_seconds(run, synchronize):
    return statistics.median(timed(run, synchronize))

"""Means over prompts and their 95 % intervals: the one rule of every page. Standard library only.

Student's t over prompts, on logarithms of positive figures (the caller takes them), none below FEWEST prompts. Of counts (part, whole)
the ratio of their sums, with the standard error of the linearised ratio over prompts, on logits. test_intervals.py measures the coverage.
"""
import math
import statistics

FEWEST = 4


def t_quantile(freedom, share=0.95):
    """The t such that |T| <= t has this probability: the density, integrated by Simpson's rule in the angle."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def within(angle, steps=400):  # t = sqrt(freedom) tan(angle)
        values = [math.cos(angle * i / steps) ** (freedom - 1) for i in range(steps + 1)]
        return 2 * constant * angle / steps / 3 * (values[0] + values[-1] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]))

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < share else (low, middle)
    return math.sqrt(freedom) * math.tan(high)


T = {}  # by prompts


def half_width(values):
    """Of the mean's interval; not a number below FEWEST prompts."""
    count = len(values)
    if count < FEWEST:
        return math.nan
    if count not in T:
        T[count] = t_quantile(count - 1)
    return T[count] * statistics.stdev(values) / math.sqrt(count)


def interval(values, least=-math.inf, most=math.inf):
    """(mean, low, high) over prompts, within what a mean can be; low and high are not numbers below FEWEST prompts."""
    values = [float(value) for value in values]
    middle, half = statistics.fmean(values), half_width(values)
    return tuple(min(max(x, least), most) for x in (middle, middle - half, middle + half))  # what is no number stays none


def share_interval(counts):
    """(share, low, high) of counts (part, whole) by prompt; low and high are not numbers of a share of 0 or 1, too. Near 1 logits keep the
    coverage that shares themselves lose."""
    counts = [(float(part), float(whole)) for part, whole in counts]
    part, whole = map(sum, zip(*counts))
    share, mean_whole = part / max(whole, 1), whole / len(counts)
    if not 0 < share < 1:
        return share, math.nan, math.nan
    half = half_width([(a - share * b) / mean_whole for a, b in counts]) / (share * (1 - share))
    return share, *(1 / (1 + (1 - share) / share * math.exp(-by)) for by in (-half, half))

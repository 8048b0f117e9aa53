#!/usr/bin/env python3
"""The intervals over prompts: what they are by hand, and how often they hold the truth."""
import math
import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from intervals import FEWEST, interval, share_interval, t_quantile  # noqa: E402


def coverage(draw, truth, prompts, interval=interval, times=5000):
    """The share of so many intervals that hold the truth."""
    held = 0
    for _ in range(times):
        _, low, high = interval([draw() for _ in range(prompts)])
        held += low <= truth <= high
    return held / times


class ByHand(unittest.TestCase):
    def test_quantiles_are_those_of_the_tables(self):
        for freedom, t in ((1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)):
            self.assertAlmostEqual(t_quantile(freedom), t, delta=2e-5 * t)

    def test_a_mean(self):
        middle, low, high = interval([0.2, 0.4, 0.6, 0.4])
        half = 3.182446 * math.sqrt(0.08 / 3) / 2
        for found, expected in zip((middle, low, high), (0.4, 0.4 - half, 0.4 + half)):
            self.assertAlmostEqual(found, expected, places=6)
        self.assertEqual(interval([0.9, 0.2, 1, 1], -1, 1)[2], 1)

    def test_a_share_is_of_the_sums(self):
        counts = [(1, 2), (30, 40), (8, 10), (20, 28)]
        share, low, high = share_interval(counts)
        self.assertAlmostEqual(share, 59 / 80)
        error = math.sqrt(sum((a - share * b) ** 2 for a, b in counts) / 3 / 4) / 20
        half = t_quantile(3) * error / (share * (1 - share))
        for found, expected in ((low, -half), (high, half)):
            self.assertAlmostEqual(math.log(found / (1 - found)), math.log(share / (1 - share)) + expected)
        turned = share_interval([(b - a, b) for a, b in counts])
        self.assertAlmostEqual(turned[1], 1 - high)

    def test_too_few_prompts_and_a_share_of_all_have_none(self):
        for found in (interval([1.0] * (FEWEST - 1)), share_interval([(1, 2)] * (FEWEST - 1)), share_interval([(5, 5)] * 9),
                      share_interval([(0, 0)] * 4)):
            self.assertTrue(math.isfinite(found[0]) and math.isnan(found[1]) and math.isnan(found[2]))


class Coverage(unittest.TestCase):
    """What is called 95 % holds the truth in 93 to 97 %. A standard deviation of what is found: 0.3 %."""

    def assert_honest(self, found, what):
        self.assertTrue(0.93 <= found <= 0.97, f"{what}: {found}")

    def test_ratios(self):
        """Log-normal, on logarithms: normal. And skewed by 0.7 on logarithms (gamma of 8)."""
        of = random.Random(1)
        for prompts in (4, 6, 10):
            for what, draw, truth in (("normal", lambda: of.gauss(-0.2, 0.5), -0.2), ("skewed", lambda: of.gammavariate(8, 1), 8)):
                self.assert_honest(coverage(draw, truth, prompts), (prompts, what))

    def test_shares(self):
        """Of 300 to 700 pairs a prompt, whose own share varies around 80 and 90 % (beta of 15)."""
        of = random.Random(2)
        for prompts in (4, 6, 10):
            for share in (0.8, 0.9):
                def draw():
                    whole = of.randint(300, 700)
                    return of.betavariate(15 * share, 15 * (1 - share)) * whole, whole
                self.assert_honest(coverage(draw, share, prompts, share_interval), (prompts, share))


if __name__ == "__main__":
    unittest.main()

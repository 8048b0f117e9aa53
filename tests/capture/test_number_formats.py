#!/usr/bin/env python3
"""Every format of a cache, by PyTorch and by the program: the same numbers are read, so the same error is measured.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_number_formats.py [-v] [Class.test]

Without KVREPLAY nothing is tested (exit status 77).
"""

import csv
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

# First: skips where numpy, torch or transformers is missing.
from capture_case import KVREPLAY

import numpy as np
import torch

from kvresults import open_results
from number_formats import FORMATS, read_back, turn
from validation_cases import stored_formats

LAYERS, N_Q, N_KV, D, L, STEPS = 2, 4, 2, 64, 60, 6
BITS = [*FORMATS, "2", "3", "4", "5", "6", "8", "k4v16", "k16v2", "kfp8v4", "q8_0;0:4", "k8v4;last:ktq4v16"]


def outputs(q, k, v, first):
    """[rows, d_v] of the rows from position `first` on, causal."""
    logits = q[first:] @ k.T / math.sqrt(D)
    hidden = torch.arange(len(k))[None] > torch.arange(first, len(k))[:, None]
    return torch.softmax(logits.masked_fill(hidden, -math.inf), 1) @ v


@unittest.skipUnless(KVREPLAY, "KVREPLAY names no kvreplay")
class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="formats-")
        cls.addClassCleanup(place.cleanup)
        cls.made = Path(place.name)
        cls.run_program("synth", cls.made / "dump", "--layers", LAYERS, "--q-heads", N_Q, "--kv-heads", N_KV, "--head-dim", D,
                        "--prompt", L, "--decode", STEPS)

    @staticmethod
    def run_program(*arguments):
        subprocess.run([KVREPLAY, *map(str, arguments)], check=True, capture_output=True, text=True)

    def array(self, layer, name, head):
        return torch.from_numpy(np.load(self.made / "dump" / f"layer_{layer:02}" / f"{name}.npy")[head]).double()

    def compare(self, *options):
        out = self.made / "r"
        self.run_program("evict", self.made / "dump", "--out", out, "--force", "--precision", "f64", "--policy", "none",
                         "--bits", ",".join(f"'{name}'" for name in BITS), *options)
        results = open_results(out)
        formats = stored_formats(results.summary["options"]["evict"], LAYERS)
        with open(out / "evictions.csv", newline="", encoding="utf-8") as file:
            found = {(row["policy"].partition("~")[2], int(row["layer"]), int(row["kv_head"])): float(row["value"])
                     for row in csv.DictReader(file)
                     if row["kv_head"] and row["metric"] == "output_error" and row["rows"] == "future"}
        self.assertEqual(len(found), len(formats) * LAYERS * N_KV)
        for (name, layer, g), error in found.items():
            stored, k, v = formats[name][layer], self.array(layer, "k", g), self.array(layer, "v", g)
            held_k, held_v = k.clone(), v.clone()
            old = max(L - stored.residual, 0)
            per_channel = stored.keys == "channel" and stored.k.isdigit()
            whole = old // stored.group * stored.group if per_channel else old
            center = 0 if stored.centered is None else k[stored.centered : L].double().mean(0).to(k)
            held_k[:whole] -= center
            read_back(held_k[:whole], stored.k, stored.turned[0], stored.group, per_channel)
            held_k[:whole] += center
            read_back(held_v[:old], stored.v, stored.turned[1], stored.group, False)
            change = full = 0.0
            for h in range(g * N_Q // N_KV, (g + 1) * N_Q // N_KV):
                q = self.array(layer, "q", h)
                o = outputs(q, k, v, L)
                change += float(((outputs(q, held_k, held_v, L) - o) ** 2).sum())
                full += float((o**2).sum())
            with self.subTest(format=name, layer=layer, head=g):
                # A direction that lies half way between two levels goes either way.
                close = 0.05 if "tq" in name else 1e-6
                self.assertTrue(math.isclose(error, change / full, rel_tol=close, abs_tol=1e-18), (error, change / full))

    def test_as_engines_store_them(self):
        self.compare("--residual", 0)

    def test_kivi_keeps_the_last_tokens(self):
        self.compare("--residual", 11, "--group", 8)

    def test_turned(self):
        self.compare("--residual", 3, "--rotate", "hadamard,k,v:16,hadamard:2")

    def test_centered(self):
        self.compare("--residual", 3, "--center", "k,k:5", "--rotate", "none,hadamard")

    def test_keys_along_channels(self):
        self.compare("--residual", 0, "--keys", "token", "--group", 24)


class Definitions(unittest.TestCase):
    """Laws that need no program."""

    def test_small_floats_are_those_of_pytorch(self):
        x = torch.randn(4, 4096, dtype=torch.float64) * torch.logspace(-4, 2, 4, dtype=torch.float64)[:, None]
        read = FORMATS["fp8"](x)
        self.assertTrue(torch.equal(read, x.clamp(-448, 448).float().to(torch.float8_e4m3fn).double()))

    def test_what_is_read_is_stored_the_same_again(self):
        x = torch.randn(5, 64)
        for name in ("q8_0", "fp8", "mxfp8", "mxfp4", "fp8_per_token_head", "int8_per_token_head"):
            once = FORMATS[name](x)
            self.assertTrue(torch.allclose(FORMATS[name](once), once, rtol=1e-3), name)

    def test_turning_twice_is_nothing(self):
        x = torch.randn(3, 96, dtype=torch.float64)
        for size in (2, 8, 32):
            self.assertTrue(torch.allclose(turn(turn(x, size), size), x))


if __name__ == "__main__":
    if not KVREPLAY:
        print("SKIPPED, nothing was compared: KVREPLAY is not set", file=sys.stderr)
        sys.exit(77)
    unittest.main()

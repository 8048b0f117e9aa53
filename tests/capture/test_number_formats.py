#!/usr/bin/env python3
"""Every format of a cache, by PyTorch and by the program: the same numbers are read, so the same error is measured.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_number_formats.py [-v] [Class.test]

Without KVREPLAY nothing is tested (exit status 77).
"""

import csv
import json
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
import kv_scales
from number_formats import FORMATS, Stored, interleaved, quantize, read_back, turn
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
            order = interleaved(D) if stored.interleaved else torch.arange(D)
            ordered = held_k[:whole, order]
            read_back(ordered, stored.k, stored.turned[0], stored.group, per_channel, scale=stored.scales[0])
            held_k[:whole, order] = ordered
            held_k[:whole] += center
            read_back(held_v[:old], stored.v, stored.turned[1], stored.group, False, scale=stored.scales[1])
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
        return formats

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

    def test_scales_of_another_prompt(self):
        self.run_program("synth", self.made / "other", "--layers", LAYERS, "--q-heads", N_Q, "--kv-heads", N_KV, "--head-dim", D,
                         "--prompt", L, "--decode", STEPS, "--seed", 7)
        for most in (448, 127, 4000):  # the last: much is cut off
            self.assertEqual(kv_scales.main([str(self.made / "other"), "--out", str(self.made / "s.safetensors"), "--most", str(most)]), 0)
            with self.subTest(most=most):
                self.compare("--residual", 0, "--rotate", "none,hadamard", "--scales", self.made / "s.safetensors")

    def test_keys_in_the_order_of_llama_cpp(self):
        path = self.made / "dump" / "manifest.json"
        before = path.read_text()
        manifest = json.loads(before)
        manifest["rope"] = {"style": "half", "ggml_style": "interleaved", "theta": 10000.0}
        path.write_text(json.dumps(manifest))
        try:
            formats = self.compare("--residual", 0, "--rotate", "none,hadamard:32", "--center", "none,k")
        finally:
            path.write_text(before)
        self.assertEqual({name.partition("+")[0].partition(";")[0] for name, layers in formats.items() if layers[-1].interleaved},
                         {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0"})

    def test_scales_of_a_dump(self):
        out = self.made / "own.safetensors"
        self.assertEqual(kv_scales.main([str(self.made / "dump"), "--out", str(out)]), 0)
        found = out.read_bytes()
        size = int.from_bytes(found[:8], "little")
        header = json.loads(found[8 : 8 + size])
        self.assertEqual(len(header), 2 * LAYERS)
        for layer in range(LAYERS):
            for side in "kv":
                begin, end = header[f"model.layers.{layer}.self_attn.{side}_scale"]["data_offsets"]
                most = max(float(self.array(layer, side, g)[:L].abs().max()) for g in range(N_KV))
                self.assertAlmostEqual(np.frombuffer(found[8 + size + begin : 8 + size + end], "<f4")[0] * 448, most, places=4)


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

    def test_keys_are_stored_in_the_order_of_llama_cpp(self):
        k, v, center = torch.randn(6, 64), torch.randn(6, 64), torch.randn(64)
        order = [c for pair in zip(range(32), range(32, 64)) for c in pair]  # RoPE turns c and c + d/2 by one angle
        for name, same in (("q4_0", False), ("q8_0", False), ("nvfp4", True)):
            for turned in (0, 32):
                stored = Stored(name, name, turned=(turned, 0), residual=2)
                found, ordered, plain = (x.clone() for x in (k, k[:, order], k))
                held = v.clone()
                quantize(found, held, None, stored._replace(interleaved=True), center)
                quantize(ordered, v.clone(), None, stored, center[order])
                quantize(plain, v.clone(), None, stored, center)
                self.assertEqual(torch.equal(found, plain), same, (name, turned))
                self.assertTrue(same or torch.equal(found[:, order], ordered), (name, turned))
                self.assertTrue(torch.equal(held[:4], FORMATS[name](v[:4])), name)

    def test_a_scale_of_the_layer(self):
        x = torch.tensor([[900.0, -5, 1.3, 0], [-900, 2.5, 0.2, 1]], dtype=torch.float64)
        for name, scale, read in (("int8", 1, [127, -5, 1, 0]), ("int8", 10, [900, 0, 0, 0]), ("fp8", 1, [448, -5, 1.25, 0]),
                                  ("fp8", 2, [896, -5, 1.25, 0])):
            k, v = x.clone(), x.clone()
            quantize(k, v, None, Stored(name, name, residual=0, scales=(scale, 1)))
            self.assertEqual(k[0].tolist(), read, name)
            self.assertTrue(torch.equal(v, FORMATS[name](x)), name)

    def test_turning_twice_is_nothing(self):
        x = torch.randn(3, 96, dtype=torch.float64)
        for size in (2, 8, 32):
            self.assertTrue(torch.allclose(turn(turn(x, size), size), x))


if __name__ == "__main__":
    if not KVREPLAY:
        print("SKIPPED, nothing was compared: KVREPLAY is not set", file=sys.stderr)
        sys.exit(77)
    unittest.main()

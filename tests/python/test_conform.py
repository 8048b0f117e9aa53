"""kvreplay.conform on arrays, and its fixture for pytest.

  PYTHONPATH=build/release/python python3 tests/python/test_conform.py

Needs NumPy (without: nothing is tested, exit status 77); the fixture also pytest.
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    print("skipped: needs numpy", file=sys.stderr)
    sys.exit(77)

import kvreplay

DUMP = Path(__file__).resolve().parents[2] / "data/samples/pystdlib-lm"
LAYERS, HEADS, PROMPT = 6, 2, 896


class Conform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dump = kvreplay.Dump(DUMP)
        cls.kept = np.stack([kvreplay.evict(layer, policy="knorm", keep=0.2).kept for layer in dump])

    def test_what_the_policy_keeps_conforms_in_every_form(self):
        lists = [[np.flatnonzero(head)[::-1] for head in layer] for layer in self.kept]
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "kept.npy", self.kept)
            np.savez(Path(folder) / "kept.npz", **{f"layer_{at:02}_head_{head}": positions for at, layer in enumerate(lists)
                                                   for head, positions in enumerate(layer)})
            for kept in (self.kept, lists, Path(folder) / "kept.npy", str(Path(folder) / "kept.npz")):
                with self.subTest(type(kept).__name__):
                    found = kvreplay.conform(DUMP, "knorm", kept, keep=0.2)
                    self.assertTrue(found)
                    self.assertEqual(found.cases[0]["verdict"], "conforms")
                    self.assertTrue(found.startswith("conforms: 12 heads keep exactly what knorm keeps, 179 tokens"))

    def test_what_departs_is_false_and_says_why(self):
        other = self.kept.copy()
        row = other[3, 1]  # a token for another
        row[np.flatnonzero(row)[0]], row[np.flatnonzero(~row)[0]] = False, True
        found = kvreplay.conform(DUMP, "knorm", other, keep=0.2)
        self.assertFalse(found)
        self.assertEqual((found.cases[0]["heads_apart"], found.cases[0]["tokens_apart"], found.cases[0]["first"]["layer"]), (1, 2, 3))
        self.assertIn("differs: 1 of 12 heads keep other tokens than knorm, 2 tokens in all, in layer 3", found)

    def test_scores_budgets_and_a_cut_of_the_prompt(self):
        dump = kvreplay.Dump(DUMP, 400)
        keys = np.stack([layer.arrays[1][:, :400] for layer in dump]).astype(np.float64)
        scores = -np.linalg.norm(keys, axis=-1)
        counts = np.arange(LAYERS * HEADS).reshape(LAYERS, HEADS) + 50
        kept = [[np.argsort(-scores[layer, head], kind="stable")[: counts[layer, head]] for head in range(HEADS)] for layer in range(LAYERS)]
        found = kvreplay.conform(dump, "knorm", kept, scores=scores, budgets=counts, keep=0.2)
        self.assertTrue(found, str(found))
        self.assertGreater(found.cases[0]["scores"]["lowest_spearman"], 0.999)
        self.assertEqual(found.cases[0]["verdict"], "conforms")

    def test_a_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            for at, layer in enumerate(kvreplay.Dump(DUMP)):
                place = Path(folder) / f"layer_{at:02}"
                place.mkdir()
                for name, numbers in zip("kv", layer.arrays[1:]):
                    np.save(place / f"{name}.npy", numbers[:, :PROMPT].astype(np.float32) * (2 if name == "k" and at == 4 else 1))
            found = kvreplay.conform(DUMP, "none", cache=folder)
        self.assertFalse(found)
        self.assertIn("keys    multiplied by 2 in 2 of 12 heads (layer 4", found)

    def test_a_cache_of_transformers_that_holds_a_sliding_window_conforms(self):
        try:
            import torch
            import transformers
        except ImportError:
            self.skipTest("needs torch and transformers")
        length, window = 50, 20
        config = transformers.Gemma3TextConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                               num_key_value_heads=1, head_dim=16, sliding_window=window,
                                               layer_types=["sliding_attention", "full_attention"])
        model = transformers.Gemma3ForCausalLM(config).eval()
        rng = np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as folder:
            for layer in range(2):
                place = Path(folder) / f"layer_{layer:02}"
                place.mkdir()
                for name, heads in (("q", 2), ("k", 1), ("v", 1)):
                    np.save(place / f"{name}.npy", rng.standard_normal((heads, length + 2, 16)).astype(np.float32))
            (Path(folder) / "manifest.json").write_text(json.dumps({"prompt_len": length, "scale": 0.25, "sliding_window": [window, None]}))
            for cache in (transformers.DynamicCache(config=config), transformers.DynamicCache()):  # w - 1 positions, and all
                with torch.no_grad(), kvreplay.kept_of(model) as kept:
                    model(torch.arange(length)[None] % 64, past_key_values=cache)
                mask = kept.mask()
                self.assertEqual(mask.shape, (2, 1, length))
                self.assertTrue(mask[0, 0, length - window + 1 :].all() and mask[1].all())
                found = kvreplay.conform(folder, "none", kept)
                self.assertTrue(found, str(found))
                self.assertIn("not compared: positions 0 to 30 of layer 0", found)

    def test_refusals_are_input_errors(self):
        for kept, options, said in ((self.kept[:5], {"keep": 0.2}, "expected 6 layers, found 5 layers"),
                                    ([[[0, 1, 900]] * 2] * 6, {"budget": 3}, "expected positions 0 to 895 of the prompt, found 900"),
                                    ([["a"] * 2] * 6, {"budget": 3}, "expected a list of positions"),
                                    (self.kept, {"keep": "20%,50%"}, "expected a file for each budget, found 1 file and 2 budgets")):
            with self.assertRaisesRegex(kvreplay.InputError, said):
                kvreplay.conform(DUMP, "knorm", kept, **options)

    def test_the_fixture_fails_with_the_report(self):
        try:
            import pytest  # noqa: F401
        except ImportError:
            self.skipTest("needs pytest")
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "kept.npy", self.kept)
            Path(folder, "test_mine.py").write_text(f"""
def test_good(kvreplay_conform):
    assert kvreplay_conform({str(DUMP)!r}, "knorm", "kept.npy", keep=0.2).ok
def test_bad(kvreplay_conform):
    kvreplay_conform({str(DUMP)!r}, "keydiff", "kept.npy", keep=0.2)
""")
            run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "kvreplay.pytest_fixture", "test_mine.py"], cwd=folder,
                                 capture_output=True, text=True)
        self.assertIn("1 failed, 1 passed", run.stdout + run.stderr)
        self.assertIn("what it keeps is knorm", run.stdout)


if __name__ == "__main__":
    unittest.main()

"""kvreplay.press in a running model, against what `kvreplay evict` keeps of a dump of the same prompt.

  PYTHONPATH=build/release/python python3 tests/python/test_press.py

Needs torch, transformers and kvpress (tests/peers/requirements.txt); without: nothing is tested, exit status 77.
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import kvpress  # noqa: F401
    import numpy as np
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)

import kvreplay
from kvreplay import capture

LENGTH, LAYERS, HEADS, GROUP = 96, 3, 2, 2


def model_of(kind, **more):
    torch.manual_seed(7)
    config = kind(vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=HEADS * GROUP,
                  num_key_value_heads=HEADS, head_dim=16, max_position_embeddings=256, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(40)  # attention that is not flat
            layer.self_attn.v_proj.weight.mul_(5)
    return model


def read(model, ids, press=None):
    cache = transformers.DynamicCache()
    with torch.no_grad():
        if press is None:
            model(ids, past_key_values=cache)
        else:
            with press(model):
                model(ids, past_key_values=cache)
    return cache


class Presses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = model_of(transformers.LlamaConfig)
        cls.ids = torch.randint(64, (1, LENGTH), generator=torch.Generator().manual_seed(1))
        cls.folder = tempfile.TemporaryDirectory()
        cls.dump = Path(cls.folder.name) / "dump"
        with capture.capture(cls.model, cls.dump, prompt_len=LENGTH):
            capture.feed(cls.model, cls.ids[0].tolist(), given=[], decode=0, seed=None)
        cls.full = read(cls.model, cls.ids)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def replayed(self, policy, ratio, semantics):
        """bool [layers, n_kv, l], by the program of the dump."""
        out = Path(self.folder.name) / "evict"
        subprocess.run([kvreplay.program(), "evict", self.dump, "--out", out, "--policy", policy, "--sigma", str(ratio),
                        "--semantics", semantics, "--force", "--quiet"], check=True)
        files = [next((out / f"layer_{layer:02d}/kept").iterdir()) for layer in range(LAYERS)]
        return np.stack([np.load(file) for file in files])

    def test_the_cache_holds_what_evict_keeps(self):
        for policy, ratio, options in (("h2o+joint", 0.5, {}), ("h2o+exact_remove[window=8]", 0.8, {}), ("snapkv", 0.5, {"window": 16}),
                                       ("tova", 0.8, {}), ("keydiff", 0.5, {}), ("snapkv+caote", 0.75, {"semantics": "paper", "window": 16})):
            with self.subTest(policy):
                press = kvreplay.press(policy, ratio, **options)
                cache = read(self.model, self.ids, press)
                extra = [text for name, value in options.items() if name == "window" for text in (f"{policy}[{name}={value}]",)]
                want = self.replayed(*(extra or [policy]), ratio, options.get("semantics", "kvpress"))
                for layer in range(LAYERS):
                    self.assertTrue((press.kept[layer][0] == want[layer]).all(), layer)
                    for head in range(HEADS):
                        for states, all_states in ((cache.layers[layer].keys, self.full.layers[layer].keys),
                                                   (cache.layers[layer].values, self.full.layers[layer].values)):
                            left = all_states[0, head, torch.from_numpy(want[layer][head])]
                            self.assertTrue(torch.equal(states[0, head], left))

    def test_generation_goes_on_with_it(self):
        press, cache = kvreplay.press("h2o+exact_remove", 0.5), transformers.DynamicCache()
        with press(self.model), torch.no_grad():
            out = self.model.generate(self.ids, attention_mask=torch.ones_like(self.ids), past_key_values=cache, do_sample=False,
                                      pad_token_id=0, max_new_tokens=4, min_new_tokens=4)
        self.assertEqual(out.shape, (1, LENGTH + 4))
        self.assertEqual({layer.keys.shape[2] for layer in cache.layers}, {LENGTH // 2 + 3})

    def test_heads_of_unequal_budgets_are_masked(self):
        budgets = np.arange(8, 8 + LAYERS * HEADS).reshape(LAYERS, HEADS)
        press = kvreplay.press("h2o+joint", budgets=budgets)
        cache = read(self.model, self.ids, press)
        for layer in range(LAYERS):
            self.assertEqual(press.kept[layer][0].sum(-1).tolist(), budgets[layer].tolist())
            self.assertEqual(cache.layers[layer].keys.shape[2], LENGTH)
            batch, head, position = self.model.model.layers[layer].self_attn.masked_key_indices
            hidden = np.zeros((1, HEADS, LENGTH), bool)
            hidden[batch, head, position] = True
            self.assertTrue((hidden == ~press.kept[layer]).all())
            for head, budget in enumerate(budgets[layer]):
                alone = self.replayed_alone(layer, head, int(budget))
                self.assertTrue((press.kept[layer][0, head] == alone).all(), (layer, head))

    def replayed_alone(self, layer, head, budget):
        q, k, v = (np.load(self.dump / f"layer_{layer:02d}" / f"{name}.npy") for name in "qkv")
        return kvreplay.evict(q, k, v, policy="h2o+joint", budget=budget, semantics="kvpress").kept[head]

    def test_a_batch_is_pressed_prompt_by_prompt(self):
        other = torch.randint(64, (1, LENGTH), generator=torch.Generator().manual_seed(2))
        both = kvreplay.press("h2o+joint", 0.5)
        read(self.model, torch.cat((self.ids, other)), both)
        for one, ids in enumerate((self.ids, other)):
            press = kvreplay.press("h2o+joint", 0.5)
            read(self.model, ids, press)
            for layer in range(LAYERS):
                self.assertTrue((both.kept[layer][one] == press.kept[layer][0]).all())

    def test_normed_queries_and_half_precision(self):
        for kind in (transformers.Qwen3Config, transformers.MistralConfig):
            model = model_of(kind).to(torch.bfloat16)
            press = kvreplay.press("h2o+joint", 0.5)
            cache = read(model, self.ids, press)
            self.assertEqual({(layer.keys.shape[2], layer.keys.dtype) for layer in cache.layers}, {(LENGTH // 2, torch.bfloat16)})

    def test_nothing_evicted_changes_nothing(self):
        cache = read(self.model, self.ids, kvreplay.press("h2o", 0))
        self.assertTrue(all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, self.full.layers)))

    def test_refusals(self):
        for says, press in (("policy: unknown policy 'h3o'", kvreplay.press("h3o", 0.5)),
                            ("budgets: expected shape [layers, 2] with a row for layer 0, found shape [3, 1]",
                             kvreplay.press("h2o", budgets=np.ones((3, 1), int)))):
            with self.assertRaises(kvreplay.InputError) as caught:
                read(self.model, self.ids, press)
            self.assertIn(says, str(caught.exception))


if __name__ == "__main__":
    unittest.main()

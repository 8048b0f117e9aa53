"""kvreplay.press in a running model, against what `kvreplay evict` keeps of a dump of the same prompt.

  PYTHONPATH=build/release/python python3 tests/python/test_press.py

Needs torch, transformers and kvpress (tests/peers/requirements.txt); without: nothing is tested, exit status 77.
"""
import copy
import json
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import kvpress  # noqa: F401
    import numpy as np
    import torch
    import transformers
    from kvpress.presses.lukv_press import LUKVPress
except ImportError as missing:
    print(f"skipped: {missing}", file=sys.stderr)
    sys.exit(77)

import kvreplay
from kvreplay import _press, capture
from kvreplay._logit_biases import set_biases
from kvreplay._scripts.changed_cache import Change
from kvreplay._scripts.model_loop import ModelLoop
from kvreplay._scripts.validation_cases import cases_of

LENGTH, LAYERS, HEADS, GROUP, STEPS = 96, 3, 2, 2, 8


def model_of(kind, attention="sdpa", **more):
    torch.manual_seed(7)
    config = kind(vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=HEADS * GROUP,
                  num_key_value_heads=HEADS, head_dim=16, max_position_embeddings=256, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
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


def ids_of(seed, length=LENGTH):
    return torch.randint(64, (1, length), generator=torch.Generator().manual_seed(seed))


def steps(model, cache, ids, at_once=1):
    """Logits [batch, rows, vocabulary] behind ids [batch, rows], fed over a cache of a prompt of LENGTH tokens."""
    found = []
    with torch.no_grad():
        for begin in range(0, ids.shape[1], at_once):
            some = ids[:, begin : begin + at_once]
            at = torch.arange(begin, begin + some.shape[1])
            there = cache.layers[0].keys.shape[2] - begin  # masks count the keys that are left, rotations the positions
            positions = (LENGTH + at)[None].expand(len(ids), -1)
            found.append(model(some, past_key_values=cache, cache_position=there + at, position_ids=positions).logits)
    return torch.cat(found, 1)


def looped(model, ids, changes_of):
    """Logits [rows, vocabulary] that kvvalidate.py's loop has of the steps behind the prompt."""
    with ModelLoop(model) as loop:
        loop.read(ids[0].tolist(), LENGTH)
        return loop.feed({layer: changes_of(layer) for layer in range(LAYERS)})


def held(press, one=0):
    return lambda layer: Change(held=press.compensations[layer][one].held)


class Presses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = model_of(transformers.LlamaConfig)
        cls.ids, cls.next = ids_of(1), ids_of(3, STEPS)
        cls.all = torch.cat((cls.ids, cls.next), 1)
        cls.folder = tempfile.TemporaryDirectory()
        cls.dump = Path(cls.folder.name) / "dump"
        with capture.capture(cls.model, cls.dump, prompt_len=LENGTH):
            capture.feed(cls.model, cls.ids[0].tolist(), given=[], decode=0, seed=None)
        cls.full = read(cls.model, cls.ids)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def replayed(self, policy, ratio, semantics=None):
        """bool [layers, n_kv, l], by the program of the dump; without semantics under its own default."""
        out = Path(self.folder.name) / "evict"
        subprocess.run([kvreplay.program(), "evict", self.dump, "--out", out, "--policy", policy, "--sigma", str(ratio),
                        *(() if semantics is None else ("--semantics", semantics)), "--force", "--quiet"], check=True)
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

    def test_it_keeps_what_semantics_kvpress_keeps_and_not_the_default(self):
        for policy in ("h2o+joint", "tova"):
            with self.subTest(policy):
                press, paper = kvreplay.press(policy, 0.5), kvreplay.press(policy, 0.5, semantics="paper")
                for each in (press, paper):
                    read(self.model, self.ids, each)
                kept, kept_by_paper = (np.stack([each.kept[layer][0] for layer in range(LAYERS)]) for each in (press, paper))
                np.testing.assert_array_equal(kept, self.replayed(policy, 0.5, "kvpress"))
                default = self.replayed(policy, 0.5)
                np.testing.assert_array_equal(kept_by_paper, default)
                self.assertTrue((kept != default).any())

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
        other = ids_of(2)
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

    def near(self, found, want, tolerance=1e-4):
        self.assertEqual(found.shape, want.shape)
        self.assertLess((found - want).abs().max().item(), tolerance * max(want.abs().max().item(), 1))

    def test_later_steps_attend_to_what_compensation_left(self):
        for attention in ("sdpa", "eager"):
            model = model_of(transformers.LlamaConfig, attention)
            for method in ("fit", "mass", "values", "mean", "keepkv", "d2o", "none"):
                with self.subTest(method, attention=attention):
                    press = kvreplay.press("snapkv", 0.8, window=16, compensate=method)
                    logits = steps(model, read(model, self.ids, press), self.next)[0]
                    self.near(logits, looped(model, self.all, held(press)))
                    plain = steps(model, read(model, self.ids, kvreplay.press("snapkv", 0.8, window=16)), self.next)[0]
                    self.assertEqual((logits - plain).abs().max().item() < 1e-6, method == "none")
                    # Several rows at once, where there is a mask of theirs.
                    self.near(steps(model, read(model, self.ids, press), self.next, 4)[0], logits)

    def test_outputs_are_those_of_the_definition(self):
        """Attention over kept keys and decoded ones with biases and values, in NumPy's float64, from what a layer is called with."""
        called, layer = {}, 1
        module = self.model.model.layers[layer].self_attn
        press = kvreplay.press("h2o+joint", budgets=np.arange(10, 10 + LAYERS * HEADS).reshape(LAYERS, HEADS), compensate="fit")
        cache = read(self.model, self.ids, press)
        hook = module.register_forward_hook(lambda _, __, kwargs, output: called.update(kwargs, output=output[0]), with_kwargs=True)
        steps(self.model, cache, self.next[:, :1])
        hook.remove()
        hidden, (cos, sin) = called["hidden_states"], called["position_embeddings"]
        turn = lambda x: x * cos + torch.cat((-x[..., 8:], x[..., :8]), -1) * sin  # noqa: E731
        q, k, v = (part(hidden).view(1, 1, -1, 16).transpose(1, 2) for part in (module.q_proj, module.k_proj, module.v_proj))
        q, k, v = (x[0, :, 0].detach().double().numpy() for x in (turn(q), turn(k), v))
        outputs = []
        for head, query in enumerate(q):
            g = head // GROUP
            mine, compensation = self.full.layers[layer].keys[0, g].double().numpy(), press.compensations[layer][0].held[g]
            z = np.append(mine[compensation.tokens] @ query * 0.25 + compensation.bias, k[g] @ query * 0.25)
            a = np.exp(z - z.max())
            outputs.append(a / a.sum() @ np.vstack((compensation.values, v[g])))
        want = torch.from_numpy(np.concatenate(outputs)) @ module.o_proj.weight.detach().double().T
        self.near(called["output"][0, 0].double(), want, 1e-5)

    def test_compensation_is_that_of_the_dump(self):
        press = kvreplay.press("h2o+joint", 0.8, compensate="fit")
        read(self.model, self.ids, press)
        for layer in range(LAYERS):
            found = press.compensations[layer][0]
            of_dump = kvreplay.Dump(self.dump)[layer]
            kept = kvreplay.evict(of_dump, policy="h2o+joint", sigma=0.8, semantics="kvpress")
            want = kvreplay.compensate(of_dump, keep=kept)
            self.assertEqual((found.reference, want.reference, found.notes), ("shifted", "shifted", []))
            for one, other in zip(found.held, want.held):
                self.assertEqual(one.tokens.tolist(), other.tokens.tolist())
                np.testing.assert_allclose(one.bias, other.bias, atol=1e-3)
                np.testing.assert_allclose(one.values, other.values, atol=1e-3 * np.abs(other.values).max())
            self.assertEqual(press.kept[layer][0].tobytes(), kept.kept.tobytes())

    def test_what_needs_the_rotation(self):
        # Scores and fits that undo it have it from the model.
        press = kvreplay.press("expected_attention", 0.5)
        read(self.model, self.ids, press)
        self.assertTrue((press.kept[0][0] == self.replayed("expected_attention", 0.5, "kvpress")[0]).all())
        known = _press.rope_of
        try:
            _press.rope_of = lambda *_: None
            press = kvreplay.press("h2o", 0.5, compensate="values")
            read(self.model, self.ids, press)
        finally:
            _press.rope_of = known
        self.assertEqual(press.compensations[0][0].reference, "window")
        self.assertIn("fits look at the last 32 queries", press.compensations[0][0].notes[0])
        module, (cos, sin) = self.model.model.layers[0].self_attn, self.model.model.rotary_emb(torch.zeros(1, 20, 48), torch.arange(20)[None])
        rope = _press.rope_of(module, cos, sin)
        self.assertEqual((rope["style"], len(rope["inv_freq"]), rope["attention_factor"]), ("half", 8, 1.0))
        self.assertIsNone(_press.rope_of(module, cos[:, 1:], sin[:, 1:]))  # a prompt that begins elsewhere

    def test_generate_and_batches(self):
        both = torch.cat((self.ids, ids_of(2)))
        press, cache = kvreplay.press("snapkv", 0.8, window=16, compensate="fit"), transformers.DynamicCache()
        with press(self.model), torch.no_grad():
            out = self.model.generate(both, attention_mask=torch.ones_like(both), past_key_values=cache, do_sample=False, pad_token_id=0,
                                      max_new_tokens=6, min_new_tokens=6, return_dict_in_generate=True, output_logits=True)
        self.assertEqual({layer.keys.shape[2] for layer in cache.layers}, {int(press.kept[0][0, 0].sum()) + 5})
        for one in range(2):
            want = looped(self.model, out.sequences[one][None], held(press, one))  # the first token's logits are the prompt's
            self.near(torch.stack([logits[one] for logits in out.logits[1:]]), want[:-1])

    def test_biases_go_with_the_cache(self):
        plain = steps(self.model, read(self.model, self.ids), self.next)
        cache = read(self.model, self.ids, kvreplay.press("snapkv", 0.8, compensate="fit"))
        copied = copy.deepcopy(cache)
        found = steps(self.model, cache, self.next)
        self.assertTrue(torch.equal(steps(self.model, copied, self.next), found))
        self.assertTrue(torch.equal(steps(self.model, read(self.model, self.ids), self.next), plain))
        half = model_of(transformers.Qwen3Config).to(torch.bfloat16)
        press = kvreplay.press("h2o+joint", 0.5, compensate="fit")
        self.assertTrue(torch.isfinite(steps(half, read(half, self.ids, press), self.next)).all())

    def test_results_in_the_model(self):
        dump, out = Path(self.folder.name) / "steps", Path(self.folder.name) / "results"
        with capture.capture(self.model, dump, prompt_len=LENGTH, decode=STEPS):
            capture.feed(self.model, self.ids[0].tolist(), given=self.next[0].tolist(), decode=STEPS, seed=None)
        results = kvreplay.analyze(dump, out, only=["evict", "budget", "channels"], policy="snapkv[window=16]", sigma=0.8, order="snapkv",
                                   force=True, **{"evict.compensate": "fit,d2o", "channels.ratio": 0.5})
        kept, all_cases = int(0.2 * LENGTH + 0.5), cases_of(results)[0]
        cases = {case.name: case for case in all_cases}
        self.assertEqual(len(cases), len(all_cases))
        for name in (f"snapkv[window=16]-paper-prefill-{kept}", f"snapkv[window=16]-paper-prefill-{kept}-fit",
                     f"snapkv[window=16]-paper-prefill-{kept}-d2o", "snapkv-lu-0.8", "think-0.5"):
            with self.subTest(name):
                press = kvreplay.press(out if name.endswith("fit") else results, case=name)
                logits = steps(self.model, read(self.model, self.ids, press), self.next)[0]
                self.near(logits, looped(self.model, self.all, cases[name].change))
        for layer in range(LAYERS):
            self.assertTrue((kvreplay.press(results, case="snapkv-lu-0.8").case.change(layer).kept == results.kept("snapkv-lu-0.8", layer)).all())
        for says, call in (("case: expected one of", lambda: kvreplay.press(results, case="snapkv-lu")),
                           ("expected a model that reads the prompt that these are of, keys and values of shape [1, 2, 96, 16]",
                            lambda: read(self.model, self.ids[:, 1:], kvreplay.press(results, case="snapkv-lu-0.8"))),
                           ("[1, 2, 96, 16], found [2, 2, 96, 16]",
                            lambda: read(self.model, self.ids.expand(2, -1), kvreplay.press(results, case="snapkv-lu-0.8"))),
                           ("policy: expected text, or results and a case", lambda: kvreplay.press(results))):
            self.refused(says, call)

    def test_a_recipe(self):
        """In the model it is what `evict --recipe` makes of the same prompt's dump, and what kvvalidate.py makes of that."""
        folder = Path(self.folder.name)
        file, dump, out = folder / "recipe.json", folder / "recipe-steps", folder / "recipe"
        with capture.capture(self.model, dump, prompt_len=LENGTH, decode=STEPS):
            capture.feed(self.model, self.ids[0].tolist(), given=self.next[0].tolist(), decode=STEPS, seed=None)
        layers = [{"policy": "snapkv[window=16]", "semantics": "paper", "sigma": [0.5, 0.75],
                   "stored": {"k": "4", "v": "2", "keys": "channel", "turned": [16, 0], "group": 8, "residual": 4}},
                  {"policy": "none", "sigma": [0, 0], "stored": {"k": "fp8", "v": "fp8"}},
                  {"policy": "h2o", "semantics": "kvpress", "sigma": [0, 0.25]}]
        file.write_text(json.dumps({"program": "kvreplay", "kind": "recipe", "schema": 1, "layers": layers}))
        subprocess.run([kvreplay.program(), "evict", dump, "--out", out, "--recipe", file, "--precision", "f64", "--quiet"], check=True)
        (case,), left_out = cases_of(kvreplay.open_results(out))
        self.assertEqual((case.name, left_out), ("recipe~recipe-given-prefill-mixed", {}))
        for press in (kvreplay.press(file), kvreplay.press(kvreplay.open_results(out), case=case.name)):
            logits = steps(self.model, read(self.model, self.ids, press), self.next)[0]
            for layer in range(LAYERS):
                self.assertEqual(press.kept[layer][0].tobytes(), case.change(layer).kept.tobytes())
            self.near(logits, looped(self.model, self.all, case.change))
        batch = kvreplay.press(str(file))
        read(self.model, torch.cat((self.ids, self.ids)), batch)
        self.assertEqual(batch.kept[0].sum(), 2 * (LENGTH // 2 + LENGTH // 4))
        self.refused("expected a model of 2 layers x 2 KV heads, found 3 x 2",
                     lambda: (file.write_text(json.dumps({"kind": "recipe", "schema": 1, "layers": layers[1:]})), read(self.model, self.ids, kvreplay.press(file))))
        self.refused("nowhere.json: ", lambda: kvreplay.press(folder / "nowhere.json"))

    @unittest.skipIf(tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 3), "kvpress' own presses need transformers below 5.3")
    def test_budgets_as_kvpress_reads_them(self):
        """LUKVPress with budget_curves.npy keeps as many tokens of every head as `lu` gives it (and one where that gives none)."""
        dump, out = Path(self.folder.name) / "lu-steps", Path(self.folder.name) / "lu"
        with capture.capture(self.model, dump, prompt_len=LENGTH, decode=STEPS):
            capture.feed(self.model, self.ids[0].tolist(), given=self.next[0].tolist(), decode=STEPS, seed=None)
        results = kvreplay.analyze(dump, out, only="budget", order="keydiff", sigma=0.5, force=True, **{"budget.method": "lu", "budget.floor": 0.05, "budget.semantics": "raw"})
        press = LUKVPress(kvpress.KeyDiffPress(), compression_ratio=0.5, sink=0, window=0)
        press._budget_curves = results.budget_curves().values
        read(self.model, self.ids, press)
        for layer in range(LAYERS):
            kept = np.ones((HEADS, LENGTH), bool)
            kept[tuple(index.numpy() for index in self.model.model.layers[layer].self_attn.masked_key_indices[1:])] = False
            self.assertEqual(kept.tobytes(), results.kept("keydiff-lu-0.5", layer).tobytes())

    def refused(self, says, call):
        with self.assertRaises(kvreplay.InputError) as caught:
            call()
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_compensations_refused(self):
        flash = types.SimpleNamespace(config=types.SimpleNamespace(_attn_implementation="flash_attention_2"), layer_idx=0)
        compensated = lambda: read(self.model, self.ids, kvreplay.press("snapkv", 0.8, compensate="fit"))  # noqa: E731
        for says, call in (("expected an attention that takes biases (eager or sdpa), found flash_attention_2", lambda: set_biases(flash, None, None)),
                           ("expected a batch of 1, as was compensated, found 2", lambda: steps(self.model, compensated(), self.next.expand(2, -1))),
                           ("method: expected some of none", lambda: read(self.model, self.ids, kvreplay.press("h2o", 0.5, compensate="fits"))),
                           ("reference requires compensate", lambda: kvreplay.press("h2o", 0.5, reference="window")),
                           ("reference: repeat is unavailable",
                            lambda: read(self.model, self.ids, kvreplay.press("h2o", 0.5, compensate="fit", reference="repeat")))):
            self.refused(says, call)

    def test_refusals(self):
        self.refused("budgets: expected shape [3, 2], the model's layers and KV heads, found shape [3, 1]",
                     lambda: read(self.model, self.ids, kvreplay.press("h2o", budgets=np.ones((3, 1), int))))
        norms = lambda q, k, v: np.linalg.norm(v, axis=-1)  # noqa: E731
        for says, given in (
                ("policy: unknown policy 'h3o'; did you mean 'h2o'?", {"policy": "h3o"}), ("policy: expected one, found none", {}),
                ("policy: expected one, found 2", {"policy": "h2o,tova"}), ("policy: expected a policy that evicts, found 'quest'", {"policy": "quest"}),
                ("policy: expected text, or results and a case, found int", {"policy": 3}), ("press: unknown option 'windwo'; did you mean 'window'?", {"windwo": 3}),
                ("press: unknown option 'scale'", {"policy": "h2o", "scale": 3.0}), ("compression_ratio: expected", {"policy": "h2o", "compression_ratio": 1.5}),
                ("compression_ratio: expected", {"policy": "h2o", "compression_ratio": "much"}), ("keep: expected", {"policy": "h2o", "keep": "-3"}),
                ("press: expected one of compression_ratio, keep, sigma, budget, budgets, found compression_ratio and keep",
                 {"policy": "h2o", "compression_ratio": 0.5, "keep": 0.2}),
                ("press: expected one of compression_ratio, keep, sigma, budget, budgets, found keep and budgets", {"policy": "h2o", "keep": 3, "budgets": [[1]]}),
                ("budgets: expected tokens [layers, n_kv], whole numbers from 0 on, found int64 of shape [2]", {"policy": "h2o", "budgets": [1, 2]}),
                ("budgets: expected tokens [layers, n_kv], whole numbers from 0 on, found float64", {"policy": "h2o", "budgets": [[0.5]]}),
                ("window: expected a whole number", {"policy": "h2o", "window": 0}), ("semantics: expected", {"policy": "h2o", "semantics": "mine"}),
                ("phase: expected prefill or blockwise:N, found decode", {"policy": "h2o", "phase": "decode"}), ("threads: expected", {"policy": "h2o", "threads": -1}),
                ("score mine: expected a function of (q, k, v), found ndarray", {"score": np.ones((2, 3))}),
                ("score mine: no policy uses it", {"policy": "h2o", "score": norms}), ("score: expected a name of its own, found 'attn'", {"score": {"attn": norms}}),
                ("reference requires compensate", {"policy": "h2o", "reference": "window"}), ("method: expected some of none", {"policy": "h2o", "compensate": "fits"}),
                ("reference: expected", {"policy": "h2o", "compensate": "fit", "reference": "mine"}),
                ("press: expected no compression_ratio beside a recipe, found one", {"policy": "recipe.json", "compression_ratio": 0.5}),
                ("press: expected no window beside results and a case, found one", {"policy": "results", "case": "x", "window": 3})):
            with self.subTest(says):
                self.refused(says, lambda: kvreplay.press(**given))

    def test_a_score_gets_numpy_arrays_of_any_model(self):
        for dtype in (torch.float32, torch.bfloat16):
            model, seen = copy.deepcopy(self.model).to(dtype), []

            def norms(q, k, v):
                seen.append([(type(array), array.dtype, array.shape) for array in (q, k, v)])
                return np.linalg.norm(v, axis=-1)
            full = read(model, self.ids)
            values = [layer.values[0].float().numpy() for layer in full.layers]
            ranked = [np.argsort(-np.linalg.norm(v, axis=-1).astype(float), axis=-1, kind="stable") for v in values]
            for amount, counts in (({"compression_ratio": 0.75}, [24] * 2), ({"keep": "25%"}, [24] * 2), ({"budget": 10}, [10] * 2), ({"sigma": 0.75}, [24] * 2),
                                   ({"budgets": np.array([[5, 9]] * LAYERS)}, [5, 9]), ({"budgets": [[0, 9]] * LAYERS}, [0, 9])):
                with self.subTest(dtype=dtype, **amount):
                    press = kvreplay.press(score=norms, **amount)
                    read(model, self.ids, press)
                    for layer in range(LAYERS):
                        for head, count in enumerate(counts):
                            self.assertEqual(set(np.flatnonzero(press.kept[layer][0, head])), set(ranked[layer][head][:count]))
            shapes = ((HEADS * GROUP, LENGTH, 16), (HEADS, LENGTH, 16), (HEADS, LENGTH, 16))
            self.assertTrue(all(one == [(np.ndarray, np.float32, shape) for shape in shapes] for one in seen))
            again = kvreplay.press(score=norms, budgets=[[0, 9]] * LAYERS)
            self.assertTrue(press == press != again and len({press, again}) == 2)  # each holds what it kept itself
            self.assertEqual(kvreplay.press("snapkv+own", score={"own": norms}, keep=0.5).options["score"], {"own": norms})
            with self.assertRaisesRegex(kvreplay.InputError, r"score mine: expected shape \[2, 96\], found shape \[2\]"):
                read(model, self.ids, kvreplay.press(score=lambda q, k, v: v[:, 0, 0], budgets=np.full((LAYERS, 2), 5)))

    def test_models_in_bfloat16(self):
        model = copy.deepcopy(self.model).to(torch.bfloat16)
        for policy, options in (("h2o+joint", {}), ("snapkv", {"window": 16}), ("keydiff", {}), ("tova", {"compensate": "fit"}), ("snapkv", {"compensate": "mean"})):
            with self.subTest(policy, **options):
                press = kvreplay.press(policy, 0.5, **options)
                cache = read(model, self.ids, press)
                self.assertTrue(all(layer.keys.dtype == layer.values.dtype == torch.bfloat16 for layer in cache.layers))
                slots = 49 if options.get("compensate") == "mean" else 48  # one more for those that are gone
                self.assertEqual([layer.keys.shape[2] for layer in cache.layers], [slots] * LAYERS)
                self.assertTrue(torch.isfinite(steps(model, cache, self.next)).all())


if __name__ == "__main__":
    unittest.main()

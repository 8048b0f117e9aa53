#!/usr/bin/env python3
"""Gradients with respect to the attention's outputs, against finite differences of every kind of model.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_gradients.py [-v] [Class.test]

capture_case.py says what that needs.
"""

import contextlib
import copy
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, MODELS, PROMPT, Case, build, decode, manifest_of, prompt, main

import numpy as np
import torch

from dump_check import as_float64
from kvcapture import capture
from output_gradients import FedAgain, labels_gradient, sampled_labels, write_gradients

ROWS = 5  # of the window
PROJECTIONS = ("o_proj", "dense", "out_proj", "c_proj")


def gradients_of(folder, layer: int) -> dict[str, np.ndarray]:
    paths = (folder / f"layer_{layer:02}").glob("g_*.npy")
    return {path.stem: as_float64(np.load(path)) for path in paths}


@contextlib.contextmanager
def exact():
    """No gradients, and float64 where the models ask for float32 by name (norms, softmax, routers)."""
    with torch.no_grad(), mock.patch.object(torch, "float32", torch.float64):
        yield


class Finite:
    """J of rows first to end - 1 as a function of a change of the attention's outputs: a model in float64 with the
    cache that transformers has, changed in front of the output projection, where only this test reaches in."""

    def __init__(self, model, ids: list[int], first: int, end: int):
        self.model, self.ids, self.first = copy.deepcopy(model).double(), torch.tensor([ids[first:end]]), first
        with exact():
            self.cache = self.model(input_ids=torch.tensor([ids[:first]]), use_cache=True).past_key_values
        self.projections = [
            next(getattr(module, name) for name in PROJECTIONS if hasattr(module, name))
            for module in self.model.modules()
            if hasattr(module, "layer_idx") and any(hasattr(module, name) for name in PROJECTIONS)
        ]

    def logits(self, change: dict[int, np.ndarray]) -> torch.Tensor:
        """[rows, vocabulary], with change[layer] [n_q, rows, d_v] added to the outputs."""

        def added(x):
            return lambda _, args: (args[0] + torch.from_numpy(x).transpose(0, 1).reshape(args[0].shape),)

        hooks = [self.projections[layer].register_forward_pre_hook(added(x)) for layer, x in change.items()]
        with exact():
            logits = self.model(input_ids=self.ids, past_key_values=copy.deepcopy(self.cache), use_cache=True).logits[0]
        for hook in hooks:
            hook.remove()
        return logits

    def likelihood(self, labels: list[int], change: dict[int, np.ndarray]) -> float:
        return float(self.logits(change).log_softmax(-1)[range(len(labels)), labels].sum())

    def derivative(self, labels: list[int], change: dict[int, np.ndarray]) -> float:
        """The change of J by `change`, without what is even in it."""
        minus = {layer: -x for layer, x in change.items()}
        return (self.likelihood(labels, change) - self.likelihood(labels, minus)) / 2


class FiniteDifferences(Case):
    """Of every model that capture knows: J changes by g . change, for a change of 1e-3 of one head's output."""

    def judged(self, name: str) -> None:
        model, random = build(name), np.random.default_rng(11)
        length = 30 if name == "phi 3 (long)" else PROMPT  # the rotation changes at 42
        with capture(model, self.dump, prompt_len=length, decode=DECODE) as captured:
            decode(model, prompt(length))
        write_gradients(model, self.dump, samples=2, rows=f"future,window={ROWS}", nll=True)
        self.judge(self.dump)
        ids, layers = captured.ids, len(captured.layers)
        g = [gradients_of(self.dump, layer) for layer in range(layers)]
        o = [np.load(self.dump / f"layer_{layer:02}" / "o.npy").astype(float) for layer in range(layers)]
        for kind, first, end in (("future", length, length + DECODE), ("window", length - ROWS, length)):
            finite = Finite(model, ids, first, end)
            self.assertEqual(len(finite.projections), layers)
            labels = sampled_labels(finite.logits({}), 2, [0, first])
            whole = {
                layer: 1e-3 * np.abs(x).mean() * random.normal(size=x[:, first:end].shape) for layer, x in enumerate(o)
            }
            for sample in range(2):
                mine = [part[f"g_{kind}"][:, sample] for part in g]
                for layer in range(layers):
                    head, row = random.integers(len(o[layer])), random.integers(end - first)
                    at, change = mine[layer][head, row], np.zeros_like(whole[layer])
                    direction = at / np.linalg.norm(at) + random.normal(size=at.shape) / np.sqrt(at.size)
                    step = 1e-3 * np.linalg.norm(o[layer][head, first + row]) / np.linalg.norm(direction)
                    change[head, row] = step * direction
                    found = finite.derivative(labels[sample], {layer: change})
                    with self.subTest(name, kind=kind, layer=layer, head=head, row=row):
                        self.assertLess(abs(found / (at @ change[head, row]) - 1), 0.01)
                with self.subTest(name, kind=kind, what="all of all layers at once"):
                    found = finite.derivative(labels[sample], whole)
                    expected = sum((mine[layer] * whole[layer]).sum() for layer in range(layers))
                    size = np.sqrt(sum(((mine[layer] * whole[layer]) ** 2).sum() for layer in range(layers)))
                    self.assertLess(abs(found - expected), 0.01 * size)
            if kind == "future":
                found = finite.derivative(ids[first + 1 :], whole)  # the last row's follower is not known
                expected = -sum((part["g_nll"] * whole[layer]).sum() for layer, part in enumerate(g))
                size = np.sqrt(sum(((part["g_nll"] * whole[layer]) ** 2).sum() for layer, part in enumerate(g)))
                self.assertLess(abs(found - expected), 0.01 * size)
                self.assertFalse(any(part["g_nll"][:, -1].any() for part in g))
                self.assertTrue(all(part["g_nll"][:, -2].any(-1).all() for part in g))


for number, model_name in enumerate(MODELS):
    setattr(
        FiniteDifferences,
        f"test_{number:02}_{''.join(c for c in model_name if c.isalnum())}",
        lambda self, model_name=model_name: self.judged(model_name),
    )


class Laws(Case):
    def test_a_row_depends_on_what_is_not_behind_it(self):
        model, ids = build("gemma 3"), prompt(PROMPT + 8)[0].tolist()
        again = FedAgain(model, "float32", [0, 1, 3])
        again.read(ids[:PROMPT])
        logits, outputs = again.feed(ids[PROMPT:], PROMPT)
        for row in range(8):
            seed = torch.zeros_like(logits)
            seed[row] = torch.randn(97, generator=torch.Generator().manual_seed(row))
            for g in torch.autograd.grad(logits, outputs, seed, retain_graph=True):
                self.assertTrue((g[0, : row + 1].abs().amax(-1) > 0)[-1].all())
                self.assertTrue((g[0, row + 1 :] == 0).all())
            first = torch.autograd.grad(logits, outputs[:1], seed, retain_graph=True)[0][0]
            self.assertTrue((first[: row + 1] != 0).any(-1).all())  # through the keys and values of the layers above
        self.assertTrue(all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters()))

    def test_labels_are_drawn_from_the_predictions(self):
        logits = torch.tensor([[0.0, 1.0, 2.0, -30.0], [5.0, 5.0, -9.0, 5.0]])
        labels = sampled_labels(logits, 4000, [3, 7])
        for row, expected in enumerate(logits.double().softmax(-1).numpy()):
            found = np.bincount(labels[:, row], minlength=4) / 4000
            self.assertLess(np.abs(found - expected).max(), 4 * 0.5 / np.sqrt(4000))
        self.assertTrue(np.array_equal(labels[:10], sampled_labels(logits, 10, [3, 7])))
        self.assertFalse(np.array_equal(labels[:10], sampled_labels(logits, 10, [4, 7])))
        self.assertEqual(sampled_labels(logits, 0, [3, 7]).shape, (0, 2))

    def test_a_label_that_is_certain_has_no_gradient_and_the_mean_over_all_labels_is_none(self):
        chances = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.2, 0.3]], dtype=torch.float64)
        self.assertTrue((labels_gradient(chances, [1]) == 0).all())
        mean = sum(p * labels_gradient(chances, [1, y])[1] for y, p in enumerate(chances[1]))
        self.assertLess(mean.abs().max(), 1e-15)

    def test_half_the_mean_square_is_the_divergence(self):
        """What the samples are for: 1/2 mean_s (g_s . D)^2 is the KL divergence that a small change D costs."""
        model = build("llama")
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE) as captured:
            decode(model, prompt())
        write_gradients(model, self.dump, samples=600)
        finite = Finite(model, captured.ids, PROMPT, PROMPT + DECODE)
        random, p = np.random.default_rng(2), finite.logits({}).log_softmax(-1)
        for layer in range(3):
            g = gradients_of(self.dump, layer)["g_future"]
            change = 0.02 * random.normal(size=g[:, 0].shape)
            predicted = 0.5 * (np.einsum("hsrc,hrc->s", g, change) ** 2).mean()
            found = float((p.exp() * (p - finite.logits({layer: change}).log_softmax(-1))).sum())
            self.assertLess(abs(predicted / found - 1), 4 * np.sqrt(2 / 600), layer)
        self.assertEqual(manifest_of(self.dump)["gradients"], {"samples": 600, "labels": "model", "seed": 0})


if __name__ == "__main__":
    main()

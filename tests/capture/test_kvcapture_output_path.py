#!/usr/bin/env python3
"""The way from the heads' outputs to the residual stream in kvcapture's dumps: wo, gates, multipliers, or why they are absent.

  python3 tests/capture/test_kvcapture_output_path.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import re

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, Case, arrays, build, decode, manifest_of, normed, prompt, said, main

import numpy as np
import torch

import kvcapture
from kvcapture import capture
from model_attention import residual_block


class OutputPath(Case):
    def taken(self, name, layers=None, **changes):
        """A capture; by the dump's layer, what the attention returned [T, d_model] and what its block was called with."""
        model, returned, streams, hooks = build(name, **changes), {}, {}, []
        with torch.no_grad():  # else a norm's weights are ones
            for key, x in model.named_parameters():
                if x.dim() == 1 and "norm" in key:
                    x.mul_(1 + 0.5 * torch.rand(x.shape, generator=torch.Generator().manual_seed(1)))
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, layers=layers, force=True) as running:
            for at, layer in enumerate(running.layers.values()):
                def keep(_, args, output, at=at):
                    returned.setdefault(at, []).append((output[0] if isinstance(output, tuple) else output)[0].detach().double().numpy())

                def enter(_, args, streams=streams, at=at):
                    streams.setdefault(at, []).append(args[0].detach().double().numpy())

                hooks.append(layer.module.register_forward_hook(keep))
                hooks.append(residual_block(model, layer.module).register_forward_pre_hook(enter))
            decode(model, prompt())
        for hook in hooks:
            hook.remove()
        self.judge(self.dump)
        return ({at: np.concatenate([p.reshape(-1, p.shape[-1]) for p in parts]) for at, parts in found.items()} for found in (returned, streams))

    def follows(self, name, layers=None, **changes):
        """Sum_h (o_h gate_h) wo_h, or that of normed outputs, is what every layer's attention returned."""
        returned, _ = self.taken(name, layers, **changes)
        manifest = manifest_of(self.dump)
        self.assertNotIn("wo_note", manifest)
        for layer, expected in returned.items():
            x = arrays(self.dump, layer)
            found = np.einsum("htd,hdm->tm", normed(manifest, x["o"]) * x.get("gate", 1.0), x["wo"])
            self.assertLess(np.linalg.norm(found - expected), 1e-5 * np.linalg.norm(expected), (name, layer))
        return manifest, arrays(self.dump, 0)

    def test_plain_projections(self):
        for name in ("llama", "qwen 3", "gemma 2", "cohere (interleaved)", "deepseek 3 (latent)", "modernbert decoder"):
            with self.subTest(name):
                self.assertNotIn("gate", self.follows(name)[1])

    def test_gates(self):
        for name, layers in (("qwen 3 next (gated)", [1, 2]), ("qwen 3.5 (gated)", [1, 2]), ("afmoe (gated)", None)):
            with self.subTest(name):
                _, first = self.follows(name, layers)
                self.assertEqual(first["gate"].shape, first["o"].shape)
                self.assertTrue((0 <= first["gate"]).all() and (first["gate"] <= 1).all())
                self.assertIn("gated", said(kvcapture.check, self.dump)[1])

    def test_a_gate_of_the_last_queries_only(self):
        model = build("afmoe (gated)")
        for folder, window in ((self.dump, 5), (self.folder / "all", None)):
            with capture(model, folder, prompt_len=PROMPT, decode=DECODE, window=window):
                decode(model, prompt())
        some, all_rows = arrays(self.dump, 1)["gate"], arrays(self.folder / "all", 1)["gate"]
        np.testing.assert_array_equal(some, all_rows[:, PROMPT - 5:])

    def test_a_gated_model_goes_on_as_it_would(self):
        for name in ("qwen 3 next (gated)", "afmoe (gated)"):
            model, ids = build(name), prompt()
            with torch.no_grad():
                plain = model(ids).logits
                with capture(model, self.dump, prompt_len=PROMPT, layers=[1, 2], force=True):
                    self.assertTrue(torch.equal(plain, model(ids).logits), name)

    def test_estimates_and_replaced_dumps(self):
        (self.folder / "ids.json").write_text(str(prompt()[0].tolist()))
        for name, layers in (("qwen 3 next (gated)", "1,2"), ("afmoe (gated)", "0-2"), ("gemma 2", "1"), ("olmo 2 (post-norm)", "0-2"),
                             ("granite", "0-2"), ("bitnet (norms its heads)", "1")):
            with self.subTest(name):
                build(name).save_pretrained(self.folder / name)
                command = ["--model", str(self.folder / name), "--ids", str(self.folder / "ids.json"), "--decode", "3", "--layers", layers]
                total = int(re.search(r"total +([\d,]+) bytes", said(kvcapture.main, [*command, "--estimate"])[1])[1].replace(",", ""))
                status, text = said(kvcapture.main, [*command, "--out", str(self.dump), "--force"])  # of the one before
                self.assertEqual(status, 0, text)
                self.assertEqual(total, sum(path.stat().st_size for path in self.dump.glob("*/*.npy")))

    def test_a_norm_before_the_projection(self):
        for eps in (1e-5, 0.1):
            manifest, first = self.follows("bitnet (norms its heads)", rms_norm_eps=eps)
            self.assertEqual(manifest["output_norm"], {"kind": "rms", "eps": eps})
            self.assertNotIn("gate", first)
            self.assertIn("residual_norm", first)
            self.assertTrue(said(kvcapture.check, self.dump)[0])

    def test_a_norm_in_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            model = build("bitnet (norms its heads)", dtype)
            with capture(model, self.dump, prompt_len=PROMPT, force=True):
                decode(model, prompt(), 0)
            self.assertEqual(manifest_of(self.dump)["output_norm"], {"kind": "rms", "eps": 1e-5}, dtype)

    def test_norms_of_other_kinds(self):
        """Of root mean squares, with weights as Gemma has them or none; others are no norm that a dump has."""
        class Rms(torch.nn.Module):
            def __init__(self, eps=1e-3, exponent=0.5, offset=1.0):
                super().__init__()
                self.eps, self.exponent, self.offset = eps, exponent, offset
                self.weight = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 64))

            def forward(self, x):
                return x * (x.square().mean(-1, keepdim=True) + self.eps) ** -self.exponent * (self.offset + self.weight)

        class Heads(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = torch.nn.RMSNorm(16, eps=1e-3)

            def forward(self, x):
                return self.norm(x.unflatten(-1, (4, 16))).flatten(-2)

        class Wrong(Rms):
            def forward(self, x):
                return super().forward(x) + 0.1 * x

        class Unsaid(torch.nn.Module):
            def forward(self, x):
                return torch.nn.functional.rms_norm(x, (64,), eps=1e-3)

        class Gated(Rms):
            def forward(self, x, gate):
                return super().forward(x) * gate

        class Asked(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = Gated()

            def forward(self, x):
                return self.norm(x, 1.0)

        float32 = torch.finfo(torch.float32).eps
        for make, eps in ((Rms, 1e-3), (lambda: Rms(offset=0.0), 1e-3), (lambda: torch.nn.RMSNorm(64, eps=0.5), 0.5),
                          (lambda: torch.nn.RMSNorm(64), float32), (lambda: torch.nn.RMSNorm(64, 1e-6, False), 1e-6),
                          (lambda: Rms(exponent=0.4), None), (lambda: torch.nn.LayerNorm(64), None), (Heads, None), (Wrong, None),
                          (Unsaid, None), (Asked, None), (lambda: Rms().bfloat16(), 1e-3),
                          (lambda: torch.nn.LayerNorm(64).bfloat16(), None), (lambda: Heads().bfloat16(), None)):
            norm = make()
            model = build("bitnet (norms its heads)", next((x.dtype for x in norm.parameters()), torch.float32))
            for layer in model.model.layers:
                layer.self_attn.attn_sub_norm = norm
            with capture(model, self.dump, prompt_len=PROMPT, force=True):
                decode(model, prompt(), 0)
            self.judge(self.dump)
            manifest = manifest_of(self.dump)
            self.assertEqual(manifest.get("output_norm"), eps and {"kind": "rms", "eps": eps})
            self.assertEqual("wo" in arrays(self.dump, 0), eps is not None)
            note = "no wo: layer 0 (norms|changes) its heads' outputs .self_attn.attn_sub_norm"
            self.assertRegex(manifest.get("wo_note", ""), "^$" if eps else note)

    def test_layers_of_several_norms(self):
        for change, found in ((lambda norm: setattr(norm, "variance_epsilon", 1e-3), "1e-05 and 0.001"),
                              (lambda norm: norm.register_forward_hook(lambda _, args, y: args[0]), "1e-05 and None")):
            model = build("bitnet (norms its heads)")
            change(model.model.layers[1].self_attn.attn_sub_norm)
            with capture(model, self.dump, prompt_len=PROMPT, force=True):
                decode(model, prompt(), 0)
            self.judge(self.dump)
            manifest = manifest_of(self.dump)
            self.assertEqual(manifest["wo_note"], f"no wo: layers 0 and 1 do not norm their heads' outputs alike (eps {found})")
            self.assertNotIn("output_norm", manifest)
            self.assertNotIn("wo", arrays(self.dump, 0))

    def test_a_norm_that_changes_behind_the_probe(self):
        model = build("bitnet (norms its heads)")
        with capture(model, self.dump, prompt_len=PROMPT):
            model.model.layers[2].self_attn.attn_sub_norm.variance_epsilon = 10.0
            decode(model, prompt(), 0)
        manifest = manifest_of(self.dump)
        self.assertEqual(manifest["wo_note"], "no wo: layer 2 changes its heads' outputs before it projects them")
        self.assertNotIn("output_norm", manifest)

    def altered(self, change):
        """A Llama whose projection of layer 1 is altered; its wo_note."""
        model = build("llama")
        change(model.model.layers[1].self_attn)
        with capture(model, self.dump, prompt_len=PROMPT, force=True):
            decode(model, prompt(), 0)
        self.judge(self.dump)
        self.assertFalse(list(self.dump.glob("layer_*/wo.npy")))
        return manifest_of(self.dump)["wo_note"]

    def test_a_norm_of_outputs_that_are_normed_already(self):
        def normed(attention):
            attention.v_proj.register_forward_hook(lambda _, args, v: v / v.square().mean(-1, keepdim=True).sqrt())
            attention.o_proj.register_forward_pre_hook(lambda _, args: (args[0] / args[0].square().mean(-1, keepdim=True).sqrt(),))

        self.assertRegex(self.altered(normed), "^no wo: layer 1 changes its heads' outputs before o_proj$")

    def test_other_ways_to_the_projection(self):
        def tanh(attention):
            attention.o_proj.register_forward_pre_hook(lambda _, args: (torch.tanh(args[0]),))

        def adapter(attention):
            more = torch.nn.Linear(64, 32, bias=False)
            attention.o_proj.register_forward_hook(lambda _, args, output: output + more(args[0]))

        def scaled(attention):
            attention.register_forward_hook(lambda _, args, output: (2 * output[0], *output[1:]))

        self.assertRegex(self.altered(tanh), "^no wo: layer 1 changes its heads' outputs before o_proj$")
        self.assertRegex(self.altered(adapter), "^no wo: o_proj of layer 1 does more than multiply with its weight$")
        self.assertRegex(self.altered(scaled), "^no wo: layer 1 changes what o_proj makes of its heads' outputs$")

    def test_what_the_residual_stream_is_added(self):
        """x + m a is what the norm behind the attention is given: m where it is not 1."""
        for name, m, norm in (("llama", None, "post_attention_layernorm"), ("granite", 0.22, "post_attention_layernorm"),
                              ("falcon h1 (two branches)", 0.7, None), ("granite hybrid", 0.22, "post_attention_layernorm")):
            with self.subTest(name):
                manifest, first = self.follows(name, [1, 2] if name == "granite hybrid" else None)
                self.assertEqual(manifest.get("output_multiplier"), m)
                self.assertNotIn("residual_note", manifest)
                self.assertIn("residual_norm", first)

    def test_parallel_blocks(self):
        for name in ("cohere (interleaved)", "phi (partial)", "gpt neox (parallel)"):
            _, streams = self.taken(name)
            manifest = manifest_of(self.dump)
            self.assertFalse({"output_multiplier", "residual_note"} & set(manifest), name)
            for layer, x in streams.items():
                np.testing.assert_allclose(arrays(self.dump, layer)["residual_norm"], np.linalg.norm(x, axis=-1), rtol=1e-5)

    def test_a_multiplier_for_each_layer(self):
        model = build("granite")
        for layer, m in zip(model.model.layers, (0.5, 1.0, 0.123456)):
            layer.residual_multiplier = m
        with capture(model, self.dump, prompt_len=PROMPT):
            decode(model, prompt(), 0)
        np.testing.assert_allclose(manifest_of(self.dump)["output_multiplier"], [0.5, 1.0, 0.123456], rtol=2e-5)

    def test_a_multiplier_in_sixteen_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            for name, m in (("granite", 0.22), ("llama", None), ("gemma 3", None)):
                model = build(name, dtype)
                with capture(model, self.dump, prompt_len=PROMPT, force=True):
                    decode(model, prompt(), 0)
                manifest = manifest_of(self.dump)
                self.assertEqual(manifest.get("output_multiplier"), m, (name, dtype))
                self.assertEqual("residual_note" in manifest, name == "gemma 3", (name, dtype))

    def test_a_norm_that_leaves_little(self):
        """In 16 bits it is near nothing beside the stream, and still no number."""
        for dtype in (torch.bfloat16, torch.float32):
            for left in (0.5, 0.03, 0.002):
                model = build("gemma 3", dtype)
                with torch.no_grad():
                    for layer in model.model.layers:
                        layer.post_attention_layernorm.weight.fill_(left - 1)
                with capture(model, self.dump, prompt_len=PROMPT, force=True):
                    decode(model, prompt(), 0)
                self.assertIn("residual_note", manifest_of(self.dump), (dtype, left))

    def test_norms_between_attention_and_stream(self):
        for name in ("gemma 2", "gemma 3", "olmo 2 (post-norm)", "glm 4 (post-norm)"):
            with self.subTest(name):
                manifest, first = self.follows(name)
                self.assertRegex(manifest["residual_note"], "^no residual_norm: layer 0 norms its attention's output .*before it is added")
                self.assertNotIn("residual_norm", first)
                self.assertIn("norms its attention's output", said(kvcapture.check, self.dump)[1])

    def test_a_stream_that_is_not_what_the_block_is_called_with(self):
        for name, layers in (("minimax", [0, 2]), ("gemma 3n (shared caches)", None)):
            self.follows(name, layers)
            self.assertRegex(manifest_of(self.dump)["residual_note"], "^no residual_norm: layer 0 ")


if __name__ == "__main__":
    main()

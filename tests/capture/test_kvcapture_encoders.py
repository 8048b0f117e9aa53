#!/usr/bin/env python3
"""kvcapture on encoders: rows that see what is ahead, as far as a two-sided window goes.

  python3 tests/capture/test_kvcapture_encoders.py [-v] [Class.test]

capture_case.py says what that needs.
"""
# First: skips where numpy, torch or transformers is missing.
from capture_case import PROMPT, SMALL, Case, arrays, build, manifest_of, prompt, said, main

import numpy as np
import torch
import transformers

import kvcapture
from kvcapture import capture

SIZES = {**SMALL, "hidden_size": 64, "initializer_range": 0.1}
KINDS = {
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {"local_attention": 8, "global_attn_every_n_layers": 2}, [None, 5, None]),
    "embedding gemma": ("Gemma3TextModel", "Gemma3TextConfig", {"sliding_window": 16, "use_bidirectional_attention": True,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, [9, None, 9]),
    "bert": ("BertModel", "BertConfig", {}, None),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {}, None),
}


def encoder(kind, implementation="sdpa"):
    model_class, config_class, own, _ = KINDS[kind]
    torch.manual_seed(7)
    config = getattr(transformers, config_class)(**{**SIZES, **own}, attn_implementation=implementation)
    return getattr(transformers, model_class)(config).eval()


class Encoders(Case):
    def test_every_kind(self):
        for kind, (*_, windows) in KINDS.items():
            for implementation in ("sdpa", "eager"):
                with self.subTest(kind, implementation=implementation):
                    with capture(encoder(kind, implementation), self.dump, prompt_len=PROMPT, force=True) as running, torch.no_grad():
                        running.model(input_ids=prompt())
                    self.assertTrue(said(kvcapture.check, self.dump)[0])
                    manifest = manifest_of(self.dump)
                    self.assertEqual((manifest["causal"], manifest["sliding_window"]), (False, windows))
                    self.assertEqual(manifest.get("sliding_window_two_sided"), True if windows else None)
                    self.assertNotIn("wo_note", manifest)
                    if windows:
                        self.wrong_without("sliding_window_two_sided")

    def test_rows_see_just_the_window(self):
        """Output by output, from the files."""
        with capture(encoder("modernbert"), self.dump, prompt_len=PROMPT) as running, torch.no_grad():
            running.model(input_ids=prompt())
        x, distance = arrays(self.dump, 1), np.abs(np.arange(PROMPT)[:, None] - np.arange(PROMPT))
        for head in range(len(x["q"])):
            z = np.where(distance <= 4, x["q"][head].astype(float) @ x["k"][head].T / 4, -np.inf)  # half of local_attention
            a = np.exp(z - z.max(-1, keepdims=True))
            np.testing.assert_allclose(a / a.sum(-1, keepdims=True) @ x["v"][head], x["o"][head], rtol=1e-4, atol=1e-5)

    def test_as_a_command(self):
        (self.folder / "ids.json").write_text(str(prompt()[0].tolist()), encoding="utf-8-sig")
        for kind in KINDS:
            with self.subTest(kind):
                encoder(kind).save_pretrained(self.folder / kind)
                command = ["--model", str(self.folder / kind), "--ids", str(self.folder / "ids.json"), "--out", str(self.dump), "--force"]
                status, text = said(kvcapture.main, [*command, "--decode", "0"])
                self.assertEqual(status, 0, text)
                self.assertFalse(manifest_of(self.dump)["causal"])
                status, text = said(kvcapture.main, [*command, "--decode", "3"])
                self.assertEqual((status, text), (2, "kvcapture: decode: expected no decoding steps of an encoder (--decode 0), found 3\n"))

    def test_padding_and_pieces_are_refused(self):
        model, ids = encoder("modernbert"), prompt()
        padded = torch.ones_like(ids)
        padded[0, -3:] = 0

        def run(**fed):
            with capture(model, self.dump, prompt_len=PROMPT, force=True), torch.no_grad():
                model(**fed)

        self.refused("attention mask at position", run, input_ids=ids, attention_mask=padded)
        self.refused("an encoder: expected 40 positions in one pass, found 30", run, input_ids=ids[:, :30])

    def test_a_causal_mask_of_a_model_that_calls_itself_an_encoder(self):
        model = build("llama, eager")
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
        with capture(model, self.dump, prompt_len=PROMPT), torch.no_grad():
            model(prompt())
        self.judge(self.dump)
        self.assertTrue(manifest_of(self.dump)["causal"])


if __name__ == "__main__":
    main()

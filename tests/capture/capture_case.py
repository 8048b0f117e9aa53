"""What the tests of data/capture/kvcapture.py share: small random models of every kind, captured and judged.

Needs torch and transformers (without: the test that asks is skipped, exit status 77). KVREPLAY=path/to/kvreplay also has
`kvreplay verify` judge every dump; KVREPLAY_MODEL=path/to/pystdlib-lm compares with the sample dump.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    import torch
    import transformers
except ImportError as missing:
    if not Path(sys.argv[0]).name.startswith("test_"):  # unittest or pytest looks for tests
        raise unittest.SkipTest(str(missing))
    print(f"SKIPPED, nothing was tested: {missing}", file=sys.stderr)
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data" / "capture"))
import kvcapture  # noqa: E402
import packages  # noqa: E402
from kvcapture import CaptureError  # noqa: E402

packages.TESTED = packages.TESTED[0], max(packages.TESTED[1], transformers.__version__, key=packages.release)  # no note in what is printed
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

KVREPLAY, MODEL = os.environ.get("KVREPLAY"), os.environ.get("KVREPLAY_MODEL")
SAMPLE = ROOT / "data" / "samples" / "pystdlib-lm"
PROMPT, DECODE = 40, 6  # crosses the windows below

# Weights of 0.3: logits of several units, so that a wrong scale, mask, cap or sink shows in o.
SMALL = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=256, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
MLA = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=4, n_group=1,
           topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, num_key_value_heads=4, head_dim=8)
LINEAR = dict(layer_types=["linear_attention", "full_attention", "full_attention"], linear_num_value_heads=2, linear_num_key_heads=2,
              linear_key_head_dim=8, linear_value_head_dim=8)
EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
MAMBA = dict(hidden_size=64, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1)
PHI3 = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
if transformers.__version__ >= "5":
    ROPE, PHI3 = "rope_parameters", {**PHI3, "rope_type": "longrope", "rope_theta": 10000.0, "factor": 6.0}
else:
    ROPE, PHI3 = "rope_scaling", {**PHI3, "type": "longrope"}
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}, "sdpa"),
    "llama, eager": ("LlamaForCausalLM", "LlamaConfig", {}, "eager"),
    "llama 3 rope": ("LlamaForCausalLM", "LlamaConfig", {ROPE: LLAMA3}, "sdpa"),
    "qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", {}, "sdpa"),
    "qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", {}, "eager"),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 7}, "sdpa"),
    "gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {"sliding_window": 9, "attn_logit_softcapping": 3.0,
                                                           "query_pre_attn_scalar": 24}, "eager"),
    "gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2,
                                                          "num_hidden_layers": 4}, "sdpa"),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", {"sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2}, "eager"),
    "phi 3 (long)": ("Phi3ForCausalLM", "Phi3Config", {"hidden_size": 64, ROPE: PHI3, "original_max_position_embeddings": 42}, "sdpa"),
    "phi (partial)": ("PhiForCausalLM", "PhiConfig", {"partial_rotary_factor": 0.5, "hidden_size": 64}, "sdpa"),
    "cohere (interleaved)": ("CohereForCausalLM", "CohereConfig", {"hidden_size": 64}, "eager"),
    "glm (partial, interleaved)": ("GlmForCausalLM", "GlmConfig", {"partial_rotary_factor": 0.5}, "sdpa"),
    "smollm 3 (a layer does not turn)": ("SmolLM3ForCausalLM", "SmolLM3Config", {"no_rope_layer_interval": 2}, "sdpa"),
    "gpt 2": ("GPT2LMHeadModel", "GPT2Config", {"hidden_size": 64}, "eager"),
    "deepseek 3 (latent)": ("DeepseekV3ForCausalLM", "DeepseekV3Config", MLA, "sdpa"),
}
# What stands before a projection, behind it or beside the attention.
OTHERS = {
    "granite": ("GraniteForCausalLM", "GraniteConfig", {"residual_multiplier": 0.22}, "sdpa"),
    "olmo 2 (post-norm)": ("Olmo2ForCausalLM", "Olmo2Config", {}, "sdpa"),
    "glm 4 (post-norm)": ("Glm4ForCausalLM", "Glm4Config", {}, "sdpa"),
    "gpt neox (parallel)": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}, "sdpa"),
    "bitnet (norms its heads)": ("BitNetForCausalLM", "BitNetConfig", {"hidden_size": 64}, "sdpa"),
    "modernbert decoder": ("ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", {"hidden_size": 64, "local_attention": 8}, "sdpa"),
    "qwen 3 next (gated)": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**LINEAR, **EXPERTS, "decoder_sparse_step": 1}, "sdpa"),
    "qwen 3.5 (gated)": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", LINEAR, "sdpa"),
    "afmoe (gated)": ("AfmoeForCausalLM", "AfmoeConfig", {**EXPERTS, "layer_types": ["full_attention"] * 3, "num_shared_experts": 0,
                                                          "num_dense_layers": 3}, "sdpa"),
    "minimax": ("MiniMaxForCausalLM", "MiniMaxConfig", {"layer_types": ["full_attention", "linear_attention", "full_attention"],
                                                                "block_size": 16, "num_local_experts": 4}, "sdpa"),
    "lfm 2 (convolutions)": ("Lfm2ForCausalLM", "Lfm2Config", {"hidden_size": 64, "full_attn_idxs": [0, 2]}, "sdpa"),
    "jamba": ("JambaForCausalLM", "JambaConfig", {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4,
                                                  "mamba_dt_rank": 4, "hidden_size": 64, "num_experts": 2}, "sdpa"),
    "bamba": ("BambaForCausalLM", "BambaConfig", {**MAMBA, "attn_layer_indices": [1, 2]}, "sdpa"),
    "falcon h1 (two branches)": ("FalconH1ForCausalLM", "FalconH1Config", {**MAMBA, "mamba_d_ssm": 128, "attention_out_multiplier": 0.7,
                                                                           "ssm_out_multiplier": 0.3}, "sdpa"),
    "granite hybrid": ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", {**MAMBA, **EXPERTS, "residual_multiplier": 0.22,
                       "layer_types": ["mamba", "attention", "attention"], "shared_intermediate_size": 32}, "sdpa"),
    "gemma 3n (shared caches)": ("Gemma3nForCausalLM", "Gemma3nTextConfig", {
        "num_hidden_layers": 4, "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 9,
        "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4, "initializer_range": 0.1}, "sdpa"),
}


def build(name: str, dtype: torch.dtype = torch.float32, **changes):
    """A random model, the same each time."""
    model_class, config_class, own, attention = {**MODELS, **OTHERS}[name]
    if not hasattr(transformers, model_class):
        raise unittest.SkipTest(f"this transformers has no {model_class}")
    config = getattr(transformers, config_class)(**{**SMALL, **own, **changes}, attn_implementation=attention)
    config._experts_implementation = "eager"  # the grouped products have no float64
    torch.manual_seed(7)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("sinks"):
                parameter.normal_(0, 1.5)
    return model.to(dtype)


def prompt(length: int = PROMPT) -> torch.Tensor:
    return torch.randint(3, 97, (1, length), generator=torch.Generator().manual_seed(3))


def decode(model, ids: torch.Tensor, steps: int = DECODE) -> None:
    kvcapture.feed(model, ids[0].tolist(), [], steps, None)


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def arrays(folder: Path, layer: int) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in (folder / f"layer_{layer:02}").glob("*.npy")}


def normed(manifest: dict, o: np.ndarray) -> np.ndarray:
    """o [n_q, rows, d_v] in float64, divided as the manifest's `output_norm` says."""
    o, norm = o.astype(float), manifest.get("output_norm")
    return o / np.sqrt((o ** 2).mean((0, 2), keepdims=True) + norm["eps"]) if norm else o


def files(folder: Path, pattern: str = "layer_*/g_*.npy") -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


def said(function, *arguments) -> tuple[object, str]:
    """What a function returned, and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        result = function(*arguments)
    return result, out.getvalue()


def turned(k: np.ndarray, rope: dict, layer: int) -> np.ndarray:
    """k [n_kv, T, d] before its rotation, rotated as DUMP-FORMAT.md reads the manifest's `rope`."""
    r, T = rope.get("rotary_dim", k.shape[2]), k.shape[1]
    if "theta" in rope:
        frequency = np.array([rope["theta"] ** (-2 * c / r) for c in range(r // 2)])
    else:
        frequency = np.array(rope["inv_freq"])
        frequency = frequency[layer] if frequency.ndim == 2 else frequency
    result = k.copy()
    for c in range(r // 2):
        a, b = (c, c + r // 2) if rope["style"] == "half" else (2 * c, 2 * c + 1)
        angle, factor = np.arange(T) * frequency[c], rope.get("attention_factor", 1.0)
        cos, sin = factor * np.cos(angle), factor * np.sin(angle)
        result[:, :, a], result[:, :, b] = k[:, :, a] * cos - k[:, :, b] * sin, k[:, :, b] * cos + k[:, :, a] * sin
    return result


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvcapture-"))
        self.dump = self.folder / "dump"
        self.addCleanup(lambda: shutil.rmtree(self.folder))

    def judge(self, folder: Path) -> None:
        """--check and, where there is one, kvreplay find nothing wrong."""
        good, text = said(kvcapture.check, folder)
        self.assertTrue(good, text)
        if KVREPLAY:
            done = subprocess.run([KVREPLAY, "verify", folder, "--backend", "cpu"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"(?m)^replay .* ok ")

    def refused(self, pattern: str, function, *arguments, **named) -> None:
        with self.assertRaises(CaptureError) as caught:
            function(*arguments, **named)
        line = str(caught.exception)
        self.assertRegex(line, pattern)
        self.assertNotIn("\n", line)
        self.assertRegex(line, "expected .*, found ")

    def wrong_without(self, key: str) -> None:
        """The manifest's key matters: without it o no longer follows."""
        manifest = manifest_of(self.dump)
        self.assertIsNotNone(manifest[key])
        changed = {**manifest, key: None}
        (self.dump / "manifest.json").write_text(json.dumps(changed))
        self.assertFalse(said(kvcapture.check, self.dump)[0], key)
        (self.dump / "manifest.json").write_text(json.dumps(manifest))


def main() -> None:
    if not KVREPLAY:
        print("KVREPLAY is not set: kvreplay does not judge the dumps", file=sys.stderr)
    unittest.main()

#!/usr/bin/env python3
"""Does kvreplay keep the tokens that kvpress leaves in a model's cache, where the model runs through `generate`?

  generated.py --gguf FILE --prompt TEXT [--prompt-len 2000] [--dtype float32|float16|bfloat16] [--kvreplay PATH]

The model reads the prompt once, captured as a dump (data/capture/kvcapture.py), of which `kvreplay evict --semantics
kvpress` says what every KV head keeps. It then reads it once more with each press at each ratio, through `generate`,
which goes on for some steps; afterwards the keys in every layer's cache say which tokens the press has left. In float32
a token that only one side keeps is a tie where the press' own score of it, in float64 on the dump, lies within rounding
of the cut; anything else is a difference, and the exit status 1. In float16 and bfloat16 the presses round their
scores, so that many of them are equal: there what differs is only counted.

Needs `pip install -r tests/peers/requirements.txt -r data/capture/requirements.txt`, and a build of kvreplay.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "data" / "capture"), str(ROOT / "tests" / "golden")]
try:
    import numpy as np
    import presses
    import torch
    import transformers
except ImportError as missing:
    print(f"generated: expected the packages of tests/peers/requirements.txt, found: {missing}", file=sys.stderr)
    sys.exit(2)
import kvcapture  # noqa: E402
from agreement import press_name, run_kvreplay  # noqa: E402
from golden_dump import layer_folders, load_layer, read_manifest  # noqa: E402

RATIOS = (0.5, 0.8, 0.9)
# The attention that a press is run with: only eager attention hands ObservedAttentionPress its weights.
PRESSES = {"snapkv": "sdpa", "tova": "sdpa", "keydiff": "sdpa", "h2o": "eager"}
STEPS = 4  # tokens that generate writes with what the press has left
FEWEST = 65  # tokens of a prompt: SnapKVPress needs more than its window
NEAR = 1e-5  # relative to the score at the cut: how far float32 moves an attention weight whose logit is some tens


@dataclass
class Compared:
    """What one press at one ratio keeps, over all layers and KV heads."""

    policy: str
    ratio: float
    kept: int = 0  # tokens, as many on both sides
    differ: int = 0  # of them, kept by one side only
    ties: int = 0  # of these, decided by rounding
    unlike: list[str] = field(default_factory=list)  # layers where anything else differs

    def note(self, want, got, near, where):
        """Of a layer, bool [n_kv, l]: what the press has left, what kvreplay keeps, and where rounding decides."""
        off = want & ~got
        ties = off & near & (got & ~want & near).any(axis=1, keepdims=True)
        self.kept += int(want.sum())
        self.differ += int(off.sum())
        self.ties += int(ties.sum())
        if ties.sum() < off.sum():
            g, position = np.argwhere(off & ~ties)[0]
            self.unlike.append(f"{where}, KV head {g}: position {position} is kept by kvpress only")


def origin_of(path):
    return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}


def load_model(path, dtype):
    """As kvcapture.py loads it."""
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        return transformers.AutoModelForCausalLM.from_pretrained(**origin_of(path), dtype=getattr(torch, dtype)).eval()


def read_prompt(path, prompt, length):
    """Token ids, as kvcapture.py makes them."""
    tokenizer = kvcapture.find_tokenizer(None, kvcapture.open_gguf(path), origin_of(path))
    ids = tokenizer.encode(kvcapture.read_text(prompt))
    if not FEWEST <= length <= len(ids):
        raise SystemExit(f"--prompt-len: expected {FEWEST} to the {len(ids)} tokens of {prompt}, found {length}")
    return ids[:length]


def read_ratios(text):
    try:
        ratios = [float(ratio) for ratio in text.split(",")]
    except ValueError:
        ratios = [0.0]
    if not all(0 < ratio < 1 for ratio in ratios):
        raise SystemExit(f"--sigma: expected shares between 0 and 1, found '{text}'")
    return ratios


def left_by(press, model, ids, prompt_keys):
    """bool [layers, n_kv, l]: the prompt's tokens whose keys are in the cache when generate ends.
    prompt_keys: [n_kv, l, d] of each layer."""
    cache, given = transformers.DynamicCache(), torch.tensor([ids])
    with press(model), torch.no_grad():
        model.generate(given, attention_mask=torch.ones_like(given), past_key_values=cache, do_sample=False,
                       pad_token_id=0, max_new_tokens=STEPS, min_new_tokens=STEPS)  # fmt: skip
    left = np.zeros((len(prompt_keys), *prompt_keys[0].shape[:2]), bool)
    for at, (layer, keys) in enumerate(zip(cache.layers, prompt_keys, strict=True)):
        kept = layer.keys.shape[2] - (STEPS - 1)  # generate does not feed the last token
        returned = layer.keys[:, :, :kept].double()
        for g, positions in enumerate(presses.kept_rows(torch.from_numpy(keys)[None], returned)):
            left[at, g, positions] = True
    return left


class Replayed:
    """A dump of what the model saw of the prompt, and what kvreplay keeps of it."""

    def __init__(self, model, ids, names, ratios, kvreplay, work):
        self.dump, self.result = work / "dump", work / "evict"
        with kvcapture.capture(model, self.dump, prompt_len=len(ids)):
            kvcapture.feed(model, ids, given=[], decode=0, seed=None)
        self.manifest, self.indices = read_manifest(self.dump), list(layer_folders(self.dump))
        self.prompt_keys = [load_layer(self.dump, index).k for index in self.indices]
        asked = ("--policy", ",".join(names), "--sigma", ",".join(map(str, ratios)))
        run_kvreplay(kvreplay, "evict", self.dump, self.result, "--semantics", "kvpress", *asked)

    def kept(self, name, budget):
        """bool [layers, n_kv, l]"""
        file = f"{name}-kvpress-prefill-{budget}.npy"
        folders = (self.result / f"layer_{index:02d}" / "kept" for index in self.indices)
        return np.stack([np.load(folder / file).astype(bool) for folder in folders])

    def near_cut(self, at, name, ratio):
        """bool [n_kv, l]: tokens whose score, of the press in float64, is within NEAR of the cut's other side."""
        layer = load_layer(self.dump, self.indices[at])
        presses.refuse_what_kvpress_cannot(layer, f"layer {self.indices[at]}: ")
        config = presses.config_of(layer, len(self.indices), self.manifest)
        inputs = presses.layer_inputs(layer, at, config, torch.float64, presses.RotaryFloat64(layer))
        kept, scores = presses.run(presses.make_press(name, ratio), inputs, True)
        return presses.tied(kept, scores, False, NEAR)


def compare(model, ids, kvreplay, work, names=tuple(PRESSES), ratios=RATIOS):
    """A Compared of every press and ratio."""
    judged = model.dtype == torch.float32
    for attention in sorted({PRESSES[name] for name in names}, reverse=True):
        model.set_attn_implementation(attention)
        chosen = [name for name in names if PRESSES[name] == attention]
        replayed = Replayed(model, ids, chosen, ratios, kvreplay, work / attention)
        for name in chosen:
            for ratio in ratios:
                want = left_by(presses.make_press(name, ratio), model, ids, replayed.prompt_keys)
                got = replayed.kept(name, int(want[0, 0].sum()))
                compared = Compared(name, ratio)
                for at, index in enumerate(replayed.indices):
                    off = judged and not np.array_equal(want[at], got[at])
                    near = replayed.near_cut(at, name, ratio) if off else np.zeros_like(want[at])
                    compared.note(want[at], got[at], near, f"{name}, ratio {ratio}, layer {index}")
                yield compared


def print_table(found, judged):
    """Prints each as it comes; whether all are alike but for ties."""
    last = "ties" if judged else "of a thousand"
    print(f"| press | `--policy` | evicted | kept tokens | on one side only | {last} |")
    print("|---|---|---|---|---|---|")
    alike = True
    for one in found:
        last = one.ties if judged else f"{1000 * one.differ / one.kept:.1f}"
        print(f"| {press_name(one.policy)} | `{one.policy}` | {one.ratio:.0%} | {one.kept} | {one.differ} | {last} |",
              flush=True)  # fmt: skip
        for where in one.unlike[:3] if judged else ():
            print(f"differs: {where}", file=sys.stderr)
        alike = alike and not one.unlike
    return alike


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE", help="the model")
    parser.add_argument("--prompt", type=Path, required=True, metavar="FILE", help="text")
    parser.add_argument("--prompt-len", type=int, default=2000, metavar="N", help="its first N tokens (2000)")
    parser.add_argument("--dtype", choices=kvcapture.FILE_DTYPES, default="float32",
                        help="of model, cache and dump (float32)")  # fmt: skip
    parser.add_argument("--policy", default=",".join(PRESSES), metavar="NAMES", help=f"some of {','.join(PRESSES)}")
    parser.add_argument("--sigma", default=",".join(map(str, RATIOS)), metavar="RATIOS", help="shares evicted")
    parser.add_argument("--kvreplay", type=Path, default=ROOT / "build/release/bin/kvreplay", metavar="PATH",
                        help="the program")  # fmt: skip
    args = parser.parse_args()
    names, ratios = args.policy.split(","), read_ratios(args.sigma)
    if not set(names) <= PRESSES.keys():
        raise SystemExit(f"--policy: expected some of {','.join(PRESSES)}, found '{args.policy}'")
    if not os.access(args.kvreplay, os.X_OK):
        raise SystemExit(f"{args.kvreplay}: expected a program (./bootstrap.sh build, or --kvreplay PATH), found none")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ids = read_prompt(args.gguf, args.prompt, args.prompt_len)
    model = load_model(args.gguf, args.dtype)
    judged = args.dtype == "float32"
    print(f"{args.gguf.name}, {args.dtype}, {len(ids)} tokens of {args.prompt.name}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="kvreplay-generated-") as folder:
        alike = print_table(compare(model, ids, args.kvreplay, Path(folder), names, ratios), judged)
    return 0 if alike or not judged else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SystemExit, kvcapture.CaptureError, OSError, ValueError) as end:
        if isinstance(end, SystemExit) and not isinstance(end.code, str):
            raise
        print("generated:", end, file=sys.stderr)
        sys.exit(2)

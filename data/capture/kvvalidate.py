#!/usr/bin/env python3
"""What the evictions, compensated or not, head budgets, channel selections and quantized caches of a result folder cost
the model.

  kvvalidate.py --model PATH-or-ID --dump DUMP --results RESULTS
  kvvalidate.py --model model.gguf --results RESULTS ...    (of one dump or several, where run.json says that they are)

The model that was captured reads the prompt whole (a dump of all layers in float32 has what that gives); its decoding steps
are then fed again, once for every case, while in every layer and head they see only what the case left there: of the prompt,
and where a phase evicts while it decodes of the steps before; of a policy that keeps the whole prompt, each step what it
reads. RESULTS/validate.csv has, for every case,

  kl, kl_median, kl_p95   KL(full || changed) of the next-token distributions in nats: over the steps the mean, the
                          median and the 95th percentile
  dnll                    what the change adds to the negative log-likelihood of the text's tokens: mean over the steps
  perplexity              of the text's tokens behind what the case left: exp of the mean negative log-likelihood
  same_top1               the share of steps at which the likeliest token stays the same
  accept                  mean over the steps of the sum over tokens of min(p, p'): how often a token drawn behind what the
                          case left would be accepted by the full model

validate_steps.npy the KL of every step, and validate.json what they were computed with and which steps cost most. Of a dump
of a question (kvcapture.py --task) answers.csv says whether the model still answers it (answers.py).

Kept sets, and the steps at which tokens leave, are those that the results decided on the dump. --feedback runs phases
blockwise:N, decode, decode:N and append-only once more with caches that really evict: the model reads the text a block, or decodes
it a token, at a time over the cut caches, and every next cut is decided by what it makes of them. validate.csv calls their
phase decode+feedback and so on. The policies are the library's: that needs `import kvreplay` (analysis/python).

Formats are stored behind the prompt, which was read exactly. --written measures whole caches in formats once more as engines
run them: every key and value is stored when the model makes it, so the prompt, too, is read from what was stored. The
column `protocol` is `written` for these cases, and `stored` for all others.

The model runs in float32, whatever the checkpoint's dtype (--compute);
figures are formed in float64. Needs torch, numpy, xxhash and transformers (tested with 5.2 to 5.24; GGUF: also gguf and
accelerate), and the files beside this one. A request that cannot be met is one line and exit status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import importlib.util
import io
import itertools
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Tuple

from capture_arguments import refuse_arguments
from dump_files import CaptureError, one_line, read_json, require
from gguf_file import GgufFile
from packages import GGUF, TORCH, require_packages, version_note
from prompt_tokens import find_tokenizer, read_ids

COMPUTE = ("float32", "float64", "bfloat16", "float16")


def read_arguments(arguments: list[str] | None, failed: str = "") -> argparse.Namespace:
    """failed: the error of the import that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", "--gguf", required=True, help="a folder, a name on the Hugging Face hub, or a GGUF file")
    add("--results", nargs="+", required=True, metavar="DIR", help="finished result folders, each of one dump or of several")
    add("--dump", nargs="+", metavar="DUMP", help="the dumps (default: the paths in run.json)")
    add("--policy", nargs="+", metavar="NAME", help="policies to validate, named as in validate.csv; * matches anything (default all)")
    add("--each-layer", action="store_true", help="also validate every layer individually: validate_layers.csv")
    add("--feedback", action="store_true", help="also let the running model evict from its own caches")
    add("--written", action="store_true", help="also store every key and value when the model makes it, as engines do (whole caches in a format)")
    add("--resume", action="store_true", help="continue an interrupted validation")
    add("--force", action="store_true", help="replace a validation")
    add("--compute", choices=COMPUTE, default="float32", help="dtype that the model computes in (16 bits blur small losses)")
    add("--device", help="cpu, cuda, ... (default cuda where there is one)")
    parser.error = refuse_arguments
    args = parser.parse_args(arguments)
    require_packages([*TORCH, "xxhash", *(GGUF if Path(args.model).is_file() else ())], failed)
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    try:
        read_arguments(None)
    except CaptureError as refusal:
        print(f"kvvalidate: {refusal}", file=sys.stderr)
        sys.exit(2)

from kvcapture import Progress  # noqa: E402

MISSING = ""
try:
    import numpy as np
    import torch
    import transformers

    from answers import Judge, Question
    from capture_request import one_line_errors, weights_size
    from costly_steps import costliest, sentence, steps_of_half, texts_of
    from kvresults import Results, ResultsError, ResultsOverDumps, open_results
    from model_loop import FIGURES, ModelLoop, figures_of_steps, over_steps
    from validation_cases import KEYS, Case, Dump, cases_of, leave_out_what_parts_a_cache
    from validation_files import ValidationFiles, read_figures
except ImportError as missing:
    MISSING, ResultsError = str(missing), CaptureError

Found = Iterator[Tuple[str, "Dump"]]  # by the name of its results
HELD = 2**30  # bytes of caches of cases whose answers the model still goes on with


class Target(NamedTuple):
    """A result folder, its dump, and what is to be validated there."""

    results: Results
    dump: Dump
    cases: list[Case]
    left_out: dict[str, str]

    def prompt(self) -> tuple[Path, int]:
        """The dump's tokens that were taken for the prompt."""
        return self.dump.folder, self.results.summary["dump"]["l"]


def main(arguments: list[str] | None = None) -> int:
    try:
        args = read_arguments(arguments, MISSING)
        require(not args.feedback or importlib.util.find_spec("kvreplay"), "--feedback",
                "the package kvreplay (pip install . at the repository's root, or ./bootstrap.sh build --python)", "none")
        if note := version_note():
            print(f"kvvalidate: {note}", file=sys.stderr)
        with Progress() as progress:
            return 2 if run(args, progress) else 0
    except (CaptureError, ResultsError, OSError) as error:
        print(f"kvvalidate: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kvvalidate: interrupted; --resume goes on", file=sys.stderr)
        return 130


def run(args: argparse.Namespace, progress: Progress) -> list[Target]:
    """Validates all folders, and returns those that were rejected. Checks that need no model come first."""
    targets = find_targets(args, progress)
    for target in targets:
        before = target.results.folder / "validate.json"
        fresh = args.resume or args.force or not before.exists()
        require(fresh, before.parent, "no validation (--resume finishes one, --force replaces it)", before.name)
    progress.clear()
    print(f"reading model{weights_size(args.model)}", file=sys.stderr)
    model = load_model(args.model, args.compute, args.device)
    clock, refused = Clock(progress, sum(len(target.cases) for target in targets)), []

    @contextlib.contextmanager
    def refusals(some: list[Target]) -> Iterator[None]:
        try:
            yield
        except (CaptureError, ResultsError, OSError) as error:
            progress.clear()
            for folder in (str(target.results.folder) for target in some):
                print(f"kvvalidate: {one_line(error if folder in str(error) else f'{folder}: {error}')}", file=sys.stderr)
            refused.extend(some)

    with ModelLoop(model) as loop:
        for _, of_prompt in itertools.groupby(sorted(targets, key=Target.prompt), Target.prompt):
            first, *others = of_prompt
            with refusals([first, *others]):
                progress(f"{first.dump.folder.name}: reading the prompt")
                ids, l = prompt_of(first, model)
                full, judge = read_prompt(first, loop, ids, l, args), judge_of(first, loop, ids, l, args)
                tables = Tables(judge)
                for target in (first, *others):
                    with refusals([target]):
                        validate(target, loop, full, ids, args, clock, tables)
                tables.write()
    progress.clear()
    for target in targets:
        if target not in refused:
            print_figures(target)
    return refused


def find_targets(args: argparse.Namespace, progress: Progress) -> list[Target]:
    targets, known = [], set()
    opened = functools.cache(Dump.open)  # whose files are read once
    for folder in map(Path, args.results):
        found = targets_of(folder, args, opened, progress)
        known.update(case.keys[0] for target in found for case in target.cases)
        chosen = (target._replace(cases=[case for case in target.cases if is_chosen(case, args.policy)]) for target in found)
        mine = [target for target in chosen if target.cases]
        fed_back, written = (any(getattr(case, name) for target in mine for case in target.cases) for name in ("grow", "written"))
        require(fed_back or not mine or not args.feedback, folder,
                "with --feedback a phase blockwise:N, decode, decode:N or append-only", "none")
        require(written or not mine or not args.written, folder,
                "with --written the policy none in a format that is stored token by token (--bits vllm, or q8_0)", "none")
        targets += mine
    require(targets, f"--policy {' '.join(args.policy or [])}", f"some of {', '.join(sorted(known))}", "none")
    return targets


def is_chosen(case: Case, policies: list[str] | None) -> bool:
    name = case.keys[0]
    return not policies or any(name == each or fnmatch.fnmatchcase(name, each) for each in policies)


def targets_of(folder: Path, args: argparse.Namespace, open_dump: Callable[[Path], Dump], progress: Progress) -> list[Target]:
    """What can be validated of a result folder."""
    whole = open_results(folder)
    parts = {"": [whole]}  # by the dump's name: its results, and its budgets by the profile of the others
    if isinstance(whole, ResultsOverDumps):
        parts = {name: [results] for name, results in whole.dumps.items()}
        for name, results in whole.left_one_out.items():
            parts[name].append(results)
    targets = []
    first = {name: results for name, (results, *_) in parts.items()}
    for name, dump in find_dumps(folder, first, args.dump, open_dump, progress):
        for results in parts[name]:
            cases, left_out = cases_of(results, args.feedback, args.written)
            cases = leave_out_what_parts_a_cache(cases, left_out, dump, results.layers)
            why = "; ".join(f"{what}: {reason}" for what, reason in list(left_out.items())[:2]) or "none"
            wanted = "kept sets, head budgets or channel selections, as kvreplay evict, budget and channels write them"
            require(cases, results.folder, wanted, why)
            targets.append(Target(results, dump, cases, left_out))
    return targets


def find_dumps(folder: Path, parts: dict[str, Results], dumps: list[str] | None, open_dump: Callable[[Path], Dump],
               progress: Progress) -> Found:
    """Each dump with the name of its results: the given ones are told apart by what they hold."""
    if dumps is None:
        for name, results in parts.items():
            dump = open_dump(Path(results.run.get("directory", "")) / str(results.run.get("dump", "")))
            progress(f"{dump.folder}: comparing it with {results.folder}")
            dump.require_of(results)
            yield name, dump
    for path in dumps or []:
        dump, refused = open_dump(Path(path)), []
        for name, results in parts.items():
            progress(f"{path}: comparing it with {results.folder}")
            try:
                dump.require_of(results)
                yield name, dump
            except ResultsError as error:
                refused.append(error)
        if len(refused) == len(parts) > 1:
            raise ResultsError(f"{path}: expected one of the dumps that {folder} is of, found another")
        if len(refused) == len(parts):
            raise refused[0]


def load_model(name: str, compute: str, device: str | None) -> torch.nn.Module:
    transformers.utils.logging.set_verbosity_error()  # what matters of its warnings is refused below
    transformers.utils.logging.disable_progress_bar()
    with one_line_errors(), contextlib.redirect_stderr(io.StringIO()), contextlib.ExitStack() as parsed:  # bars go there
        origin = {"pretrained_model_name_or_path": name}
        if Path(name).is_file():  # refuses what transformers would read wrongly
            parsed.enter_context(GgufFile(Path(name)).parsed_once())
            origin = {"pretrained_model_name_or_path": str(Path(name).parent), "gguf_file": Path(name).name}
        config = transformers.AutoConfig.from_pretrained(**origin).get_text_config()
        capped = getattr(config, "attn_logit_softcapping", None)  # which sdpa cannot
        eager = {"attn_implementation": "eager"} if capped else {}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            **origin, dtype=getattr(torch, compute), output_loading_info=True, **eager
        )
    lacking = sorted(loaded["missing_keys"])
    found = f"none for {len(lacking)} of them ({', '.join(lacking[:2])} ...)"
    require(not lacking, name, "all of the model's weights", found)
    try:
        return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    except (RuntimeError, AssertionError) as error:  # of a device that there is not, or without room
        found = str(error).splitlines()[0]
        raise CaptureError(f"--device {device or 'cuda'}: expected one that holds the model, found {found}") from None


def prompt_of(target: Target, model: torch.nn.Module) -> tuple[list[int], int]:
    """The dump's tokens, and how many of them the results took for the prompt."""
    size, path = target.results.summary["dump"], target.dump.folder / "tokens.json"
    require(path.is_file(), path, "the tokens that the model was fed (kvcapture.py writes them)", "none")
    ids = read_ids(str(path))
    vocabulary = model.config.get_text_config().vocab_size
    require(len(ids) == size["T"], path, f"the {size['T']} tokens of the dump that was analysed", len(ids))
    require(0 <= min(ids) <= max(ids) < vocabulary, path, f"ids of 0 to {vocabulary - 1}", f"{min(ids)} to {max(ids)}")
    found = f"{size['l']} positions and {size['T'] - size['l']} steps"
    require(0 < size["l"] < size["T"], target.results.folder, "a prompt and decoding steps behind it", found)
    return ids, size["l"]


def read_prompt(target: Target, loop: ModelLoop, ids: list[int], l: int, args: argparse.Namespace) -> torch.Tensor:
    """The logits of the steps over the whole cache, which is the dump's where that is as fine as the model's would be; else
    the model reads the prompt. Refuses another model than the dump's."""
    dump, size = target.dump, target.results.summary["dump"]
    count = loop.model.config.get_text_config().num_hidden_layers
    of_model = dump.model_layers(size["layers"], count)
    _, stored = dump.stored(0, "k", 0, 1)
    whole = of_model == list(range(count)) and stored == args.compute

    def require_shape(at: int) -> None:
        mine = loop.layers[at]
        shape = (mine.n_q, len(mine.k), mine.k.shape[2], mine.v.shape[2])
        of_dump = tuple(size[key] for key in ("n_q", "n_kv", "d", "d_v"))
        require(shape == of_dump, f"the model's layer {at}: n_q, n_kv, d, d_v", f"the dump's {of_dump}", shape)

    def taken(at: int) -> tuple[np.ndarray, ...]:
        require_shape(at)
        return tuple(dump.stored(at, name, 0, l)[0] for name in ("k", "v"))

    full = loop.take(ids, l, taken) if whole else loop.read(ids, l)
    for layer in target.results.layers:
        require_shape(of_model[layer])
        k = loop.decoded[of_model[layer]] if whole else loop.layers[of_model[layer]].k
        dump.require_keys(layer, k.double().cpu().numpy(), l if whole else 0)
    return full


def judge_of(target: Target, loop: ModelLoop, ids: list[int], l: int, args: argparse.Namespace) -> Judge | None:
    """Of a dump of a question: who says whether the model still answers it."""
    question = Question.of(target.dump.manifest, str(target.dump.folder / "manifest.json"))
    if question is None:
        return None
    return Judge(question, loop, ids, l, tokenizer_of(args.model))


@functools.cache
def tokenizer_of(name: str) -> Any:
    """Of a model as --model has it; a GGUF file's takes half a minute."""
    path = Path(name)
    if not path.is_file():
        return find_tokenizer(name, None, {})
    origin = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with GgufFile(path).parsed_once() as file:
        return find_tokenizer(None, file, origin)


class Clock:
    """How far all cases are, and how long the others will take."""

    def __init__(self, progress: Progress, cases: int):
        self.progress, self.left, self.done, self.seconds = progress, cases, 0, 0.0

    def begin(self, what: str) -> None:
        rest = f", {math.ceil(self.seconds / self.done * self.left)} s left" if self.done else ""
        self.progress(f"{what}: case {self.done + 1} of {self.done + self.left}{rest}")
        self.began = time.monotonic()

    def end(self) -> None:
        self.seconds += time.monotonic() - self.began
        self.done, self.left = self.done + 1, self.left - 1

    def skip(self) -> None:
        self.left -= 1


class Tables:
    """The files of all results of one prompt, which are written where no case waits for its answer."""

    def __init__(self, judge: Judge | None):
        self.judge = judge
        self.open: dict[ValidationFiles, bool] = {}  # and whether all of its cases are there

    def write(self) -> None:
        if self.judge is not None:
            self.judge.finish()
        for files, finished in self.open.items():
            files.write(finished)
        self.open = {files: False for files, finished in self.open.items() if not finished}


def validate(target: Target, loop: ModelLoop, full: torch.Tensor, ids: list[int], args: argparse.Namespace,
             clock: Clock, tables: Tables) -> None:
    """Every case of one result folder whose figures are not there yet."""
    results, left_out, l = target.results, target.left_out, len(loop.layers[0].k[0])
    following = ids[l + 1 :]
    logp = full.double().log_softmax(-1)[range(len(following)), following]
    how = {
        "model": Path(args.model).name,
        "compute": args.compute,
        "results": results.summary.get("files_xxh3"),
        "prompt_len": l,
        "steps": len(full),
        "each_layer": args.each_layer,
        "nll": float(-logp.mean()) if following else None,
    }
    judge = tables.judge
    files = ValidationFiles(results.folder, how, {"left_out": left_out}, judge is not None)
    if args.resume:
        files.take_up()
    files.write(finished=False)
    tables.open[files] = False
    of_model = target.dump.model_layers(results.summary["dump"]["layers"], len(loop.layers))
    for case in target.cases:
        if case.keys in files.whole:
            clock.skip()
            continue
        clock.begin(f"{results.folder.name}: {' '.join(case.keys)}")
        layers = {layer: of_model[layer] for layer in results.layers}
        for layer in layers if args.each_layer else []:
            cache = next((group for group in target.dump.shared_caches() if layer in group), [layer])
            alone = figures_of_steps(full, case.feed(loop, {i: layers[i] for i in cache}), following)
            files.single[(str(layer), *case.keys)] = over_steps(*alone)
        logits = case.feed(loop, layers)
        steps = figures_of_steps(full, logits, following)
        if judge is not None:
            n_kv = lambda at: len(loop.layers[at].k)  # noqa: E731
            files.answers[case.keys] = judge.judge(case.changes(layers), logits, steps[0], n_kv)
        files.steps[case.keys], files.whole[case.keys] = steps[0], over_steps(*steps)
        clock.end()
        if judge is None or judge.held() > HELD:
            tables.write()
    files.also["costliest"] = costliest(files.steps, l, ids, texts_of(target.dump.folder, len(ids)))
    tables.open[files] = True
    if judge is None:
        tables.write()


def print_figures(target: Target) -> None:
    folder, whole = target.results.folder, read_figures(target.results.folder / "validate.csv", KEYS)
    kl_of, how = target.results.kl_by_step(), read_json(folder / "validate.json")
    names = [" ".join(filter(None, (*case.row_keys[:4], case.written and "written"))) for case in target.cases]
    width = max(map(len, names))
    columns = (*FIGURES, "half_in")
    print(f"{one_line(folder)}: nats over the decoding steps\n{'':{width}}" + "".join(f"{name:>11}" for name in columns))
    for name, case in zip(names, target.cases):
        values = ("" if x is None else format(x, ".3g") for x in whole[case.keys].values())
        half = str(steps_of_half(kl_of[case.keys]))  # steps that hold half of the KL
        print(f"{name:{width}}" + "".join(f"{value:>11}" for value in (*values, half)))
    print(one_line(sentence(how["costliest"], how["steps"])))
    for what, why in target.left_out.items():
        print(f"left out: {what}: {why}")
    quoted = shlex.quote(str(folder))
    print(f"next: kvreplay report {quoted} (beside what was predicted), kvreplay view {quoted} (Validation)")


if __name__ == "__main__":
    sys.exit(main())

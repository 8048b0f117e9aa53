#!/usr/bin/env python3
"""Captures what the attention of a Hugging Face model saw, as a dump that kvreplay reads (data/DUMP-FORMAT.md).

  kvcapture.py --model PATH-or-ID --prompt FILE --decode 128 --out DUMP
  kvcapture.py --gguf FILE --prompt FILE --prompt-len 896 --decode 128 --out DUMP   (decodes the text behind the prompt)
  kvcapture.py --model PATH-or-ID --prompt FILE --out DUMP --gradients 24 --rows future,window   (--resume: where it stopped)
  kvcapture.py --model PATH-or-ID --prompt FILE --out DUMP --repeat   (also the queries of a second reading)
  kvcapture.py --model PATH-or-ID --task niah_multikey_1,vt --samples 10 --length 2048 --out FOLDER   (questions: capture_tasks.py)
  kvcapture.py --check DUMP

or around any code that runs the model:

  with capture(model, "DUMP", prompt_len=ids.shape[1], decode=128):
      model.generate(ids, max_new_tokens=129, do_sample=False)    # the last new token is never fed: 128 decoding steps
  write_gradients(model, "DUMP", samples=24, rows="future,window")
  write_second_reading(model, "DUMP")

An attention function registered with the transformers attention interface stands in for the model's own in every
layer: it rounds q, k and v to the files' dtype, writes them, has the model's own (eager or sdpa) compute the output o
from exactly these numbers, and writes o, with which the model goes on. Before that, a probe of 16 tokens passes a few
times: it shows what is done with the heads' outputs (output_path.py), and, with equal rows at every attention, how keys
turn. One layer's tensors are in memory at a time, besides model and cache. With --gradients, the last rows are then fed once more
(output_gradients.py), with --repeat the prompt (second_reading.py).

Needs torch, numpy and transformers 4.56 or later (--check: numpy; --gguf: also gguf and accelerate), and the files
beside this one. A request that cannot be met is one line and exit status 2.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable

from capture_tasks import LENGTH, take_tasks
from dump_files import FILE_DTYPES, PROGRESS, CaptureError, one_line, require, write_json
from gguf_file import GgufFile
from prompt_tokens import ending_tokens

MISSING = ""
try:
    from dump_check import check  # needs NumPy alone

    import torch
    import transformers
except ImportError as missing:
    torch, MISSING = None, str(missing)
else:
    from attention_capture import capture
    from capture_estimate import print_estimate
    from capture_request import Request, one_line_errors
    from decoding import feed
    from output_gradients import write_gradients
    from second_reading import check_length, write_second_reading


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("--gguf", metavar="FILE", help="a GGUF file, dequantized (with --model: the tokenizer of that)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="FILE", help="text, for the model's own tokenizer")
    source.add_argument("--ids", metavar="FILE", help="token ids: a JSON list, a tokens.json, or numbers")
    source.add_argument("--task", metavar="NAMES",
                        help="RULER's questions by name, or a JSON-lines file of yours: a dump of each that is answered rightly")
    parser.add_argument("--samples", type=int, default=10, metavar="N", help="of each task (default 10)")
    parser.add_argument("--length", type=int, metavar="N", help=f"of a sample with its answer, in tokens (default {LENGTH})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="that samples are drawn by (default 0)")
    parser.add_argument("--haystack", metavar="FILE", help="a text to hide needles in (default: the help of Python)")
    parser.add_argument("--any-prompt", action="store_true", help="even a text of few, unknown or single-letter tokens")
    parser.add_argument("--chat", action="store_true",
                        help="frame --prompt as what a user says, by the model's chat template")
    parser.add_argument("--prompt-len", type=int, metavar="N",
                        help="the first N tokens are the prompt, the others decoded")
    parser.add_argument("--decode", type=int, default=128, metavar="N", help="decoding steps, greedy (default 128)")
    parser.add_argument("--stop", action="store_true", help="decode no further than where the model ends the text")
    parser.add_argument("--sample", type=int, metavar="SEED", help="sample the decoding steps at temperature 1")
    parser.add_argument("--out", metavar="DUMP", help="the folder to write")
    parser.add_argument("--force", action="store_true", help="replace a dump in the folder")
    parser.add_argument("--layers", metavar="0,3-5", help="only these, renumbered from 0")
    parser.add_argument("--window", type=int, metavar="W",
                        help="only the queries of the last W prompt positions and the decoding steps")
    parser.add_argument("--dtype", choices=FILE_DTYPES,
                        help="of the files, and what q, k, v are rounded to (default the checkpoint's)")
    parser.add_argument("--compute", choices=FILE_DTYPES,
                        help="what the model runs in (default the checkpoint's, if not coarser)")
    parser.add_argument("--device", help="cpu, cuda, ... (default cuda where there is one)")
    parser.add_argument("--name", help="the manifest's model name")
    parser.add_argument("--gradients", type=int, metavar="S",
                        help="also gradients with respect to o, of the likelihood of labels that its predictions "
                             "draw S times")
    parser.add_argument("--rows", metavar="future,window",
                        help="of which rows: the decoding steps (default), the last 32 prompt positions (window=64: "
                             "the last 64), or both")
    parser.add_argument("--gradients-nll", action="store_true", help="also the gradient of the decoding steps' NLL")
    parser.add_argument("--gradients-seed", type=int, default=0, metavar="N",
                        help="what the labels are drawn by (default 0)")
    parser.add_argument("--repeat", action="store_true",
                        help="also the queries of a second reading of the prompt, behind the first")
    parser.add_argument("--resume", action="store_true",
                        help="add the gradients or the second reading to the dump, or those that an interruption left "
                             "out")
    parser.add_argument("--estimate", action="store_true",
                        help="print the bytes it would write, for gradients also the memory and time, and stop")
    parser.add_argument("--check", metavar="DUMP",
                        help="which layers are whole, and does o follow from q, k, v? exit 1 if not")
    parser.error = refuse_arguments
    args = argparse.Namespace(out=None, captured=False)
    try:
        parser.parse_args(arguments, args)
        if args.check:
            require("numpy" not in MISSING, "packages", "numpy (pip install numpy)", MISSING)
            good = check(args.check)
            sys.stdout.flush()
            return 0 if good else 1
        read = args.prompt or args.ids or args.task or args.resume
        if not ((args.model or args.gguf) and read and (args.out or args.estimate)):
            parser.error("expected --check DUMP, or --model or --gguf, --prompt, --ids or --task, and --out")
        with Progress() as progress:
            return run(args, progress)
    except (CaptureError, OSError) as error:
        print(f"kvcapture: {one_line(error)}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = None  # it may be what cannot be written, and would be tried again
        return 2
    except KeyboardInterrupt:
        begun = args.out and (Path(args.out) / "manifest.json").exists()
        resumable = args.out and (Path(args.out) / PROGRESS).exists()
        state = "'s gradients are incomplete (--resume goes on)" if resumable else " is incomplete"
        state = " has no second reading (--resume adds it)" if args.captured else state
        print("kvcapture: interrupted" + (f", {one_line(args.out)}{state}" if begun else ""), file=sys.stderr)
        return 130


def refuse_arguments(message: str) -> None:
    raise CaptureError(f"{message} (--help lists the options)")


def run(args: argparse.Namespace, progress: Progress) -> int:
    """Captures, or estimates, what the arguments ask for; the exit status."""
    require(not MISSING, "packages", "torch and transformers (pip install torch transformers)", MISSING)
    wanted = args.gradients is not None or args.gradients_nll
    more = wanted or args.repeat
    require(more or args.task or not args.resume, "--resume", "--gradients, --gradients-nll, --repeat or --task", "none of them")
    alone = [f"--{name.replace('_', '-')}" for name in ("prompt_len", "sample") if args.task and getattr(args, name) is not None]
    require(not alone, "--task", "nothing that says what is a prompt and how it goes on", ", ".join(alone))
    require(args.gradients is not None or not args.rows, "--rows", "--gradients", "none")
    require(args.prompt or not args.chat, "--chat", "--prompt with what the user says", "none")
    transformers.utils.logging.set_verbosity_error()  # what matters of its warnings is refused
    silence = contextlib.nullcontext()
    if not progress.terminal:
        transformers.utils.logging.disable_progress_bar()
        silence = contextlib.redirect_stderr(io.StringIO())  # not every bar heeds that
    progress(f"reading {args.gguf or args.model}")
    with contextlib.ExitStack() as parsed:
        with one_line_errors():
            gguf = args.gguf and parsed.enter_context(GgufFile(Path(args.gguf)).parsed_once())
        request = Request(args, gguf)
        if not args.task:
            request.jobs()  # refuses what cannot be before anything is written
        if args.repeat:
            check_length(request.config, request.prompt_len)
        if args.estimate:
            print_estimate(request)
            return 0
        progress.clear()
        with silence:
            model = request.load()
    if args.task:
        return answer(model, request, progress)
    if not request.resumed:
        take(model, request, progress)
    add_more(model, args, args.out, args.resume, progress)
    return 0 if check(args.out) else 1


def add_more(model: torch.nn.Module, args: argparse.Namespace, out: str | Path, resume: bool, progress: Progress) -> None:
    """Gradients and a second reading, where they are asked for."""
    if args.gradients is not None or args.gradients_nll:
        write_gradients(model, out, samples=args.gradients or 0, rows=args.rows or "future",
                        nll=args.gradients_nll, seed=args.gradients_seed, resume=resume, progress=progress)
        progress.clear()
    if args.repeat:
        args.captured = True
        write_second_reading(model, out, resume=resume, progress=progress)
        progress.clear()
        args.captured = False


def answer(model: torch.nn.Module, request: Request, progress: Progress) -> int:
    """The captures of questions that the model answers rightly."""
    args, ends = request.args, ending_tokens(model, request.tokenizer, request.gguf)

    def capture_answer(folder: Path, ids: list[int], prompt_len: int, longest: int, enough: Callable, judge: Callable) -> None:
        with capture(model, folder, prompt_len=prompt_len, decode=len(ids) - prompt_len + longest, layers=request.layers,
                     window=args.window, dtype=request.dtype, force=True, name=request.name, progress=progress) as captured:
            feed(model, ids, [], longest, None, ends, enough)
            judge(captured.ids[len(ids):])
        write_tokens(captured, request.tokenizer)

    answers = take_tasks(request.tasks, Path(args.out), args, request.tokenizer, capture_answer,
                         lambda folder: add_more(model, args, folder, False, progress), progress)
    progress.clear()
    print("\n".join(answers.summary()))
    return 0


def take(model: torch.nn.Module, request: Request, progress: Progress) -> None:
    """The capture of the prompt and the decoding steps."""
    args, ids, prompt_len = request.args, request.ids, request.prompt_len
    with capture(model, args.out, prompt_len=prompt_len, decode=request.decode, layers=request.layers,
                 window=args.window, dtype=request.dtype, force=args.force, name=request.name,
                 progress=progress) as captured:
        size = f"{len(request.layers)} layers, {prompt_len} + {request.decode} positions"
        print(f"{one_line(args.out)}: {size}", file=sys.stderr)
        ends = ending_tokens(model, request.tokenizer, request.gguf)
        more = (lambda _: False) if args.stop else None
        ended = feed(model, ids[:prompt_len], ids[prompt_len:], request.decode, args.sample, ends, more)
        progress.clear()
    if ended is not None:
        rest = "there the dump ends" if args.stop else "what follows is not what it would write (--stop leaves it out)"
        print(f"kvcapture: the model ended the text at decoding step {ended} of {request.decode}: {rest}", file=sys.stderr)
    write_tokens(captured, request.tokenizer)


def write_tokens(captured: capture, tokenizer: Any) -> None:
    if tokenizer and captured.ids:
        texts = [tokenizer.text(i) for i in captured.ids]
        write_json(captured.out / "tokens.json", {"ids": captured.ids, "text": texts})


class Progress:
    """A line of the terminal that says how far things are; in a log one every half a minute."""

    LOGGED = 30.0  # seconds

    def __init__(self):
        self.terminal = sys.stderr.isatty()
        self.said = 0.0 if self.terminal else time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def __call__(self, line: str) -> None:
        if time.monotonic() - self.said <= (0.1 if self.terminal else self.LOGGED):  # a terminal may be slow
            return
        self.said = time.monotonic()
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{one_line(line)[:width]}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(one_line(line), file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.terminal and self.said:
            self.said = 0.0
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

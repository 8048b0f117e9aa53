#!/usr/bin/env python3
"""Captures what the attention of a Hugging Face model saw, as a dump that kvreplay reads (data/DUMP-FORMAT.md).

  kvcapture.py --model PATH-or-ID --prompt FILE --decode 128 --out DUMP
  kvcapture.py --gguf FILE --prompt FILE --prompt-len 896 --decode 128 --out DUMP   (decodes the text behind the prompt)
  kvcapture.py --model PATH-or-ID --prompt FILE --out DUMP --gradients 24 --rows future,window   (--resume: where it stopped)
  kvcapture.py --model PATH-or-ID --prompt FILE --out DUMP --repeat   (also the queries of a second reading)
  kvcapture.py --model PATH-or-ID --messages chat.json --out DUMP   (a conversation; several: kvcapture.py ... --prompt A B --out FOLDER)
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

Needs torch, numpy and transformers (tested with 5.2 to 5.24; --check: numpy; --gguf: also gguf and accelerate), and the files
beside this one. A request that cannot be met is one line and exit status 2; of several prompts, the others are captured.
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

from capture_arguments import read_arguments
from capture_tasks import take_tasks
from dump_files import PROGRESS, CaptureError, is_incomplete, one_line, write_json
from packages import version_note
from prompt_tokens import ending_tokens

MODEL, MISSING = True, ""  # is one read?
if __name__ == "__main__":  # before torch is imported, which takes seconds
    try:
        MODEL = not read_arguments(None, __doc__, argparse.Namespace()).check
    except CaptureError as refusal:
        print(f"kvcapture: {refusal}", file=sys.stderr)
        sys.exit(2)

try:
    from dump_check import check  # needs NumPy alone

    if MODEL:
        import torch
        import transformers
except ImportError as missing:
    MODEL, MISSING = False, str(missing)
if MODEL:
    from attention_capture import capture
    from capture_estimate import print_estimate
    from capture_request import Prompt, Request, going_on, one_line_errors, read_contents, weights_size
    from decoding import feed
    from gguf_file import GgufFile
    from output_gradients import write_gradients
    from second_reading import write_second_reading


def main(arguments: list[str] | None = None) -> int:
    args = argparse.Namespace(out=None, writing=None, captured=False)
    try:
        read_arguments(arguments, __doc__, args, MISSING)
        if args.check:
            good = check(args.check)
            sys.stdout.flush()
            return 0 if good else 1
        with Progress() as progress:
            return run(args, progress)
    except (CaptureError, OSError) as error:
        print(f"kvcapture: {one_line(error)}{left_behind(args)}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = None  # it may be what cannot be written, and would be tried again
        return 2
    except KeyboardInterrupt:
        print(f"kvcapture: interrupted{left_behind(args)}", file=sys.stderr)
        return 130


def left_behind(args: argparse.Namespace) -> str:
    """Tells how to continue the dump that was being written; empty if there is none."""
    out, args.writing = args.writing, None
    if out is None or not (out / "manifest.json").exists():
        return ""
    if is_incomplete(out):
        return f"; {one_line(out)} is incomplete: capture again with --force, or with --resume, which keeps dumps that are whole"
    if (out / PROGRESS).exists():
        return f"; {one_line(out)}'s gradients are incomplete (--resume goes on)"
    return f"; {one_line(out)} has no second reading (--resume adds it)" if args.captured else ""


def run(args: argparse.Namespace, progress: Progress) -> int:
    """Captures, or estimates, what the arguments ask for; the exit status."""
    transformers.utils.logging.set_verbosity_error()  # what matters of its warnings is refused
    if note := version_note():
        print(f"kvcapture: {note}", file=sys.stderr)
    silence = contextlib.nullcontext()
    if not progress.terminal:
        transformers.utils.logging.disable_progress_bar()
        silence = contextlib.redirect_stderr(io.StringIO())  # not every bar heeds that
    progress(f"reading {args.gguf or args.model}")
    failed, reading = [], f"reading model{weights_size(args.gguf or args.model)}"

    def refused(name: str, error: CaptureError) -> None:
        progress.clear()
        print(f"kvcapture: {one_line(name)}: {error}{left_behind(args)}", file=sys.stderr)
        failed.append(name)

    contents = read_contents(args, refused)
    with contextlib.ExitStack() as parsed:
        if args.gguf and not args.estimate:  # its vocabulary takes long, too
            progress.clear()
            print(reading, file=sys.stderr)
        with one_line_errors():
            gguf = args.gguf and parsed.enter_context(GgufFile(Path(args.gguf)).parsed_once())
        request = Request(args, gguf, contents, refused)
        progress.clear()
        if args.estimate:
            print_estimate(request)
            return 2 if failed else 0
        left = [prompt for prompt in request.prompts if not prompt.resumed or args.adds]
        for prompt in request.prompts:
            if prompt not in left:
                print(f"{one_line(prompt.out)}: whole, nothing to add", file=sys.stderr)
        if left or args.task:
            if not args.gguf:
                print(reading, file=sys.stderr)
            with silence:
                model = request.load()
    if args.task:
        return answer(model, request, progress)
    count, good = len(request.prompts) + len(failed), True
    for prompt in left:
        with going_on(args.several, prompt.name, refused):
            if not prompt.resumed:
                take(model, request, prompt, progress)
            add_more(model, args, prompt.out, args.resume, progress)
            if args.several:
                print(one_line(prompt.out))
            good = check(prompt.out) and good
    if failed:
        print(f"kvcapture: {len(failed)} of {count} prompts failed: {one_line(', '.join(failed))}", file=sys.stderr)
        return 2
    return 0 if good else 1


def add_more(model: torch.nn.Module, args: argparse.Namespace, out: str | Path, resume: bool, progress: Progress) -> None:
    """Gradients and a second reading, where they are asked for."""
    args.writing = Path(out)
    if args.gradients is not None or args.gradients_nll:
        write_gradients(model, out, samples=args.gradients or 0, rows=args.rows or "future",
                        nll=args.gradients_nll, seed=args.gradients_seed, resume=resume, progress=progress)
        progress.clear()
    if args.repeat:
        args.captured = True
        write_second_reading(model, out, resume=resume, progress=progress)
        progress.clear()
        args.captured = False
    args.writing = None


def answer(model: torch.nn.Module, request: Request, progress: Progress) -> int:
    """The captures of questions that the model answers rightly."""
    args, ends = request.args, ending_tokens(model, request.tokenizer, request.gguf)

    def capture_answer(folder: Path, ids: list[int], prompt_len: int, longest: int, enough: Callable, judge: Callable) -> None:
        with capture(model, folder, prompt_len=prompt_len, decode=len(ids) - prompt_len + longest, layers=request.longest.layers,
                     window=args.window, dtype=request.dtype, force=True, name=request.name, progress=progress) as captured:
            feed(model, ids, [], longest, None, ends, enough)
            judge(captured.ids[len(ids):])
        write_tokens(captured, request.tokenizer)

    take_tasks(request.tasks, request.answers, args, request.tokenizer, capture_answer,
               lambda folder: add_more(model, args, folder, False, progress), progress)
    progress.clear()
    print("\n".join(request.answers.summary()))
    return 0


def take(model: torch.nn.Module, request: Request, prompt: Prompt, progress: Progress) -> None:
    """The capture of the prompt and the decoding steps."""
    args, ids, prompt_len = request.args, prompt.ids, prompt.prompt_len
    args.writing = prompt.out
    with capture(model, prompt.out, prompt_len=prompt_len, decode=prompt.decode, layers=prompt.layers,
                 window=args.window, dtype=request.dtype, force=prompt.force, name=request.name,
                 progress=progress) as captured:
        size = f"{len(prompt.layers)} layers, {prompt_len} + {prompt.decode} positions"
        print(f"{one_line(prompt.out)}: {size}", file=sys.stderr)
        ends = ending_tokens(model, request.tokenizer, request.gguf)
        more = (lambda _: False) if args.stop else None
        ended = feed(model, ids[:prompt_len], ids[prompt_len:], prompt.decode, args.sample, ends, more)
        progress.clear()
    if ended is not None:
        rest = "there the dump ends" if args.stop else "what follows is not what it would write (--stop leaves it out)"
        print(f"kvcapture: the model ended the text at decoding step {ended} of {prompt.decode}: {rest}", file=sys.stderr)
    write_tokens(captured, request.tokenizer)
    args.writing = None


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

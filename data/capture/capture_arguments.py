"""kvcapture.py's arguments. Reports missing arguments and missing packages before torch is imported, which takes seconds. Needs no
packages itself."""
from __future__ import annotations

import argparse
from pathlib import Path

from capture_tasks import LENGTH
from dump_files import FILE_DTYPES, CaptureError, require
from packages import CHATS, GGUF, TEXTS, TORCH, require_packages

SOURCES = ("prompt", "messages", "ids")  # of tokens, each a file or several


def read_arguments(arguments: list[str] | None, about: str, args: argparse.Namespace, failed: str = "") -> argparse.Namespace:
    """Fills args, even if it raises CaptureError. failed: the error of the import that failed."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="a folder, or a name on the Hugging Face hub")
    add("--gguf", metavar="FILE", help="a GGUF file, dequantized (with --model: the tokenizer of that)")
    source = parser.add_mutually_exclusive_group()
    several = {"nargs": "+", "action": "extend", "metavar": "FILE"}
    source.add_argument("--prompt", **several, help="a text for the model's own tokenizer; with several files, each becomes a dump in --out")
    source.add_argument("--messages", **several,
                        help='a conversation, framed by the model\'s chat template: a JSON list of {"role", "content"}, or requests with '
                             '"messages" (and "tools") as servers log them, one per file or line; a final answer is decoded')
    source.add_argument("--ids", **several, help='token ids: a JSON list, a tokens.json, {"input_ids": [..]}, or numbers')
    source.add_argument("--task", metavar="NAMES",
                        help="RULER's questions by name, or a JSON-lines file of yours; every question answered correctly becomes a dump")
    add("--samples", type=int, default=10, metavar="N", help="samples per task (default 10)")
    add("--length", type=int, metavar="N", help=f"tokens per sample, answer included (default {LENGTH})")
    add("--seed", type=int, default=0, metavar="N", help="seed of the samples (default 0)")
    add("--haystack", metavar="FILE", help="a text to hide needles in (default: the help of Python)")
    add("--any-prompt", action="store_true", help="accept a text of few, unknown or single-letter tokens")
    add("--chat", action="store_true", help="frame --prompt as a user turn, by the model's chat template")
    add("--prompt-len", type=int, metavar="N", help="the first N tokens are the prompt, the others decoded")
    add("--decode", type=int, default=128, metavar="N", help="decoding steps, greedy (default 128)")
    add("--stop", action="store_true", help="stop decoding where the model ends the text")
    add("--sample", type=int, metavar="SEED", help="sample the decoding steps at temperature 1")
    add("--out", metavar="DUMP", help="the folder to write: a dump, or with several prompts one dump per prompt, named by its file")
    add("--force", action="store_true", help="replace a dump in the folder")
    add("--layers", metavar="0,3-5", help="layers to capture, renumbered from 0 (default all)")
    add("--window", type=int, metavar="W", help="store queries of the last W prompt positions and the decoding steps only")
    add("--dtype", choices=FILE_DTYPES, help="dtype of the files, to which q, k, v are rounded (default the checkpoint's)")
    add("--compute", choices=FILE_DTYPES, help="dtype that the model computes in (default the checkpoint's, if not coarser)")
    add("--device", help="cpu, cuda, ... (default cuda where there is one)")
    add("--name", help="the manifest's model name")
    add("--gradients", type=int, metavar="S",
        help="also gradients with respect to o, of the likelihood of labels drawn S times from the model's predictions")
    add("--rows", metavar="future,window",
        help="rows with gradients: the decoding steps (default), the last 32 prompt positions (window=64: the last 64), or both")
    add("--gradients-nll", action="store_true", help="also the gradient of the decoding steps' NLL")
    add("--gradients-seed", type=int, default=0, metavar="N", help="seed of the labels (default 0)")
    add("--repeat", action="store_true", help="also the queries of a second reading of the prompt, behind the first")
    add("--resume", action="store_true",
        help="add the missing parts: prompts without a whole dump, and gradients or second readings that were interrupted or never begun")
    add("--estimate", action="store_true", help="print the bytes to write, the memory and the minutes, and stop")
    add("--check", metavar="DUMP", help="check that every layer is whole and that o follows from q, k, v; exit 1 if not")
    parser.error = refuse_arguments
    parser.parse_args(arguments, args)
    if args.check:
        require_packages(["numpy"])
        return args
    args.sources = [(kind, path) for kind in SOURCES for path in getattr(args, kind) or ()]
    args.adds = args.gradients is not None or args.gradients_nll or args.repeat  # to a dump that is there
    missing = [] if args.model or args.gguf else ["--model or --gguf"]
    if not (args.sources or args.task or args.resume and args.adds):
        missing.append("--prompt, --messages, --ids or --task")
    if not (args.out or args.estimate):
        missing.append("--out")
    if missing:
        refuse_arguments(f"expected {' and '.join(missing)}, found none")
    refuse_contradictions(args)
    chats = args.chat or args.messages or args.task
    require_packages([*TORCH, *(GGUF if args.gguf else ()), *(TEXTS if chats or args.prompt else ()), *(CHATS if chats else ())], failed)
    return args


def refuse_arguments(message: str) -> None:
    raise CaptureError(f"{message} (--help lists the options)")


def refuse_contradictions(args: argparse.Namespace) -> None:
    alone = [f"--{name.replace('_', '-')}" for name in ("prompt_len", "sample") if args.task and getattr(args, name) is not None]
    require(not alone, "--task", "nothing that says what is a prompt and how it goes on", ", ".join(alone))
    require(args.gradients is not None or not args.rows, "--rows", "--gradients", "none")
    require(args.gradients is None or args.gradients >= 1, "--gradients", "at least 1 sample", args.gradients)
    require(args.prompt or not args.chat, "--chat", "--prompt with what the user says", "none")
    require(not args.messages or args.prompt_len is None, "--messages", "no --prompt-len: a prompt ends where the model answers",
            args.prompt_len)
    path = Path(args.gguf) if args.gguf else None
    require(path is None or path.is_file(), path, "a GGUF file", "something else" if path and path.exists() else "none")

"""The program `kvreplay`, which comes with the package."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Sequence, Union

from . import _core
from .results import Results, ResultsOverDumps, open_results

AnyPath = Union[str, "os.PathLike[str]"]


def program() -> str:
    """Where the program is."""
    return str(Path(__file__).resolve().with_name("bin") / "kvreplay")


def main() -> None:
    """The command `kvreplay`: becomes the program."""
    os.execv(program(), ["kvreplay", *sys.argv[1:]])


def analyze(dump: Union[AnyPath, Sequence[AnyPath]], out: AnyPath, **options: Any) -> Union[Results, ResultsOverDumps]:
    """Runs every analysis of a dump, or of several, into the folder `out`, and opens it: `kvreplay analyze`, with its options
    as keywords ('_' for '-'; True for a flag; a list, or commas): force=True, only=["tokens", "evict"], layers="0,3-5". An
    option of one part: **{"evict.window": 64}. `kvreplay analyze --help` has them all. Ctrl-C stops it; resume=True goes on.
    """
    dumps = [dump] if isinstance(dump, (str, os.PathLike)) else list(dump)
    words = [program(), "analyze", *map(os.fspath, dumps), "--out", os.fspath(out), "--quiet"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            several = isinstance(value, (list, tuple))
            words += [flag, ",".join(map(str, value)) if several else str(value)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            said = run.communicate()[1]
        except KeyboardInterrupt:
            run.send_signal(signal.SIGINT)  # where only this process got it
            run.wait()
            raise
    if run.returncode == 130:
        raise KeyboardInterrupt(said.strip())
    if run.returncode != 0:
        line = said.strip().removeprefix("kvreplay: ")
        raise _core.InputError(line) if run.returncode == 2 else RuntimeError(line or f"kvreplay ended with {run.returncode}")
    return open_results(out, dump=dumps[0] if len(dumps) == 1 else None)

"""What prove.py's steps find, and the files that tell it. Standard library only."""

import glob
import json
import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr


@dataclass
class Case:
    """A line of junit.xml."""

    step: str
    name: str
    seconds: float
    problem: str = ""


@dataclass
class Proof:
    out: Path
    programs: Path
    rehearse: bool
    ends: float
    cases: list = field(default_factory=list)
    sections: dict = field(default_factory=dict)
    figures: dict = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def program(self, name):
        """kvreplay, kvreplay_cuda_tests, kvreplay_analysis_cuda_tests or cuda_bench."""
        if self.rehearse:
            name = name.replace("_cuda_tests", "_emulated_tests").replace("kvreplay_emulated", "kvreplay_cuda_emulated")
            name = {"kvreplay": "kvreplay_emulated", "cuda_bench": "cuda_bench_emulated"}.get(name, name)
        return str(self.programs / name)

    def log(self, text):
        with self.lock, (self.out / "log.txt").open("a") as log:
            log.write(text.rstrip("\n") + "\n")

    def run(self, arguments, seconds, quiet=False, env=None):
        """(exit code, output of both kinds, seconds); 124 where it took longer."""
        start = time.monotonic()
        left = max(1.0, min(seconds, self.ends - start))
        try:
            done = subprocess.run(
                [str(a) for a in arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=left,
                env={**os.environ, **(env or {})},
                text=True,
                errors="replace",
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            text = late.stdout or ""
            code, text = 124, text.decode(errors="replace") if isinstance(text, bytes) else text
        except OSError as error:
            code, text = 127, str(error)
        took = time.monotonic() - start
        line = " ".join(str(a) for a in arguments)
        self.log(f"$ {line}\n[{code}, {took:.1f} s]" + ("" if quiet else "\n" + text[-20000:]))
        return code, text, took

    def case(self, step, name, seconds, problem=""):
        with self.lock:
            self.cases.append(Case(step, name, seconds, problem))
        if problem:
            print(f"FAILED {step}: {name}: {problem.strip().splitlines()[0][:300]}", flush=True)

    def write(self):
        """All that is known; after every step, for the machine may go."""
        with self.lock:
            failed = [case for case in self.cases if case.problem]
            text = [f"# {self.figures.get('device', 'no device')}, {self.figures.get('date', '')}", ""]
            text += [f"{len(self.cases) - len(failed)} of {len(self.cases)} checks hold.", ""]
            text += [f"- **failed** {case.step}: {case.name}: {one_line(case.problem)}" for case in failed[:60]] + [""]
            text += [f"## {title}\n\n{body}\n" for title, body in self.sections.items()]
            (self.out / "summary.md").write_text("\n".join(text))
            (self.out / "proof.json").write_text(json.dumps(self.figures, indent=1) + "\n")
            lines = [f'<testsuite name="device" tests="{len(self.cases)}" failures="{len(failed)}">']
            for case in self.cases:
                lines.append(f"<testcase classname={quoteattr(case.step)} name={quoteattr(case.name)} time=\"{case.seconds:.2f}\">")
                if case.problem:
                    lines.append(f"<failure message={quoteattr(printable(case.problem[:4000]))}/>")
                lines.append("</testcase>")
            (self.out / "junit.xml").write_text("\n".join(lines + ["</testsuite>"]) + "\n")


def printable(text):
    return re.sub(r"[^\x09\x0a\x20-\x7e\u00a0-\ud7ff]", "?", text)


def one_line(text):
    return " ".join(text.split())[:300]


def table(head, rows):
    line = lambda cells: "| " + " | ".join(str(c) for c in cells) + " |"
    return "\n".join([line(head), "|" + "---|" * len(head)] + [line(row) for row in rows])


def tool(name, *places):
    """A program of the CUDA Toolkit, wherever it lies."""
    found = shutil.which(name)
    for pattern in (*places, f"/usr/local/cuda*/bin/{name}", f"/opt/nvidia/*/*/{name}", f"/usr/local/cuda*/*/{name}"):
        found = found or next(iter(sorted(glob.glob(pattern), reverse=True)), None)
    return found

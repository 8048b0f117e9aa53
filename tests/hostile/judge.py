"""What a run's end is worth: ok, poor, wrong or crash, and why."""

import enum
import json
import re
import signal
import unicodedata

from process import Outcome

LONGEST_LINE = 600
SHORTEST_HINT = 12
MOST_MEMORY = 1 << 30


class Verdict(enum.IntEnum):
    """Worst last."""

    OK = 0
    POOR = 1
    WRONG = 2
    CRASH = 3


class Expect(enum.Enum):
    """What exit 0 would mean."""

    SAME = "the undisturbed results, or one line"
    REFUSED = "one line"
    ACCEPTED = "the undisturbed results"
    EITHER = "any whole results, or one line"


def control_characters(data: bytes, allowed="\n\t") -> str | None:
    """The first character that would steer a terminal, if any; streams are UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # the harness itself cuts long streams
        return None if error.reason == "unexpected end of data" else f"byte {data[error.start]:#04x}, no UTF-8"
    found = next((c for c in text if unicodedata.category(c) == "Cc" and c not in allowed), None)
    return None if found is None else f"U+{ord(found):04X}"


def complaint_fault(stderr: bytes, about: tuple) -> str | None:
    """What keeps the words on standard error from being one clear line, if anything."""
    lines = stderr.decode(errors="replace").splitlines() if stderr.strip() else []
    if not lines:
        return "exit 2 without a word"
    if len(lines) > 1:
        return f"{len(lines)} lines"
    if len(lines[0]) > LONGEST_LINE:
        return f"a line of {len(lines[0])} characters"
    if found := control_characters(stderr, "\n"):
        return f"{found} in the line"
    said = re.sub(r"^kvreplay: ", "", lines[0])
    hinted = not about or re.search("expected .*, found ", said) or any(word in said for word in about)
    if len(said) < SHORTEST_HINT or not hinted:
        return f"no hint at {' or '.join(about) or 'what is wrong'}"
    return None


def judge_end(outcome: Outcome, fails_with_1: bool, may_die_of: tuple) -> tuple:
    """Crashes and memory: what no expectation excuses."""
    if outcome.timed_out:
        return Verdict.CRASH, f"no end within {outcome.seconds:.0f} s"
    allowed = {0, 2} | ({1} if fails_with_1 else set())
    allowed |= {130} if set(outcome.signals_sent) & {signal.SIGINT, signal.SIGTERM} else set()
    if -outcome.status in set(outcome.signals_sent) | set(may_die_of):
        return Verdict.OK, ""
    if outcome.status < 0:
        return Verdict.CRASH, signal.Signals(-outcome.status).name
    if outcome.status not in allowed:
        return Verdict.CRASH, f"exit status {outcome.status}"
    if outcome.peak_bytes > MOST_MEMORY:
        return Verdict.WRONG, f"{outcome.peak_bytes >> 20} MiB of memory"
    return Verdict.OK, ""


def judge_words(outcome: Outcome, arguments: tuple, about: tuple, heard: tuple) -> tuple:
    """The words of a run that ended by itself; heard are the streams that can be read back."""
    if outcome.status == 2 and 2 in heard and (fault := complaint_fault(outcome.stderr, about)):
        return Verdict.POOR, fault
    for name, stream in ("standard output", outcome.stdout), ("standard error", outcome.stderr):
        if found := control_characters(stream):
            return Verdict.POOR, f"{found} on {name}"
    if outcome.status == 0 and "--json" in arguments and 1 in heard and not is_json(outcome.stdout):
        return Verdict.WRONG, "--json: no JSON on standard output"
    return Verdict.OK, ""


def is_json(data: bytes) -> bool:
    """Whether data is one JSON value, without the NaN and Infinity that Python would take."""
    def refuse(constant):
        raise ValueError(constant)

    try:
        json.loads(data, parse_constant=refuse)
    except ValueError:
        return False
    return True

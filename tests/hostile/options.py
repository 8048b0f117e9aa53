"""Every option of every command, as its --help names them: missing, empty, huge, of another type, twice, with control
characters; on the command line and in a config file."""

import functools
import re
import subprocess
import tomllib

import damage
import samples
from judge import Expect
from trial import Case, Trial

COMMANDS = ("info", "synth", "tokens", "evict", "budget", "channels", "analyze", "merge", "verify", "compare", "report")
WRITES = {"tokens", "evict", "budget", "channels", "analyze", "merge"}
DUMP_READERS = WRITES - {"merge"} | {"info", "verify"}

VALUES = {
    "empty": b"", "blank": b" ", "zero": b"0", "minus-one": b"-1", "one": b"1", "int64": b"9223372036854775807",
    "int64-next": b"9223372036854775808", "uint64": b"18446744073709551616", "large": b"1e308", "half": b"0.5",
    "nan": b"nan", "inf": b"inf", "minus-inf": b"-inf", "hex": b"0x10", "word": b"nonsense", "commas": b",,",
    "list": b"1,,2", "list-end": b"1,", "range": b"3-1", "range-huge": b"0-9223372036854775807",
    "list-huge": b"1," * 20000 + b"1", "long": b"x" * 100000, "slashes": b"../../../..", "null-device": b"/dev/null",
    "full-device": b"/dev/full", "zero-device": b"/dev/zero", "root": b"/", "proc": b"/proc/self/nothing",
    "escapes": b"\x1b]0;owned\x07\x1b[2J", "lines": b"a\nb\r\n", "not-utf8": b"\xff\xfe", "umlaut": "ü=ß".encode(),
    "format": b"%s%n{}{0}", "equals": b"=", "pair": b"a=b", "pair-of-none": b"a=/nonexistent/x.npy",
    "pair-of-escape": b"a\x1b[2J=/nonexistent", "colons": b"::::", "fraction": b"1/2", "fraction-zero": b"1/0",
    "fraction-huge": b"1/1000000000000000", "brackets": b"snapkv[window=", "plus": b"+", "quote": b'"', "dash": b"-",
    "dashes": b"--", "true": b"true", "percent": b"101%",
}
TOML = {
    "number": "{0} = 1", "negative": "{0} = -1", "real": "{0} = 0.5", "huge": "{0} = 99999999999999999999",
    "text": '{0} = "x"', "empty-text": '{0} = ""', "true": "{0} = true", "false": "{0} = false", "list": "{0} = [1, 2]",
    "list-lines": "{0} = [\n  1,\n  2,\n]", "list-mixed": '{0} = [1, "x", true]', "list-nested": "{0} = [[1], [2]]",
    "list-empty": "{0} = []", "table": "[{0}]\na = 1", "inline": "{0} = {{a = 1}}", "dotted": "{0}.a = 1",
    "date": "{0} = 1979-05-27T07:32:00Z", "nan": "{0} = nan", "inf": "{0} = inf", "nothing": "{0} =",
    "no-equals": "{0}", "twice": "{0} = 1\n{0} = 2", "open-text": '{0} = "x', "open-list": "{0} = [1,",
    "literal": "{0} = 'x'", "many-lines": '{0} = """\nx\n"""', "escape": '{0} = "\\u001b[2J\\n"',
    "raw-escape": '{0} = "\x1b[2J"', "behind": "{0} = 1 x", "comment": "# {0} = 1", "capitals": "{1} = 1",
    "underscores": "{0}_ = 1", "dashes": "--{0} = 1", "hex": "{0} = 0x10", "grouped": "{0} = 1_000",
    "deep": "{0} = " + "[" * 50000 + "]" * 50000, "long": '{0} = "' + "x" * 10**6 + '"',
}
FILES = {
    "empty": b"", "blank": b"\n\n \n", "nul": b"\0" * 100, "not-utf8": b"\xff\xfe = 1",
    "bom": b"\xef\xbb\xbfthreads = 1\n", "carriage": b"threads = 1\r\n", "unknown": b"nonsense = 1\n",
    "section": b"[tokens]\nthreads = 1\n", "open-section": b"[tokens\n", "escape-key": b'"\x1b[2J" = 1\n',
    "long-key": b"k" * 10**6 + b" = 1\n", "keys": b"".join(b"k%d = 1\n" % i for i in range(10**5)), "equals": b"= 1\n",
    "brackets": b"]" * 10**5, "braces": b"a = " + b"{a=" * 10**5, "ini": b"; c\nthreads: 1\n",
    "json": b'{"threads": 1}', "config": b'config = "config.toml"\n', "help": b"help = true\n",
    "version": b"version = true\n", "utf16": "threads = 1\n".encode("utf16"),
}


def options_of(bench, command: str) -> list:
    """(name, whether it takes a value) of every option that the command's --help lists."""
    text = subprocess.run([bench.program, command, "--help"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^  (?:-\w,)?(--[\w.-]+)((?: [^\s(\[]\S*)?)", text, re.MULTILINE)
    return [(name, bool(value)) for name, value in found]


def base(command: str) -> tuple:
    """A short run that is right."""
    if command in samples.RESULTS:
        return samples.command_line(command, "out")
    return {
        "info": ("info", "dump", "--quiet"), "synth": ("synth", "out", *samples.SHAPE, "--quiet"),
        "analyze": ("analyze", "dump", "--out", "out", "--only", "tokens", "--metrics", "attn,key", *samples.QUIET),
        "merge": ("merge", "part1", "part2", "--out", "out", *samples.QUIET),
        "compare": ("compare", "a", "b", "--quiet"), "verify": ("verify", "dump", "--tokens", "2", *samples.QUIET),
        "report": ("report", "a", "--out", "page.html", "--quiet"),
    }[command]


def put_inputs(trial: Trial, command: str):
    """What the run reads."""
    if command in DUMP_READERS or command == "merge":
        samples.put_dump(trial)
    if command == "merge":
        for number in 1, 2:
            trial.put(samples.part(trial.bench, "channels", number), f"part{number}")
    if command in ("compare", "report"):
        for name in "a", "b":
            trial.put(samples.result(trial.bench, "evict"), name)


def judged_run(trial, command: str, arguments: tuple, about=(), expected=Expect.EITHER):
    """Whatever is asked for: a whole result, or one line."""
    out = "out" if command in WRITES else None
    for folder in ("dump", "part1", "part2", "a", "b"):
        if (trial.root / folder).is_dir():
            trial.guard(trial.root / folder)
    trial.expect(expected, *arguments, out=out, about=about)


def in_place_of(arguments: tuple, name: str, instead: tuple) -> tuple:
    """The command line with one option as given, once."""
    if name in arguments:
        at = arguments.index(name)
        end = at + 1 if at + 1 == len(arguments) or str(arguments[at + 1]).startswith("--") else at + 2
        arguments = arguments[:at] + arguments[end:]
    return (*arguments, *instead)


def with_value(command: str, name: str, value: bytes, glued: bool, trial):
    """An option with a value, behind a blank or an equals sign. Nothing empty is ever meant but a title."""
    put_inputs(trial, command)
    instead = (name.encode() + b"=" + value,) if glued else (name, value)
    expected = Expect.REFUSED if value == b"" and name != "--title" else Expect.EITHER
    about = (name, value[:20].decode(errors="replace"), "dump", "part1", "a")
    judged_run(trial, command, in_place_of(base(command), name, instead), about, expected)


def with_words(command: str, words: tuple, expected: Expect, trial):
    """Words behind a command line that is right."""
    put_inputs(trial, command)
    judged_run(trial, command, (*base(command), *words), expected=expected)


def with_config(command: str, text: bytes, about: tuple, trial):
    """The options of a config file, read beside those of the command line."""
    put_inputs(trial, command)
    (trial.root / "config.toml").write_bytes(text)
    about = ("config.toml", "dump", *about)
    judged_run(trial, command, (*base(command), "--config", "config.toml"), about,
               Expect.EITHER if is_toml(text) else Expect.REFUSED)


def with_key(command: str, name: str, text: str, trial):
    """One line of a config file, with the name of an option in its place."""
    filled = text.format(name[2:], name[2:].upper()).encode() + b"\n"
    with_config(command, filled, (name, name[2:]), trial)


def is_toml(text: bytes) -> bool:
    """Python's opinion; a byte order mark is tolerated by many, and how deep is too deep is a matter of taste."""
    try:
        tomllib.loads(text.removeprefix(b"\xef\xbb\xbf").decode())
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def with_config_instead(command: str, key: str, trial):
    """A config file that is none."""
    put_inputs(trial, command)
    path = trial.root / "config.toml"
    path.write_bytes(b"")
    damage.replace(path, damage.STAND_INS[key])
    expected = Expect.EITHER if key in ("link-to-null", "link-to-proc", "enormous") else Expect.REFUSED
    judged_run(trial, command, (*base(command), "--config", "config.toml"), ("config",), expected)


def with_positional(command: str, value: bytes, trial):
    """Another path in the place of the first one."""
    put_inputs(trial, command)
    verb, _, *rest = base(command)
    safe = command != "synth" or value not in (b"/", b"../../../..", b"1", b"0")
    if safe:
        judged_run(trial, command, (verb, value, *rest), expected=Expect.EITHER)


def cases(bench) -> list:
    """All of the family. The dashboard's options are tried by its own tests."""
    made = {}
    R, E = Expect.REFUSED, Expect.EITHER
    for command in COMMANDS:
        for name, takes in options_of(bench, command):
            here = f"{command}/{name[2:]}"
            if name in ("--help", "--version"):
                continue
            if takes:
                values = VALUES if name != "--out" else {
                    key: value for key, value in VALUES.items() if key not in ("root", "slashes")
                }
                for key, value in values.items():
                    made[f"{here}/{key}"] = functools.partial(with_value, command, name, value, False)
                for key in ("empty", "one", "word", "escapes"):
                    made[f"{here}/glued-{key}"] = functools.partial(with_value, command, name, VALUES[key], True)
                made[f"{here}/missing"] = functools.partial(with_words, command, (name,), R)
                made[f"{here}/twice"] = functools.partial(with_words, command, (name, b"1", name, b"2"), E)
            else:
                made[f"{here}/twice"] = functools.partial(with_words, command, (name, name), E)
                for key in ("empty", "one", "true", "word", "escapes"):
                    made[f"{here}/glued-{key}"] = functools.partial(with_words, command,
                                                                    (name.encode() + b"=" + VALUES[key], ), E)
            made[f"{here}/shortened"] = functools.partial(with_words, command, (name[:-1], b"1"), E)
            for key, text in TOML.items() if name != "--config" else ():
                made[f"{here}/toml-{key}"] = functools.partial(with_key, command, name, text)
        for key, data in FILES.items():
            made[f"{command}/config-file-{key}"] = functools.partial(with_config, command, data, ("--",))
        for key in damage.STAND_INS:
            made[f"{command}/config-file-{key}-instead"] = functools.partial(with_config_instead, command, key)
        for key, value in VALUES.items():
            made[f"{command}/behind/{key}"] = functools.partial(with_words, command, (value,), E)
            made[f"{command}/path/{key}"] = functools.partial(with_positional, command, value)
            made[f"{command}/unknown/{key}"] = functools.partial(with_words, command,
                                                                 (b"--" + value.replace(b"-", b""), ), E)
    made |= {f"command/{key}": functools.partial(as_command, (value,)) for key, value in VALUES.items()}
    return [Case(f"options/{name}", act) for name, act in made.items() if b"\0" not in name.encode()]


def as_command(words: tuple, trial):
    """No command of the program."""
    trial.expect(Expect.REFUSED, *words)

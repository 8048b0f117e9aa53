"""manifest.json and tokens.json: every key by every JSON type and extreme, and the text itself damaged."""

import functools
import json

import damage
import samples
from judge import Expect
from trial import Case, undisturbed

INFO = ("info", "dump", "--json")
TOKENS = samples.command_line("tokens", "out")
ABOUT = ("manifest.json", "tokens.json", "dump", "layer ")
S, R, E = Expect.SAME, Expect.REFUSED, Expect.EITHER

# name -> a value as JSON text
NUMBERS = {
    "zero": "0", "minus-zero": "-0.0", "one": "1", "minus-one": "-1", "two": "2", "half": "0.5", "three-halves": "1.5",
    "int32": "2147483648", "int64-half": "4611686018427387904", "int64": "9223372036854775807",
    "int64-next": "9223372036854775808", "int64-least": "-9223372036854775808", "uint64": "18446744073709551615",
    "uint64-next": "18446744073709551616", "large": "1e308", "minus-large": "-1e308", "beyond": "1e309",
    "digits": "1" + "0" * 400, "tiny": "5e-324", "below": "1e-400", "million": "1000000",
    "million-digits": "1" * 1000000
}
WRONG = {"true": "true", "false": "false", "text": '"1"', "empty-text": '""', "list": "[1]", "empty-list": "[]",
         "object": '{"a": 1}', "empty-object": "{}", "nested": "[" * 60 + "]" * 60, "deep": "[" * 100000 + "]" * 100000,
         "deep-objects": '{"a":' * 100000 + "1" + "}" * 100000, "long-list": "[" + "1," * 300000 + "1]"}
NO_JSON = {
    "nan": "NaN", "infinity": "Infinity", "minus-infinity": "-Infinity", "hex": "0x10", "octal": "010", "plus": "+1",
    "point": ".5", "bare": "1.", "word": "none", "single-quotes": "'1'", "nothing": "", "two": "1 2",
    "comment": "1 /* one */", "open-text": '"1', "control": '"a\x01"', "half-pair": '"\\ud800"',
    "not-utf8": '"\udcff\udcfe"', "nul": '"a\0b"', "open-list": "[1", "comma": "[1,]"
}
TEXTS = {
    "escapes": '"\\u001b]0;owned\\u0007\\u001b[2J"', "lines": '"a\\nb\\r\\nc"', "nul-escape": '"a\\u0000b"',
    "megabyte": '"' + "x" * 1000000 + '"', "wide": '"' + "\U0001f600" * 1000 + '"', "right-to-left": '"\u202eabc"',
    "separator": '"a\u2028b"', "c1": '"a\u009b31mb"', "html": '"<script>alert(1)</script>"',
    "csv": '"a,\\"b\\"\\n=1+1"', "path": '"../../etc/passwd"', "format": '"{} %s %n"'
}

# key -> the value of the sample, and what the values are that a key may have
WHOLE = {"n_layers": "2", "n_q_heads": "4", "n_kv_heads": "2", "head_dim": "8", "total_len": "48"}
KEYS = {
    "model": '"synthetic (seed 1)"', "prompt_len": "40", "scale": "0.35355339059327373", "causal": "true",
    "sliding_window": "null", "logit_softcap": "null", "sink_logit": "null",
    "rope": '{"style": "half", "theta": 10000.0}', "dtype": '"float32"', "incomplete": "false", "rope_note": "null",
    "wo_note": "null", "residual_note": "null", "sliding_window_two_sided": "false", "output_multiplier": "1",
    "cache_of": "[0, 1]", "output_norm": "null", **WHOLE
}
WINDOWS = {"int32", "int64-half", "int64", "million"}  # as long as the dump and longer: full attention
POSITIVE = {"one", "two", "half", "three-halves", "int32", "int64-half", "int64", "int64-next", "uint64", "uint64-next",
            "large", "tiny", "million", "digits"}
ANY_TEXT = set(TEXTS) | {"text", "empty-text"}
MAY_BE = {
    "model": ANY_TEXT | {"half-pair"},
    "rope_note": ANY_TEXT | {"half-pair"},
    "wo_note": ANY_TEXT | {"half-pair"},
    "residual_note": ANY_TEXT | {"half-pair"},
    "sliding_window_two_sided": {"false"},
    "output_multiplier": POSITIVE | {"minus-one", "minus-large", "int64-least", "list"},
    "prompt_len": {"one", "two"},
    "scale": POSITIVE,
    "logit_softcap": POSITIVE,
    "causal": {"true", "false"},
    "incomplete": {"false"},
    "sliding_window": {"one", "two", "int64-next", "uint64", "uint64-next"},
}
PER_LAYER = {
    "sliding_window": {
        "[null, null]": S, "[48, 48]": S, "[4, null]": E, "[9223372036854775807, null]": S, "[4]": R, "[4, 4, 4]": R,
        "[0, 4]": R, "[-1, 4]": R, "[4.5, 4]": R, '["4", 4]': R, "[[4], [4]]": R, "[true, 4]": R
    },
    "sink_logit": {
        "[null, null]": S, "[[0,0,0,0],[0,0,0,0]]": E, "[[-1e308,0,0,0],null]": E, "[[1e308,0,0,0],null]": E,
        "[[100,100,100,100],null]": E, "[[0,0,0],[0,0,0]]": R, "[[0,0,0,0]]": R, "[[0,0,0,0,0],null]": R,
        '[["0",0,0,0],null]': R, "[[null,0,0,0],null]": R, "[[NaN,0,0,0],null]": R, "[[1e999,0,0,0],null]": R,
        "[[],[]]": R, "[0,0]": R, "[[[0]],null]": R
    },
    "rope": {
        '{"style": "half"}': R, '{"theta": 10000.0}': R, '{"style": "HALF", "theta": 1}': R,
        '{"style": 1, "theta": 1}': R, '{"style": "half", "theta": 0}': R, '{"style": "half", "theta": -1}': R,
        '{"style": "half", "theta": 1e308}': E, '{"style": "half", "theta": 5e-324}': E,
        '{"style": "half", "theta": "1"}': R, '{"style": "half", "theta": NaN}': R,
        '{"style": "half", "theta": 10000.0, "rotary_dim": 8}': S,
        '{"style": "half", "theta": 10000.0, "rotary_dim": 7}': R,
        '{"style": "half", "theta": 10000.0, "rotary_dim": 0}': R,
        '{"style": "half", "theta": 10000.0, "rotary_dim": 10}': R,
        '{"style": "half", "theta": 10000.0, "rotary_dim": 9223372036854775806}': R,
        '{"style": "half", "theta": 10000.0, "attention_factor": 0}': R,
        '{"style": "half", "theta": 10000.0, "attention_factor": 1e308}': E,
        '{"style": "half", "theta": 10000.0, "attention_factor": 1}': S, '{"style": "half", "inv_freq": []}': R,
        '{"style": "half", "inv_freq": [1]}': E, '{"style": "half", "inv_freq": [1,1,1,1,1]}': R,
        '{"style": "half", "inv_freq": [[1,1,1,1]]}': R, '{"style": "half", "inv_freq": [[1,1,1,1],[0,0,0,0]]}': E,
        '{"style": "half", "inv_freq": [-1,1,1,1]}': E, '{"style": "half", "inv_freq": [1e308,1,1,1]}': E,
        '{"style": "half", "inv_freq": [null,1,1,1]}': R, '{"style": "half", "inv_freq": {"a": 1}}': R,
        '{"style": "interleaved", "theta": 10000.0}': E, '{"style": "half", "theta": 10000.0, "scaling": null}': S,
        '{"style": "half", "theta": 10000.0, "scaling": "x"}': E,
        '{"style": "half", "theta": 10000.0, "scaling": {"rope_type": "\\u001b[2J"}}': E,
        '{"style": "half", "theta": 10000.0, "x": [[[]]]}': R, '{"style": "half", "theta": 1, "theta": 10000.0}': R
    },
    # the files' own type holds, with a note
    "dtype": {
        '"float32"': S, '"bfloat16"': E, '"float16"': E, '"float64"': E, '"int8"': R, '"FLOAT32"': R, '"\\u001b[2J"': R
    },
    "cache_of": {"[null, null]": S, "[0, 0]": E, "[0]": R, "[1, 1]": R, "[0, 2]": R, "[0, -1]": R, "[0, 0.0]": E,
                 '["0", 1]': R, "[[0], 1]": R},
    "output_norm": {
        '{"kind": "rms", "eps": 1e-05}': E, '{"kind": "rms", "eps": 5e-324}': E, '{"kind": "rms", "eps": 1e308}': E,
        '{"eps": 1, "kind": "rms"}': E, '{"kind": "rms"}': R, '{"eps": 1e-05}': R, '{"kind": null, "eps": 1}': R,
        '{"kind": "RMS", "eps": 1}': R, '{"kind": "layer", "eps": 1}': R, '{"kind": ["rms"], "eps": 1}': R,
        '{"kind": "rms", "eps": 0}': R, '{"kind": "rms", "eps": -1}': R, '{"kind": "rms", "eps": 1e999}': R,
        '{"kind": "rms", "eps": NaN}': R, '{"kind": "rms", "eps": [1, 1]}': R, '{"kind": "rms", "eps": true}': R,
        '{"kind": "rms", "eps": 1, "weight": [1]}': R, '{"kind": "rms", "kind": "rms", "eps": 1}': R,
        '[{"kind": "rms", "eps": 1}, null]': R
    },
    "output_multiplier": {"[1, 1]": S, "[1, 2, 3]": R, "[1, 0]": R, "[]": R, "[1e999, 1]": R, "[null, 1]": R},
    "prompt_len": {"40": S, "48": E, "49": R, "47": E, "40.0": E, "4e1": E, "-40": R},
}


def values_of(key: str) -> dict:
    """name -> (JSON text, expectation) of every value tried for a key."""
    may = MAY_BE.get(key, set())
    made = {"null": ("null", E if KEYS.get(key, "null") != "null" else S), "same": (KEYS[key], S)}
    for name, text in (NUMBERS | WRONG | TEXTS).items():
        expected = E if name in may else R
        if key == "sliding_window" and name in WINDOWS:
            expected = S
        if key in WHOLE and float(KEYS[key]) == (float(text) if name in NUMBERS and len(text) < 300 else None):
            expected = S
        made[name] = (text, S if key == "rope_note" else expected)  # read only where there is no rope
    made |= {name: (text, E if name in may else R) for name, text in NO_JSON.items()}
    return made | {f"of-its-own-{i}": pair for i, pair in enumerate(PER_LAYER.get(key, {}).items())}


def manifest(**changes) -> str:
    """The manifest with some keys as given, in JSON text."""
    return "{" + ", ".join(f'"{key}": {value}' for key, value in (KEYS | changes).items()) + "}"


def encoded(text: str) -> bytes:
    """UTF-8, but for the bytes that a text stands for that is none."""
    return text.encode("utf8", "surrogateescape")


def wholes() -> dict:
    """name -> (contents of the file, expectation): the text as such."""
    sound = manifest()
    made = {
        "empty": ("", R), "blank": (" \n", R), "null": ("null", R), "list": ("[]", R), "number": ("1", R),
        "text": ('"a"', R), "object": ("{}", E), "two-objects": (sound + sound, R), "behind": (sound + "x", R),
        "nul-behind": (sound + "\0", R), "brace-behind": (sound + "}", R), "blank-behind": (sound + "\n\n", S),
        "nuls-behind": (sound + "\0" * 4096, R), "bom": ("\ufeff" + sound, E), "comment": ("// c\n" + sound, R),
        "trailing-comma": (sound[:-1] + ",}", R), "single-quotes": (sound.replace('"', "'"), R),
        "unknown-key": (sound[:-1] + ', "x": [1, {"y": null}]}', E), "empty-key": (sound[:-1] + ', "": 1}', E),
        "unknown-text": (sound[:-1] + ', "x": "y"}', S),
        "escaped-key": (sound.replace('"scale"',
                                      '"\\u0073cale"'), S), "long-key": (sound[:-1] + ', "' + "k" * 10**6 + '": 1}',
                                                                         E), "key-no-text": (sound[:-1] + ", 1: 1}", R),
        "keys": (sound[:-1] + "".join(f', "k{i}": 0' for i in range(100000)) + "}",
                 E), "deep": ("[" * 10**6, R), "deep-objects": ('{"a":' * 10**6, R),
        "deep-unknown": (sound[:-1] + ', "x": ' + "[" * 10**5 + "]" * 10**5 + "}",
                         E), "escape-in-key": (sound[:-1] + ', "\\u001b[2J": 1}',
                                               E), "utf16": ("", R), "newlines": (sound.replace(" ", "\n"), S)
    }
    made |= {f"twice-{key}": (sound[:-1] + f', "{key}": {value}' + "}", R) for key, value in KEYS.items()}
    made |= {f"twice-other-{key}": (f'{{"{key}": null, ' + sound[1:], R) for key in KEYS}
    found = {name: (encoded(text), expected) for name, (text, expected) in made.items()}
    found["utf16"] = (sound.encode("utf16"), R)
    found |= {f"cut-{n}": (sound[:n].encode(), R) for n in range(1, len(sound), 9)}
    return found | {name: (data, R) for name, data in damage.replacements(sound.encode()).items() if name != "json"}


def labels() -> dict:
    """tokens.json: name -> (contents, expectation). Labels never change a figure."""
    ids, text = json.dumps(list(range(48))), json.dumps([f"t{i}" for i in range(48)])
    whole = '{"ids": %s, "text": %s}'
    made = {
        "no-text": ('{"ids": %s}' % ids, E), "no-ids": ('{"text": %s}' % text, E), "empty": ("{}", E),
        "nulls": (whole % ("null", "null"), E), "short-ids": (whole % ("[1]", text), R),
        "short-text": (whole % (ids, '["a"]'), R), "ids-text": (whole % (text, text), R),
        "text-ids": (whole % (ids, ids), R), "object-ids": (whole % ("{}", text),
                                                            R), "ids-real": (whole % (ids[:-3] + "7.5]", text), R),
        "ids-large": (whole % (ids[:-3] + "9223372036854775808]", text),
                      E), "ids-beyond": (whole % (ids[:-3] + "1" * 50 + "]", text),
                                         E), "deep": (whole % ("[" * 10**5 + "]" * 10**5, text), R),
        "behind": (whole % (ids, text) + "x", R), "twice": ('{"ids": [], "ids": %s}' % ids, R), "list": ("[]", R),
        "nothing": ("", R), "nested": (whole % (ids, "[" + "[1]," * 47 + "[1]]"), R)
    }
    made |= {
        f"text-{name}": (whole % (ids, "[" + ",".join([value] * 48) + "]"), E)
        for name, value in TEXTS.items()
        if name != "megabyte"
    }
    made |= {f"text-bad-{name}": (whole % (ids, "[" + ",".join([value] * 48) + "]"), E if name == "half-pair" else R)
             for name, value in NO_JSON.items() if value.startswith('"')}
    return {name: (encoded(value), expected) for name, (value, expected) in made.items()}


def with_file(name: str, data: bytes, expected: Expect, arguments: tuple, trial):
    """The dump with another manifest.json or tokens.json."""
    samples.put_dump(trial)
    (trial.root / "dump" / name).write_bytes(data)
    trial.guard(trial.root / "dump")
    judged_run(trial, expected, arguments)


def with_broken(key: str, trial):
    """What is no manifest of the dump, and the line that says so."""
    samples.put_dump(trial)
    data, line = damage.broken("manifest")[key]
    (trial.root / "dump/manifest.json").write_bytes(data)
    trial.expect_line(("manifest.json: ", *line), *INFO)


def with_value(key: str, text: str, expected: Expect, arguments: tuple, trial):
    """The dump with one key of its manifest as given."""
    with_file("manifest.json", encoded(manifest(**{key: text})), expected, arguments, trial)


def put_plain(trial):
    """The dump with the keys of KEYS and no others."""
    samples.put_dump(trial)
    (trial.root / "dump/manifest.json").write_text(manifest())


def judged_run(trial, expected: Expect, arguments: tuple):
    """Against the dump with a sound manifest of the same keys."""
    if arguments == INFO:  # which says what it read: the results of tokens are what shows whether it matters
        trial.expect(E if expected is S else expected, *arguments, about=ABOUT)
    else:
        trial.expect(expected,
                     *arguments,
                     out="out",
                     want=undisturbed(trial.bench, put_plain, arguments, "out"),
                     about=ABOUT)


def with_flips(name: str, number: int, arguments: tuple, trial):
    """Random bits of the file the other way round: often no JSON, sometimes another sound manifest."""
    put_plain(trial)
    path = trial.root / "dump" / name
    data = path.read_bytes()
    for _ in range(1 + number % 3):
        data = damage.flipped(data, trial.random.randrange(8 * len(data)))
    path.write_bytes(data)
    judged_run(trial, E if readable(data) else R, arguments)


def readable(data: bytes) -> bool:
    """Whether Python reads it as an object of UTF-8."""
    try:
        return isinstance(json.loads(data.decode("utf8")), dict)
    except ValueError:
        return False


def with_stand_in(name: str, key: str, arguments: tuple, trial):
    """Something else in the place of the file."""
    put_plain(trial)
    damage.replace(trial.root / "dump" / name, damage.STAND_INS[key])
    judged_run(trial, E if key == "removed" else R, arguments)


def cases(bench) -> list:
    """All of the family."""
    runs = {"info": INFO, "tokens": TOKENS}
    made = {}
    for key in KEYS:
        for name, (text, expected) in values_of(key).items():
            verbs = ("info",) if expected is R else runs  # what info refuses, all commands refuse
            for verb in verbs:
                made[f"{verb}/{key}/{name}"] = functools.partial(with_value, key, text, expected, runs[verb])
    for name in damage.broken("manifest"):
        made[f"info/manifest.json/broken-{name}"] = functools.partial(with_broken, name)
    for file, contents in ("manifest.json", wholes()), ("tokens.json", labels()):
        for verb, arguments in runs.items():
            for name, (data, expected) in contents.items():
                if file == "manifest.json" or verb == "info" or expected is not E:
                    made[f"{verb}/{file}/{name}"] = functools.partial(with_file, file, data, expected, arguments)
            for name in damage.STAND_INS:
                made[f"{verb}/{file}/{name}-instead"] = functools.partial(with_stand_in, file, name, arguments)
            for i in range(60):
                made[f"{verb}/{file}/flip-{i}"] = functools.partial(with_flips, file, i, arguments)
    return [Case(f"manifests/{name}", act) for name, act in made.items()]

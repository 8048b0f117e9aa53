"""The small dumps and result folders that cases start from, made once by the program itself."""

import functools
import resource

import tree
from process import Conditions
from trial import Trial, made_by

SHAPE = ("--layers", "2", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "8", "--prompt", "40", "--decode", "8")
QUIET = ("--threads", "1", "--quiet")

# Result folders by the tables that they hold: the arguments behind "dump --out DIR".
RESULTS = {
    "tokens": ("--metrics", "attn,fastcaote,exact_remove,oracle_future"),
    "evict": ("--policy", "snapkv", "--sigma", "0.5", "--phase", "prefill,decode"),
    "budget": ("--order", "snapkv", "--method", "uniform,lu", "--sigma", "0.5"),
    "channels": ("--method", "think", "--ratio", "0.5"),
}


def nothing(_: Trial):
    """What a run reads that reads nothing."""


def dump(bench, seed="1") -> dict:
    """A dump of 2 layers, 4 query heads on 2 KV heads, 48 positions."""
    return made_by(bench, nothing, ("synth", "dump", *SHAPE, "--seed", seed, "--quiet"), "dump")


def put_dump(trial: Trial):
    """The dump, as `dump`."""
    trial.put(dump(trial.bench), "dump")


def command_line(command: str, out: str, source="dump") -> tuple:
    """The run that writes a result folder of RESULTS."""
    return (command, source, "--out", out, *RESULTS[command], *QUIET)


def result(bench, command: str) -> dict:
    """A finished result folder."""
    return made_by(bench, put_dump, command_line(command, "result"), "result")


def part(bench, command: str, number: int) -> dict:
    """Part `number` of two."""
    return made_by(bench, put_dump, (*command_line(command, "part"), "--shard", f"{number}/2"), "part")


@functools.lru_cache(maxsize=None)
def unfinished(bench, command: str) -> dict:
    """A result folder as a run leaves it whose disk was full when it came to the tables: all layers are there."""
    best = {}
    for limit in (400, 600, 900, 1400, 2000, 3000, 5000, 8000, 16000):
        trial = Trial(bench, "unfinished", "unfinished")
        put_dump(trial)
        outcome = trial.run(*command_line(command, "result"),
                            conditions=Conditions(limits={resource.RLIMIT_FSIZE: limit}))
        if outcome.status == 2 and len(found := tree.read(trial.root / "result")) > len(best):
            best = found
    return best

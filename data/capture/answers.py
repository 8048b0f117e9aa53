"""Whether a model still answers a dump's question rightly over a changed cache, for kvvalidate.py: answers.csv.

The decoding steps end with the answer that the model gave with its whole cache, which is right. Where each of its tokens is
still the likeliest behind those before it, greedy decoding gives the same answer. Elsewhere the model goes on by itself from the
first one that is not, and what it says is scored.
"""
from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np
import torch

from answer_tasks import score, stays_right
from changed_cache import Change
from dump_files import require
from model_loop import Fed, ModelLoop

# Of a case. right and score are empty where the model would have to go on over a cache that only the dump's steps decide.
COLUMNS = ("right", "score", "first_other", "nll", "margin", "kl_question", "kl_answer", "needles_kept", "needles_anywhere", "answer")


class Question(NamedTuple):
    """What the manifest's `task` says, as far as answers are judged by it."""

    name: str
    references: Sequence[str]
    answer: tuple[int, int]  # positions
    needles: Sequence[tuple[int, int]]
    longest: int

    @staticmethod
    def of(manifest: Mapping[str, Any], where: str) -> Question | None:
        """None where a dump is of no question."""
        task = manifest.get("task")
        if task is None:
            return None
        try:
            spans = task["spans"]
            found = Question(str(task["name"]), [str(x) for x in task["references"]], tuple(map(int, spans["answer"])),
                             [tuple(map(int, span)) for span in spans["needles"]], int(task["longest"]))
            good = found.references and 0 < found.answer[0] < found.answer[1] == manifest["total_len"]
        except (KeyError, TypeError, ValueError, IndexError):
            good = False
        require(good, f"{where}: task", "what kvcapture.py --task writes", task)
        return found


class GoesOn(NamedTuple):
    """A case whose answer differs from a token on, and where to go on from."""

    found: dict[str, Any]
    text: Fed
    said: list[int]


class Judge:
    """Judges the cases of one dump, whose decoding steps were fed to the loop."""

    def __init__(self, question: Question, loop: ModelLoop, ids: Sequence[int], l: int, tokenizer: Any):
        self.question, self.loop, self.ids, self.l, self.tokenizer = question, loop, ids, l, tokenizer
        begin, end = question.answer
        require(begin >= l, "the prompt", f"to end where the answer begins, at position {begin}, or before", f"{l} tokens")
        self.begin = max(begin, l + 1)  # behind a prompt without `prefix` the answer's first token is predicted by the prompt itself
        self.rows = slice(self.begin - 1 - l, end - 1 - l)  # whose predictions are the answer
        self.given = torch.tensor(ids[self.begin : end], dtype=torch.long)
        self.unfinished: list[GoesOn] = []

    def judge(self, changes: Mapping[int, Change] | None, logits: torch.Tensor, kl: np.ndarray,
              n_kv: Callable[[int], int]) -> dict[str, Any]:
        """By COLUMNS, of the case that was fed last, whose steps have these logits and this KL; changes: None where caches
        changed by themselves. Of one that the model has to go on with, the answer is there once finish() was called."""
        rows = logits[self.rows].double().cpu()
        logp, at = rows.log_softmax(-1), torch.arange(len(rows))
        mine = rows[at, self.given]
        others = rows.clone()
        others[at, self.given] = -torch.inf
        # Of equal logits the lower id is taken, as argmax does.
        chosen, begin = rows.argmax(-1), self.question.answer[0]
        differs = torch.nonzero(chosen != self.given)[:1, 0].tolist()
        before = kl[: self.rows.start]
        found = dict.fromkeys(COLUMNS)
        found["kl_question"] = float(before.mean()) if len(before) else None
        if len(rows):
            found |= {"first_other": self.begin - begin + differs[0] if differs else None, "nll": -float(logp[at, self.given].mean()),
                      "margin": float((mine - others.max(-1).values).min()), "kl_answer": float(kl[self.rows].mean())}
        if not differs:
            self._score(found, self.ids[slice(*self.question.answer)])
        elif self.loop.fed is not None and all(map(can_go_on, (changes or {}).values())):
            first = self.begin + differs[0]
            self.loop.fed.cut(first)
            self.unfinished.append(GoesOn(found, self.loop.fed, [*self.ids[begin:first], int(chosen[differs[0]])]))
        if changes is not None:
            found |= self._needles(changes, n_kv)
        return found

    def held(self) -> int:
        """Bytes of the caches of cases that the model has to go on with."""
        return sum(case.text.size for case in self.unfinished)

    def finish(self) -> None:
        """Goes on with all cases that differ."""
        said = [case.said for case in self.unfinished]
        self.loop.generate([case.text for case in self.unfinished], said, lambda number: self._ended(said[number]))
        for case in self.unfinished:
            self._score(case.found, case.said)
        self.unfinished = []

    def _ended(self, said: list[int]) -> bool:
        """Nothing behind it would change its score."""
        if said[-1] in self.tokenizer.ends or len(said) >= self.question.longest:
            return True
        return stays_right(self.tokenizer.join(said), self.question.references)

    def _score(self, found: dict[str, Any], said: Sequence[int]) -> None:
        text = self.tokenizer.join([i for i in said if i not in self.tokenizer.ends])
        found["score"] = score(text, self.question.references)
        found |= {"right": int(found["score"] == 1), "answer": text}

    def _needles(self, changes: Mapping[int, Change], n_kv: Callable[[int], int]) -> dict[str, float]:
        """The share of the heads that hold all tokens of all needles, and of the needles those that some head holds."""
        spans = [span for span in self.question.needles if span[1] <= self.l]
        if not spans:
            return {}
        whole, anywhere = [], np.zeros(len(spans), bool)
        for layer, change in changes.items():
            kept = change.kept if change.last is None else change.last[:, : self.l] >= self.l
            kept = np.ones((n_kv(layer), self.l), bool) if kept is None else kept
            held = np.array([kept[:, begin:end].all(1) for begin, end in spans])  # [needles, heads]
            whole += list(held.all(0))
            anywhere |= held.any(1)
        return {"needles_kept": float(np.mean(whole)), "needles_anywhere": float(anywhere.mean())}


def can_go_on(change: Change) -> bool:
    """Whether steps that the dump does not have see what this leaves of the prompt."""
    return change.last is None and change.read is None

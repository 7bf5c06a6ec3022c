"""The trials of a tuner: run by workers, kept in the journal, never run twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
import functools

from kbr_localization.localization.tuning.folds import fingerprint, Fold
from kbr_localization.localization.tuning.journal import digest, Journal, Record
from kbr_localization.localization.tuning.score import run_trial
from kbr_localization.localization.tuning.space import Values
from kbr_localization.progress import Progress
from kbr_localization.resources import code_state
from kbr_localization.workers import Workers


@dataclass
class Study:
    """Trials on the same folds, those that the journal remembers included."""

    folds: Sequence[Fold]
    seed: int
    workers: Workers
    journal: Journal
    report: Progress
    _data: str = field(init=False)
    _counted: tuple[str, int, int] = ('', 0, 0)

    def __post_init__(self) -> None:
        base = self.folds[0].maps[0]
        settings = [asdict(base.filter_config), base.baselines, code_state()]
        self._data = digest([fingerprint(self.folds), settings, self.seed])

    def score(self, method: str, candidates: Sequence[Values], rung: int) -> list[Record]:
        """Look the candidates' records up in the journal, or run them."""
        keys = [digest([self._data, method, values, rung]) for values in candidates]
        missing = {
            key: values
            for key, values in zip(keys, candidates, strict=True)
            if key not in self.journal.records
        }
        self._advance(len(candidates) - len(missing))
        for key, record in self._run(method, missing, rung):
            self.journal.add(key, {'method': method, 'rung': rung, **record})
            self._advance(1)
        return [self.journal.records[key] for key in keys]

    def start(self, method: str, total: int) -> None:
        """Begin to count `total` evaluations of a method."""
        self._counted = (f'tuning {method}', 0, total)
        self._advance(0)

    def finish(self) -> None:
        """Report that all is done: candidates that came up twice were counted once."""
        self._advance(self._counted[2])

    def _run(
        self, method: str, missing: dict[str, Values], rung: int
    ) -> Iterator[tuple[str, Record]]:
        work = functools.partial(_run_trial, self.folds, method, rung, self.seed)
        keys = list(missing)
        for number, record in self.workers.run(work, list(missing.values())):
            yield keys[number], record

    def _advance(self, count: int) -> None:
        what, done, total = self._counted
        self._counted = (what, min(done + count, total), total)
        self.report(*self._counted)


def _run_trial(folds: Sequence[Fold], method: str, rung: int, seed: int, values: Values) -> Record:
    return {'values': values, **run_trial(folds, method, values, rung, seed)}

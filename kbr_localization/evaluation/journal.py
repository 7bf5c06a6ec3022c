"""Results that go to a file as soon as they are there, so that stopped work continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from kbr_localization.errors import EvaluationError
from kbr_localization.files import claim
from kbr_localization.workers import Work, Workers

Run = Callable[[Work, Sequence[Any], Workers, Callable[[int], None]], list[Any]]


@contextmanager
def kept_results(path: Path | None, conditions: Any, fresh: bool = False) -> Iterator[Run]:
    """
    Give a function that does tasks and keeps their results in a file of JSON lines.

    `conditions`: what all results depend on beside their task. Results of the same conditions and
    task are taken from the file, unless `fresh`; all values are those of JSON. The function
    returns the results in the order of the tasks, and reports how many are done. Without a
    `path` nothing is kept. Raises EvaluationError when another process has the file.
    """
    with path.open('a+b') if path else TemporaryFile() as file:
        in_use = f'{path} is in use by another process: wait for it, or write elsewhere'
        claim(file, EvaluationError(in_use))
        if fresh:
            file.truncate(0)
        known = _read(file)

        def run(
            work: Work, tasks: Sequence[Any], workers: Workers, report: Callable[[int], None]
        ) -> list[Any]:
            texts = [json.dumps([conditions, task]) for task in tasks]
            keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
            missing = {k: t for k, t in zip(keys, tasks, strict=True) if k not in known}
            done, new = len(keys) - len(missing), list(missing)
            for number, result in workers.run(work, list(missing.values())):
                known[new[number]] = result
                file.write(json.dumps({'key': new[number], 'result': result}).encode() + b'\n')
                file.flush()
                done += 1
                report(done)
            return [known[key] for key in keys]

        yield run


def _read(file: BinaryIO) -> dict[str, Any]:
    """Read the results in a file; lines that are damaged are left out, one cut off is ended."""
    file.seek(0)
    data, found = file.read(), {}
    for text in data.split(b'\n'):
        with suppress(ValueError, TypeError, KeyError):
            line = json.loads(text)
            found[line['key']] = line['result']
    if data and not data.endswith(b'\n'):
        file.write(b'\n')
    return found

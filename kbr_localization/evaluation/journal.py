"""A journal of results, from which interrupted work continues."""

from collections.abc import Sequence
from contextlib import suppress
import hashlib
import json
from pathlib import Path
import pickle
from typing import Any

from kbr_localization.progress import report
from kbr_localization.workers import run_tasks, Work


def digest(*conditions: Any) -> str:
    """Return a hash of the conditions that results depend on and of the code of this package."""
    package = Path(__file__).parents[1]
    paths = sorted(package.rglob('*.py'))
    code = [(path.relative_to(package).as_posix(), path.read_bytes()) for path in paths]
    return hashlib.sha256(pickle.dumps([code, *conditions])).hexdigest()


def run_once(
    what: str, path: Path, conditions: str, work: Work, tasks: Sequence[Any]
) -> list[Any]:
    """
    Run tasks, append their results to a file of JSON lines, and return them in order.

    A task is not run again if the file has its result under the same `conditions`, a `digest`.
    Tasks and results are JSON values. `what` names the work in the progress.
    """
    keys, known = [json.dumps([conditions, task]) for task in tasks], dict[str, Any]()
    with path.open('a+', encoding='utf-8', errors='replace') as file:
        file.seek(0)
        text = file.read()
        for line in text.splitlines():
            with suppress(ValueError, TypeError):  # a damaged line
                *key, result = json.loads(line)
                known[json.dumps(key)] = result
        if text and not text.endswith('\n'):  # the last line was cut off
            file.write('\n')
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in known}
        before, results = len(keys) - len(missing), run_tasks(work, list(missing.values()))
        for done, (key, result) in enumerate(zip(missing, results, strict=True), before + 1):
            known[key] = result
            file.write(json.dumps([conditions, missing[key], result]) + '\n')
            file.flush()
            report(what, done, len(tasks))
    return [known[key] for key in keys]

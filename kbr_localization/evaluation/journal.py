"""Results that go to a file as soon as they are there, so that stopped work continues."""

from collections.abc import Sequence
from contextlib import suppress
import hashlib
import json
from pathlib import Path
from typing import Any

from kbr_localization.progress import report
from kbr_localization.workers import run_tasks, Work


def run_kept(
    what: str, path: Path, conditions: Any, work: Work, tasks: Sequence[Any]
) -> list[Any]:
    """
    Do tasks, each once, and append their results to a file of JSON lines.

    A result that the file has of the same task and `conditions` (what all results depend on beside
    their task) is taken from there. All values are those of JSON. Progress is reported as `what`.
    Returns the results in the order of the tasks.
    """
    digest = hashlib.sha256(json.dumps(conditions).encode()).hexdigest()
    keys, known = [json.dumps([digest, task]) for task in tasks], dict[str, Any]()
    with path.open('a+', encoding='utf-8', errors='replace') as file:
        file.seek(0)
        text = file.read()
        for line in text.splitlines():
            with suppress(ValueError, TypeError):  # damaged
                *key, result = json.loads(line)
                known[json.dumps(key)] = result
        if text and not text.endswith('\n'):  # cut off
            file.write('\n')
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in known}
        before, results = len(keys) - len(missing), run_tasks(work, list(missing.values()))
        for done, (key, result) in enumerate(zip(missing, results, strict=True), before + 1):
            known[key] = result
            file.write(json.dumps([digest, missing[key], result]) + '\n')
            file.flush()
            report(what, done, len(tasks))
    return [known[key] for key in keys]

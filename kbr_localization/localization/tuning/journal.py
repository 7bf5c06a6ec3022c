"""What a tuner has tried, in a file beside its output, so that it can go on after a stop."""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from kbr_localization.errors import LocalizationError
from kbr_localization.files import claim, read_json_lines

Record = dict[str, Any]

_IN_USE = 'is in use: another process is tuning this map; wait for it, or write to another file'


def digest(description: Any) -> str:
    """Hash of plain values, the same in every process."""
    text = json.dumps(description, sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """
    Finished trials as JSON lines, each under the hash of all that its result depends on.

    A line is written at once and synced: a killed process leaves at most one cut line, which is
    left out when the file is read. While a journal is open no other process can open it. Without
    a path it is kept in memory alone. Raises LocalizationError for a file that cannot be used.
    """

    def __init__(self, path: Path | None, fresh: bool = False) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        self._file = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open('a+b')
            claim(self._file, LocalizationError(f'{path} {_IN_USE}'))
            if fresh:
                self._file.truncate(0)
            self._read(self._file)
        except LocalizationError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise LocalizationError(
                f'cannot write the trials to {path}: {error.strerror or error}'
            ) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others use the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep the result of a trial."""
        self.records[key] = dict(record)
        if self._file is not None:
            line = json.dumps({'key': key, **record}) + '\n'
            self._file.write(line.encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self, file: BinaryIO) -> None:
        for record in read_json_lines(file):
            try:
                self.records[record.pop('key')] = record
            except (KeyError, AttributeError, TypeError):
                continue  # not ours

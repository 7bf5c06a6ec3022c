"""HTML pages from the templates of this room."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from kbr_localization.errors import EvaluationError
from kbr_localization.files import write_text


def write_page(path: str | Path, template: str, place: str, content: str) -> None:
    """
    Write a template with its content at a place that it has once.

    Raises OSError when that fails, EvaluationError for a damaged template.
    """
    file = resources.files('kbr_localization.evaluation').joinpath(template)
    page = file.read_text(encoding='utf-8')
    if page.count(place) != 1:
        raise EvaluationError(f'{template} is damaged: install the package again')
    write_text(path, page.replace(place, content))

"""Trajectories against their reference: association, metrics, files, reports."""

from kbr_localization.evaluation.metrics import (
    associate,
    reference_trajectory,
    run_errors,
    run_metrics,
    RunErrors,
    TOLERANCE_S,
)
from kbr_localization.evaluation.tum import read_tum, write_tum

__all__ = [
    'TOLERANCE_S',
    'RunErrors',
    'associate',
    'read_tum',
    'reference_trajectory',
    'run_errors',
    'run_metrics',
    'write_tum',
]

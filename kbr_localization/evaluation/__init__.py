"""Trajectories against their reference: association, metrics, files, reports."""

from kbr_localization.evaluation.metrics import (
    associate,
    coverage,
    reference_trajectory,
    run_errors,
    run_metrics,
    RunErrors,
    sharpness,
    TOLERANCE_S,
)
from kbr_localization.evaluation.tum import read_tum, write_tum

__all__ = [
    'TOLERANCE_S',
    'RunErrors',
    'associate',
    'coverage',
    'read_tum',
    'reference_trajectory',
    'run_errors',
    'run_metrics',
    'sharpness',
    'write_tum',
]

"""Trajectories against their reference: association, metrics, files, reports."""

from kbr_localization.evaluation.association import associate, reference_trajectory, TOLERANCE_S
from kbr_localization.evaluation.metrics import (
    coverage,
    run_errors,
    run_metrics,
    RunErrors,
    sharpness,
)
from kbr_localization.evaluation.retrieval import recall_at
from kbr_localization.evaluation.tum import read_tum, write_tum

__all__ = [
    'TOLERANCE_S',
    'RunErrors',
    'associate',
    'coverage',
    'read_tum',
    'recall_at',
    'reference_trajectory',
    'run_errors',
    'run_metrics',
    'sharpness',
    'write_tum',
]

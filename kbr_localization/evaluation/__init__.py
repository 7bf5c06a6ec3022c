"""Errors of trajectories against reference poses, their files, and reports."""

from kbr_localization.evaluation.metrics import reference_trajectory, run_errors, run_metrics
from kbr_localization.evaluation.tum import read_tum, write_tum

__all__ = ['read_tum', 'reference_trajectory', 'run_errors', 'run_metrics', 'write_tum']

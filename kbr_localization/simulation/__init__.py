"""Rendered runs through a building that exists only in memory; others import from here."""

from kbr_localization.simulation.floor_plan import CELL, draw_plan, FloorPlan
from kbr_localization.simulation.robot import random_robot, Robot
from kbr_localization.simulation.run import (
    BuildingConfig,
    DEMO_RUNS,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
    write_building,
)

__all__ = [
    'CELL',
    'DEMO_RUNS',
    'BuildingConfig',
    'FloorPlan',
    'Robot',
    'RunConfig',
    'SyntheticBuilding',
    'SyntheticRun',
    'draw_plan',
    'random_robot',
    'with_robots',
    'write_building',
]

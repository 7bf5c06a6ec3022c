"""Rendered runs through a building that exists only in memory; others import from here."""

from kbr_localization.datasets.odometry_noise import OdometryNoise
from kbr_localization.simulation.floor_plan import CELL, FloorPlan, PlanBuilder
from kbr_localization.simulation.light import Light, LIGHTS
from kbr_localization.simulation.robot import Drive, random_robot, Robot, RobotCamera
from kbr_localization.simulation.run import (
    BuildingConfig,
    DEMO_RUNS,
    plan_drive,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
    write_building,
)

__all__ = [
    'CELL',
    'DEMO_RUNS',
    'LIGHTS',
    'BuildingConfig',
    'Drive',
    'FloorPlan',
    'Light',
    'OdometryNoise',
    'PlanBuilder',
    'Robot',
    'RobotCamera',
    'RunConfig',
    'SyntheticBuilding',
    'SyntheticRun',
    'plan_drive',
    'random_robot',
    'with_robots',
    'write_building',
]

"""Rendered runs through a building that exists only in memory; others import from here."""

# flake8: noqa: F401
from kbr_localization.simulation.floor_plan import CELL as CELL
from kbr_localization.simulation.floor_plan import draw_plan as draw_plan
from kbr_localization.simulation.floor_plan import FloorPlan as FloorPlan
from kbr_localization.simulation.robot import random_robot as random_robot
from kbr_localization.simulation.robot import Robot as Robot
from kbr_localization.simulation.run import BuildingConfig as BuildingConfig
from kbr_localization.simulation.run import DEMO_RUNS as DEMO_RUNS
from kbr_localization.simulation.run import RunConfig as RunConfig
from kbr_localization.simulation.run import SyntheticBuilding as SyntheticBuilding
from kbr_localization.simulation.run import SyntheticRun as SyntheticRun
from kbr_localization.simulation.run import with_robots as with_robots
from kbr_localization.simulation.run import write_building as write_building

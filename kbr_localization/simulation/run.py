"""Rendered runs through a building with look-alike places; seeds determine everything."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
import functools
import math
from pathlib import Path

import cv2
from kbr_localization import se2
from kbr_localization.datasets.cold import RENDERING_FILE, write_cold_run
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack
from kbr_localization.datasets.odometry_noise import reported_track
from kbr_localization.datasets.run_folder import new_folder
from kbr_localization.files import json_text, write_text
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import light as lighting
from kbr_localization.simulation import sprites
from kbr_localization.simulation.floor_plan import FloorPlan, office
from kbr_localization.simulation.light import FloatGrid, Light, LIGHTS, Pixels
from kbr_localization.simulation.renderer import Atlas, cast_rays
from kbr_localization.simulation.robot import drive_along, RATE, Robot, RobotCamera, SPEED, STEP_NS
from kbr_localization.simulation.textures import Style
import numpy as np

KEPT_LIGHTS = 3  # shaded atlases that a building caches, tens of megabytes each
FIRST_STAMP_NS = 1_600_000_000 * 10**9
START_HOURS = 100_000  # hours over which seeds spread the starts: ROS stamps end in 2038


@dataclass(frozen=True)
class BuildingConfig:
    """A building, and the size of images in it."""

    size: float = 18.0  # metres along the corridors, 14 to 40
    seed: int = 0  # seed of plan, textures and furniture
    furniture: float = 0.08  # pieces of furniture per metre of wall
    width: int = 640  # pixels of an image
    height: int = 480  # pixels of an image
    texture: int = 96  # pixels per metre of wall, 16 to 96


class SyntheticBuilding:
    """A building that renders images, by default an office of the configured size."""

    def __init__(
        self, config: BuildingConfig = BuildingConfig(), plan: FloorPlan | None = None
    ) -> None:
        self.config, (width, height) = config, (config.width, config.height)
        rng = np.random.default_rng([config.seed, 1])
        self.plan = plan or office(config.size, rng)
        self._atlas = Atlas(self.plan, Style(config.seed, config.texture), rng)
        self.characters = [sprites.draw_person(rng) for _ in range(6)]
        pieces = [sprites.draw_furniture(rng) for _ in range(8)]
        self._furniture = sprites.furnish(self.plan, pieces, config.furniture, rng)
        self._noise = rng.normal(size=(height + 64, width + 64)).astype(np.float32)
        self._scene = functools.lru_cache(KEPT_LIGHTS)(self._light_up)

    def render(
        self,
        pose: FloatArray,
        light: Light = LIGHTS['cloudy'],
        rng: np.random.Generator | None = None,
        people: Sequence[sprites.Item] = (),
        turn: float = 0.0,
        mounting: RobotCamera | None = None,
    ) -> Image:
        """
        Render an image (h, w) at a pose (3,) of the camera, which must lie in free space.

        `rng`: draws sensor noise and shaking of the camera; None for neither. `turn`: radians
        turned during the exposure. `mounting`: its yaw must be part of the pose already.
        """
        atlas, grid, falloff = self._scene(light)
        mounting, shake = mounting or RobotCamera(), 0.0 if rng is None else rng.normal(0, 1.5)
        camera = mounting.mounted(self.config.width, self.config.height, shake)
        hits = cast_rays(self.plan.walls, camera, pose)
        image = self._atlas.picture(atlas, hits)
        items = [*self._furniture, *people]
        brightness = np.array([grid[self.plan.cells(point)] for _, point in items])
        sprites.draw_items(image, hits, items, brightness)
        smear = round(abs(turn) * camera.focal)
        image = lighting.shade(cv2.blur(image, (smear, 1)) if smear > 1 else image, falloff)
        if mounting.blur > 0:
            image = cv2.GaussianBlur(image, (0, 0), mounting.blur * image.shape[1] / 640)
        if mounting.vignetting > 0:
            y, x = lighting.centred(image.shape)
            image = lighting.shade(image, 1 - mounting.vignetting * (x**2 + y**2) / 2)
        gain, gamma = light.gain * mounting.gain, light.gamma * mounting.gamma
        if rng is None:
            return lighting.expose(image, gain, gamma)
        flicker = math.exp(mounting.flicker * rng.normal()) if mounting.flicker > 0 else 1.0
        image = lighting.expose(image, gain * flicker, gamma)
        row, column = rng.integers(0, 65, 2)
        rows, columns = slice(row, row + camera.height), slice(column, column + camera.width)
        noise = self._noise[rows, columns] * np.float32(light.noise * mounting.noise)
        return np.asarray(cv2.add(image, noise, dtype=cv2.CV_8U))

    def _light_up(self, light: Light) -> tuple[Pixels, FloatGrid, FloatGrid]:
        """Return shaded textures, brightness of the cells, and falloff over the image."""
        grid = lighting.light_grid(self.plan, light)
        falloff = lighting.vignette((self.config.height, self.config.width), light)
        return self._atlas.lit(light, grid), grid, falloff


@dataclass(frozen=True)
class RunConfig:
    name: str = 'run'  # name of the run and its folder
    route: str = 'walk'  # random walk, or 'tour': each path in both directions
    seconds: float = 90.0  # duration of a walk
    light: str = 'cloudy'  # one of `LIGHTS`
    people: int = 4  # people who walk in the building
    frame_rate: float = 2.5  # images per second, at most 20
    camera_heading: float = 0.0  # heading of the camera on the robot, radians; pi looks back
    seed: int = 0  # seed of route, people, noise and odometry
    robot: Robot = field(default_factory=Robot)


DEMO_RUNS = (
    RunConfig('train1_cloudy', route='tour', seed=1),
    RunConfig('train2_sunny', route='tour', light='sunny', seed=2),
    RunConfig('test_night', seconds=100.0, light='night', people=8, seed=3),
)
"""Two mapping runs, and a test run in another light."""


def with_robots(
    runs: Sequence[RunConfig], test: Robot | None, mapping: Robot | None = None
) -> tuple[RunConfig, ...]:
    """Return the runs with robot `mapping` on tours and `test` on walks; None changes nothing."""
    chosen = {'tour': mapping, 'walk': test}
    return tuple(replace(run, robot=chosen[run.route] or run.robot) for run in runs)


class SyntheticRun(Dataset):
    """
    A run through a building, whose images are rendered on demand and reproducibly.

    `poses`: (m, 3) true poses at 20 Hz in free space, by default on the configured route.
    `odometry`: poses that the wheels of the configured robot report.
    """

    def __init__(
        self,
        building: SyntheticBuilding,
        config: RunConfig = RunConfig(),
        poses: FloatArray | None = None,
    ) -> None:
        self.building, self.config, self.name = building, config, config.name
        self.poses = drive_route(building, config) if poses is None else poses
        self.skipped: dict[str, int] = {}
        rng = np.random.default_rng([building.config.seed, config.seed, 3])
        self._start_ns = FIRST_STAMP_NS + config.seed % START_HOURS * 3600 * 10**9
        moments = np.arange(len(self.poses), dtype=np.int64) * STEP_NS
        truth = OdometryTrack(self._start_ns + moments, self.poses)
        self.odometry = reported_track(truth, config.robot.odometry, rng)
        seconds = len(self.poses) / RATE
        self._people = sprites.crowd(
            building.plan, building.characters, config.people, seconds, rng
        )
        count = int(moments[-1] * 1e-9 * config.frame_rate)
        jitter = np.clip(rng.normal(0, 0.005, count), -0.01, 0.01)
        # COLD has whole microseconds
        micros = np.rint(((np.arange(count) + 0.5) / config.frame_rate + jitter) * 1e6)
        times_ns = micros.astype(np.int64) * 1000
        self._times_ns = times_ns[(times_ns > 0) & (times_ns < moments[-1])]
        self._references = se2.interpolate(moments, self.poses, self._times_ns)
        turns = np.pad(se2.wrap_angle(np.diff(self.poses[:, 2])), 1)
        self._turn_rates = ((turns[:-1] + turns[1:]) * (RATE / 2))[self._times_ns // STEP_NS]

    def __len__(self) -> int:
        return len(self._times_ns)

    def __getitem__(self, index: int) -> Frame:
        index = range(len(self))[index]
        stamp_ns, reference = int(self._times_ns[index]) + self._start_ns, self._references[index]
        image, name = functools.partial(self._render, index), f'{self.name} frame {index}'
        return Frame(stamp_ns, image, self.odometry.at(stamp_ns), reference, name)

    def _render(self, index: int) -> Image:
        heading = self.config.camera_heading
        # give each camera its own noise
        own = [round(1e3 * heading) % 10_000] if heading else []
        rng = np.random.default_rng([self.config.seed, index, 4, *own])
        people = [walk(float(self._times_ns[index]) * 1e-9) for walk in self._people]
        light, mounting = LIGHTS[self.config.light], self.config.robot.camera
        turn = light.exposure * float(self._turn_rates[index])
        pose = se2.compose(self._references[index], np.array([0.0, 0.0, heading + mounting.yaw]))
        return self.building.render(pose, light, rng, people, turn, mounting)


def drive_route(building: SyntheticBuilding, config: RunConfig) -> FloatArray:
    """Return the true poses (m, 3) at 20 Hz of the configured route."""
    rng, plan = np.random.default_rng([building.config.seed, config.seed, 2]), building.plan
    if config.route == 'tour':
        return drive_along(plan, plan.tour(rng), rng)
    # plan more than needed: the drive cuts corners and stops short of dead ends
    nodes = plan.random_walk(1.1 * SPEED * config.seconds + 5.0, rng)
    return drive_along(plan, nodes, rng)[: round(config.seconds * RATE) + 1]


def write_building(
    out: Path | str,
    runs: Sequence[RunConfig] = DEMO_RUNS,
    config: BuildingConfig = BuildingConfig(),
) -> list[Path]:
    """Render runs to `out/<name>` in COLD's format; raises DatasetError if `out` exists."""
    building = SyntheticBuilding(config)
    with new_folder(out) as folder:
        for run in (SyntheticRun(building, one) for one in runs):
            frames = tracked(f'render {run.name}', run)
            write_cold_run(folder / run.name, frames, run.odometry, quality=90)
            described = {'run': asdict(run.config), 'building': asdict(config)}
            write_text(folder / run.name / RENDERING_FILE, json_text(described, indent=2) + '\n')
    return [Path(out) / run.name for run in runs]

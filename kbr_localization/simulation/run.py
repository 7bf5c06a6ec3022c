"""Rendered runs through a building of look-alike places; everything follows from seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
import functools
import math
from pathlib import Path

import cv2
from kbr_localization import se2
from kbr_localization.datasets.cold import DRAWN, write_cold_run
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack
from kbr_localization.datasets.odometry_noise import reported_track
from kbr_localization.datasets.run_folder import new_folder
from kbr_localization.files import json_text, write_text
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import FloorPlan, office
from kbr_localization.simulation.light import (
    centred,
    expose,
    FloatGrid,
    Light,
    light_grid,
    LIGHTS,
    Pixels,
    shade,
    vignette,
)
from kbr_localization.simulation.renderer import Atlas, cast
from kbr_localization.simulation.robot import follow, RATE, Robot, RobotCamera, SPEED, STEP_NS
from kbr_localization.simulation.sprites import crowd, furnish, furniture, Item, person, put
from kbr_localization.simulation.textures import Style
import numpy as np

KEPT_LIGHTS = 3  # texture atlases of lights that a building keeps, of tens of megabytes each
FIRST_STAMP_NS = 1_600_000_000 * 10**9
HOURS = 100_000  # over which runs are spread by their seeds: stamps of ROS end in 2038


@dataclass(frozen=True)
class BuildingConfig:
    """A building and the camera that drives through it."""

    size: float = 18.0  # metres along the corridors, 14 to 40
    seed: int = 0  # of plan, textures and furniture
    furniture: float = 0.08  # pieces of furniture per metre of wall
    width: int = 640  # pixels of an image from left to right
    height: int = 480  # pixels of an image from top to bottom
    texture: int = 96  # pixels per metre of wall, 16 to 96


class SyntheticBuilding:
    """A building that renders on demand, by default an office of the configured size."""

    def __init__(
        self, config: BuildingConfig = BuildingConfig(), plan: FloorPlan | None = None
    ) -> None:
        self.config, (width, height) = config, (config.width, config.height)
        rng = np.random.default_rng([config.seed, 1])
        self.plan = plan or office(config.size, rng)
        self._atlas = Atlas(self.plan, Style(config.seed, config.texture), rng)
        self.characters = [person(rng) for _ in range(6)]
        pieces = [furniture(rng) for _ in range(8)]
        self._furniture = furnish(self.plan, pieces, config.furniture, rng)
        self._noise = rng.normal(size=(height + 64, width + 64)).astype(np.float32)
        self._scene = functools.lru_cache(KEPT_LIGHTS)(self._light_up)

    def render(
        self,
        pose: FloatArray,
        light: Light = LIGHTS['cloudy'],
        rng: np.random.Generator | None = None,
        people: Sequence[Item] = (),
        turn: float = 0.0,
        eye: RobotCamera | None = None,
    ) -> Image:
        """
        Take a picture at a pose (3,) of the camera, which must lie in free space.

        `rng` draws sensor noise and the camera's shaking; without it there is neither. `turn`:
        radians turned during the exposure. `eye`: of the camera, whose yaw is in the pose.
        """
        atlas, grid, falloff = self._scene(light)
        eye, shake = eye or RobotCamera(), 0.0 if rng is None else rng.normal(0, 1.5)
        camera = eye.mounted(self.config.width, self.config.height, shake)
        view = cast(self.plan.walls, camera, pose)
        image = self._atlas.picture(atlas, view)
        items = [*self._furniture, *people]
        lit = np.array([grid[self.plan.cells(point)] for _, point in items])
        put(image, view, items, lit)
        smear = round(abs(turn) * camera.focal)
        image = shade(cv2.blur(image, (smear, 1)) if smear > 1 else image, falloff)
        if eye.blur > 0:
            image = cv2.GaussianBlur(image, (0, 0), eye.blur * image.shape[1] / 640)
        if eye.vignetting > 0:
            y, x = centred(image.shape)
            image = shade(image, 1 - eye.vignetting * (x**2 + y**2) / 2)
        gain, gamma = light.gain * eye.gain, light.gamma * eye.gamma
        if rng is None:
            return expose(image, gain, gamma)
        flicker = math.exp(eye.flicker * rng.normal()) if eye.flicker > 0 else 1.0
        image = expose(image, gain * flicker, gamma)
        row, column = rng.integers(0, 65, 2)
        rows, columns = slice(row, row + camera.height), slice(column, column + camera.width)
        noise = self._noise[rows, columns] * np.float32(light.noise * eye.noise)
        return np.asarray(cv2.add(image, noise, dtype=cv2.CV_8U))

    def _light_up(self, light: Light) -> tuple[Pixels, FloatGrid, FloatGrid]:
        """Lit textures, brightness of the plan's cells, and falloff over the image."""
        grid = light_grid(self.plan, light)
        falloff = vignette((self.config.height, self.config.width), light)
        return self._atlas.lit(light, grid), grid, falloff


@dataclass(frozen=True)
class RunConfig:
    """One run through a building."""

    name: str = 'run'  # of the run and of its folder
    route: str = 'walk'  # at random, or 'tour': every way in both directions
    seconds: float = 90.0  # length of the run; tours are as long as they are
    light: str = 'cloudy'  # one of `LIGHTS`
    people: int = 4  # passers-by in the building
    frame_rate: float = 2.5  # images per second, at most 20
    camera_heading: float = 0.0  # of the camera on the robot, radians; pi looks back
    seed: int = 0  # of route, people, noise and odometry
    robot: Robot = field(default_factory=Robot)


DEMO_RUNS = (
    RunConfig('train1_cloudy', route='tour', seed=1),
    RunConfig('train2_sunny', route='tour', light='sunny', seed=2),
    RunConfig('test_night', seconds=100.0, light='night', people=8, seed=3),
)
"""Two runs for the map and one under another light for the test."""


def with_robots(
    runs: Sequence[RunConfig], test: Robot | None, mapping: Robot | None = None
) -> tuple[RunConfig, ...]:
    """Put robots on runs: `mapping` on the tours, `test` on the others; None changes nothing."""
    chosen = {'tour': mapping, 'walk': test}
    return tuple(replace(run, robot=chosen[run.route] or run.robot) for run in runs)


class SyntheticRun(Dataset):
    """
    A run through a building as a dataset; images are rendered when asked for, the same each time.

    `poses`: (m, 3), the true ones at 20 Hz in free space, by default of the configured route.
    `odometry`: what the wheels of the configured robot report.
    """

    def __init__(
        self,
        building: SyntheticBuilding,
        config: RunConfig = RunConfig(),
        poses: FloatArray | None = None,
    ) -> None:
        self.building, self.config, self.name = building, config, config.name
        self.poses = plan_drive(building, config) if poses is None else poses
        self.skipped: dict[str, int] = {}
        rng = np.random.default_rng([building.config.seed, config.seed, 3])
        self._start_ns = FIRST_STAMP_NS + config.seed % HOURS * 3600 * 10**9
        moments = np.arange(len(self.poses), dtype=np.int64) * STEP_NS
        truth = OdometryTrack(self._start_ns + moments, self.poses)
        self.odometry = reported_track(truth, config.robot.odometry, rng)
        seconds = len(self.poses) / RATE
        self._people = crowd(building.plan, building.characters, config.people, seconds, rng)
        count = int(moments[-1] * 1e-9 * config.frame_rate)
        jitter = np.clip(rng.normal(0, 0.005, count), -0.01, 0.01)
        # whole microseconds, as COLD has them
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
        # another camera has other noise
        own = [round(1e3 * heading) % 10_000] if heading else []
        rng = np.random.default_rng([self.config.seed, index, 4, *own])
        people = [person(float(self._times_ns[index]) * 1e-9) for person in self._people]
        light, eye = LIGHTS[self.config.light], self.config.robot.camera
        turn = light.exposure * float(self._turn_rates[index])
        pose = se2.compose(self._references[index], np.array([0.0, 0.0, heading + eye.yaw]))
        return self.building.render(pose, light, rng, people, turn, eye)


def plan_drive(building: SyntheticBuilding, config: RunConfig) -> FloatArray:
    """Poses (m, 3) at 20 Hz on the route and for the time of a run."""
    rng, plan = np.random.default_rng([building.config.seed, config.seed, 2]), building.plan
    if config.route == 'tour':
        return follow(plan, plan.tour(rng), rng)
    # corners are cut and dead ends are not driven to the end
    nodes = plan.random_walk(1.1 * SPEED * config.seconds + 5.0, rng)
    return follow(plan, nodes, rng)[: round(config.seconds * RATE) + 1]


def write_building(
    out: Path | str,
    runs: Sequence[RunConfig] = DEMO_RUNS,
    config: BuildingConfig = BuildingConfig(),
) -> list[Path]:
    """Render runs into `out/<name>`, in COLD's format; raises DatasetError if `out` exists."""
    building = SyntheticBuilding(config)
    with new_folder(out) as folder:
        for run in (SyntheticRun(building, one) for one in runs):
            frames = tracked(f'render {run.name}', run)
            write_cold_run(folder / run.name, frames, run.odometry, quality=90)
            described = {'run': asdict(run.config), 'building': asdict(config)}
            write_text(folder / run.name / DRAWN, json_text(described, indent=2) + '\n')
    return [Path(out) / run.name for run in runs]

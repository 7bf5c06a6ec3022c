"""
Rendered runs through a building of look-alike places.

Walls repeat every few metres, corridors and rooms repeat as a whole, the light changes from run
to run, people walk through the view, the camera blurs and is noisy, the odometry has the errors
of a real robot. Everything follows from seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
import functools
import json
from pathlib import Path

import cv2
from kbr_localization import se2
from kbr_localization.datasets.cold import DRAWN, fill_cold_run
from kbr_localization.datasets.frame import Dataset, Frame, Image
from kbr_localization.datasets.run_folder import new_folder
from kbr_localization.errors import DatasetError
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import sprites
from kbr_localization.simulation.floor_plan import FloorPlan, office
from kbr_localization.simulation.light import (
    expose,
    FloatGrid,
    Light,
    light_grid,
    LIGHTS,
    Pixels,
    shade,
    vignette,
)
from kbr_localization.simulation.renderer import Atlas, Camera, cast, focal_length
from kbr_localization.simulation.robot import (
    follow,
    odometry_of,
    RATE,
    Robot,
    RobotCamera,
    STEP_NS,
    VIEW,
)
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
    """
    A building that renders on demand.

    `plan`: its floor plan, by default an office of the configured size. `camera`: the pinhole
    camera of its images. `characters`: the people who walk in it.
    """

    def __init__(
        self, config: BuildingConfig | None = None, plan: FloorPlan | None = None
    ) -> None:
        self.config = config or BuildingConfig()
        rng = np.random.default_rng([self.config.seed, 1])
        self.plan = plan or office(self.config.size, rng)
        self._atlas = Atlas(self.plan, Style(self.config.seed, self.config.texture), rng)
        self.characters = [sprites.person(rng) for _ in range(6)]
        pieces = [sprites.furniture(rng) for _ in range(8)]
        self._furniture = sprites.furnish(self.plan, pieces, self.config.furniture, rng)
        width, height = self.config.width, self.config.height
        self.camera = Camera(width, height, focal_length(width, VIEW))
        self._noise = rng.normal(size=(height + 64, width + 64)).astype(np.float32)
        self._scene = functools.lru_cache(KEPT_LIGHTS)(self._light_up)

    def render(
        self,
        pose: FloatArray,
        light: Light = LIGHTS['cloudy'],
        rng: np.random.Generator | None = None,
        people: Sequence[sprites.Item] = (),
        turn: float = 0.0,
        eye: RobotCamera | None = None,
    ) -> Image:
        """
        Take a picture at a pose (3,) of the camera, which must lie in free space.

        `rng` draws sensor noise and the camera's shaking; without it there is neither. `people`:
        sprites and the points (2,) where they stand. `turn`: radians turned during the exposure.
        `eye`: how the camera is mounted and what it does to the image; its yaw is in the pose.
        Returns uint8 (height, width).
        """
        atlas, grid, falloff = self._scene(light)
        eye = eye or RobotCamera()
        camera = eye.mounted(self.camera, 0.0 if rng is None else rng.normal(0, 1.5))
        view = cast(self.plan.walls, camera, pose)
        image = self._atlas.picture(atlas, view)
        items = [*self._furniture, *people]
        lit = np.array([grid[self.plan.cells(point)] for _, point in items])
        sprites.put(image, view, items, lit)
        smear = round(abs(turn) * camera.focal)
        image = shade(cv2.blur(image, (smear, 1)) if smear > 1 else image, falloff)
        image, light = eye.seen_through_lens(image), eye.exposed(light, rng)
        image = expose(image, light)
        return image if rng is None else self._add_noise(image, light.noise, rng)

    def _light_up(self, light: Light) -> tuple[Pixels, FloatGrid, FloatGrid]:
        """Lit textures, brightness of the plan's cells, and falloff over the image."""
        grid = light_grid(self.plan, light)
        falloff = vignette((self.camera.height, self.camera.width), light)
        return self._atlas.lit(light, grid), grid, falloff

    def _add_noise(self, image: Pixels, sigma: float, rng: np.random.Generator) -> Pixels:
        row, column = rng.integers(0, 65, 2)
        height, width = image.shape[:2]
        noise: FloatGrid = self._noise[row : row + height, column : column + width]  # noqa: E203
        return np.asarray(cv2.add(image, noise * np.float32(sigma), dtype=cv2.CV_8U))


@dataclass(frozen=True)
class RunConfig:
    """One run through a building."""

    name: str = 'run'  # of the run and of its folder
    route: str = 'walk'  # at random, or 'tour': every way in both directions
    seconds: float = 90.0  # length of the run; tours are as long as they are
    light: str = 'cloudy'  # one of `LIGHTS`
    people: int = 4  # passers-by in the building
    speed: float = 0.8  # metres per second at most
    wander: float = 0.1  # standard deviation from the middle of the way, m
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

    `poses`: (m, 3), the true ones at 20 Hz, by default planned as configured. `odometry`: what
    the wheels of the configured robot report. Raises DatasetError when an image would be taken
    inside of a wall.
    """

    def __init__(
        self,
        building: SyntheticBuilding,
        config: RunConfig | None = None,
        poses: FloatArray | None = None,
    ) -> None:
        self.building, self.config = building, config or RunConfig()
        self.poses = plan_drive(building, self.config) if poses is None else poses
        self.name = self.config.name
        self.skipped: dict[str, int] = {}
        rng = np.random.default_rng([building.config.seed, self.config.seed, 3])
        self._start_ns = FIRST_STAMP_NS + self.config.seed % HOURS * 3600 * 10**9
        track = odometry_of(self.poses, self.config.robot.odometry, rng)
        self.odometry = replace(track, stamps_ns=track.stamps_ns + self._start_ns)
        seconds = len(self.poses) / RATE
        plan, characters = building.plan, building.characters
        self._people = sprites.crowd(plan, characters, self.config.people, seconds, rng)
        self._times_ns = _frame_times(track.stamps_ns[-1], self.config.frame_rate, rng)
        self._references = se2.interpolate(track.stamps_ns, self.poses, self._times_ns)
        inside = ~plan.is_free(self._references[:, :2])
        if inside.any():
            x, y = self._references[np.argmax(inside), :2]
            raise DatasetError(
                f'{self.name}: the robot drives into a wall at x {x:.1f} m, y {y:.1f} m: lower '
                f'its speed, {self.config.speed:g} m/s, or wander, {self.config.wander:g} m, or '
                'give another drive'
            )
        turns = np.pad(se2.wrap_angle(np.diff(self.poses[:, 2])), 1)
        self._turn_rates = ((turns[:-1] + turns[1:]) * (RATE / 2))[self._times_ns // STEP_NS]

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._times_ns)

    def __getitem__(self, index: int) -> Frame:
        """Return one frame; its image is rendered when asked for."""
        index = range(len(self))[index]
        stamp_ns, reference = int(self._times_ns[index]) + self._start_ns, self._references[index]
        region = int(self.building.plan.region[self.building.plan.cells(reference[:2])])
        return Frame(
            stamp_ns=stamp_ns,
            image=functools.partial(self._render, index),
            odometry=self.odometry.at(stamp_ns),
            reference=reference,
            name=f'{self.name} frame {index}',
            label=f'{self.building.plan.kinds[region]}-{region}',
        )

    def _render(self, index: int) -> Image:
        heading = self.config.camera_heading
        # another camera has other noise
        own = [round(1e3 * heading) % 10_000] if heading else []
        rng = np.random.default_rng([self.config.seed, index, 4, *own])
        people = [person.at(float(self._times_ns[index]) * 1e-9) for person in self._people]
        light, eye = LIGHTS[self.config.light], self.config.robot.camera
        turn = light.exposure * float(self._turn_rates[index])
        pose = se2.compose(self._references[index], np.array([0.0, 0.0, heading + eye.yaw]))
        return self.building.render(pose, light, rng, people, turn, eye)


def plan_drive(building: SyntheticBuilding, config: RunConfig) -> FloatArray:
    """Poses (m, 3) at 20 Hz on the route, for the time and at the speed of a run."""
    rng, plan = np.random.default_rng([building.config.seed, config.seed, 2]), building.plan
    if config.route == 'tour':
        return follow(plan, plan.tour(rng), config.speed, config.wander, rng)
    # corners are cut and dead ends are not driven to the end
    nodes = plan.random_walk(1.1 * config.speed * config.seconds + 5.0, rng)
    poses = follow(plan, nodes, config.speed, config.wander, rng)
    return poses[: round(config.seconds * RATE) + 1]


def write_building(
    out: Path | str,
    seed: int | None = None,
    runs: Sequence[RunConfig] = DEMO_RUNS,
    building: BuildingConfig | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """
    Render runs through one building into `out/<name of the run>`, in COLD's format.

    The folder of each has the file `DRAWN` with robot, light and route. `seed` replaces the
    building's. `progress(what, done, total)` is called for every frame. Returns the runs' folders.
    Raises DatasetError when `out` exists already.
    """
    config = building or BuildingConfig()
    rendered = SyntheticBuilding(config if seed is None else replace(config, seed=seed))

    def reporting(run: SyntheticRun) -> Iterator[Frame]:
        for done, frame in enumerate(run, start=1):
            yield frame
            progress(f'render {run.name}', done, len(run))

    with new_folder(out) as folder:
        for run_config in runs:
            run = SyntheticRun(rendered, run_config)
            (folder / run.name).mkdir()
            fill_cold_run(folder / run.name, reporting(run), run.odometry, quality=90)
            described = {'run': asdict(run_config), 'building': asdict(rendered.config)}
            text = json.dumps(described, indent=2) + '\n'
            (folder / run.name / DRAWN).write_text(text, encoding='utf-8')
    return [Path(out) / run.name for run in runs]


def _frame_times(end: int, rate: float, rng: np.random.Generator) -> se2.StampArray:
    """Camera times in nanoseconds since the start of a drive until its end."""
    count = int(end * 1e-9 * rate)
    times = (np.arange(count) + 0.5) / rate + np.clip(rng.normal(0, 0.005, count), -0.01, 0.01)
    # whole microseconds, as COLD has them
    times_ns = np.rint(times * 1e6).astype(np.int64) * 1000
    return np.asarray(times_ns[(times_ns > 0) & (times_ns < end)])

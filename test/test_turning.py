"""Turns of a camera by points that are followed, and what they make of an odometry."""

from helpers import textured_image
from kbr_localization import se2
from kbr_localization.errors import DatasetError
from kbr_localization.localization.mapping.odometry_model import correct_headings, track_images
from kbr_localization.vision import turning
import numpy as np
import pytest

FOCAL, AHEAD = 0.8, np.array([0.04, -0.02])
STEP = 0.25
NOISE = 2e-4


def seen(turns, rng, count=60, walking=0.0, aside=0.0):
    """Return the points seen by a camera that moves `STEP` ahead, and aside; some walk."""
    flows = []
    for turn, left in zip(turns, np.broadcast_to(aside, len(turns)), strict=True):
        place = np.column_stack([rng.uniform(-3, 3, count), rng.uniform(-1.5, 1.5, count)])
        depth = rng.uniform(2.0, 12.0, count)
        before = place / depth[:, np.newaxis]
        x, z = place[:, 0] - STEP * np.sin(-0.5 * turn), depth - STEP * np.cos(0.5 * turn)
        x += left
        x[: round(walking * count)] += 0.4
        right, away = np.cos(turn) * x + np.sin(turn) * z, np.cos(turn) * z - np.sin(turn) * x
        after = np.column_stack([right / away, place[:, 1] / away])
        both = np.concatenate([FOCAL * before + AHEAD, FOCAL * after + AHEAD], axis=1)
        inside = np.abs(both).max(axis=1) < 0.6
        flows.append((both + rng.normal(size=both.shape) * NOISE)[inside].astype(np.float32))
    return flows


def drive(rng, images=400, bend=0.12):
    """Return turns of a drive with bends."""
    turns = rng.normal(size=images) * 0.003
    turns[np.arange(images) % 40 < 8] += bend
    return turns


def steps_of(turns, left=0.0):
    ahead, aside = np.full(len(turns), STEP), np.broadcast_to(left, len(turns))
    return np.column_stack([ahead, aside, turns])


def corrected(steps, points, run=None):
    """Odometry (n, 3) of steps, and what the points make of it."""
    odometry = se2.chain(np.zeros(3), steps)
    run = np.zeros(len(odometry), dtype=np.intp) if run is None else run
    return odometry, correct_headings(odometry, run, points)


def test_the_view_and_the_turns_are_found_whoever_walks():
    rng = np.random.default_rng(0)
    turns = drive(rng)
    points = seen(turns, rng)
    view, _ = turning.find_views(points, steps_of(turns))
    assert view.focal == pytest.approx(FOCAL, rel=0.02)
    np.testing.assert_allclose(view.ahead, AHEAD, atol=0.004)
    found = turning.estimate_turns(points, steps_of(turns), view)
    np.testing.assert_allclose(found.angle, turns, atol=0.005)
    # the deviation is that of points which are followed to 0.3 of 320 pixels
    errors = (found.angle - turns) / found.deviation
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(NOISE * 320 / 0.3, rel=0.2)
    told = turns + rng.normal(size=len(turns)) * 0.003
    near = turning.estimate_turns(seen(turns, rng, walking=0.6), steps_of(told), view)
    np.testing.assert_allclose(near.angle, turns, atol=0.01)
    assert np.median(near.inlier_ratio) < 0.7


@pytest.mark.parametrize(('offset', 'bend'), [(-0.3, 0.12), (0.2, 0.4)])
def test_a_camera_beside_the_wheels_is_found(offset, bend):
    """Also where all bends are sharp: beside a camera far off they would be no way but turns."""
    rng = np.random.default_rng(5)
    turns = drive(rng, bend=bend)
    # the wheels' point lies ahead of the camera and goes straight; the camera swings out
    points = seen(turns, rng, aside=-offset * turns)
    _, view = turning.find_views(points, steps_of(turns))
    assert view.deviation < 0.02
    assert view.offset == pytest.approx(offset, abs=0.02)
    assert view.focal == pytest.approx(FOCAL, rel=0.01)
    found = turning.estimate_turns(points, steps_of(turns), view)
    np.testing.assert_allclose(found.angle, turns, atol=0.005)


def test_drift_and_slips_are_taken_out():
    rng = np.random.default_rng(2)
    turns = drive(rng)
    wrong = steps_of(turns)
    wrong[:, 2] += 0.02 * STEP + rng.normal(size=len(turns)) * 0.004
    wrong[[50, 170, 290], 2] += 0.15
    true = se2.chain(np.zeros(3), steps_of(turns))
    odometry, found = corrected(wrong, seen(turns, rng))
    assert found.drift == pytest.approx(0.02, abs=2e-3)
    assert np.abs(se2.wrap_angle(odometry[:, 2] - true[:, 2])).max() > 1.0
    assert np.abs(se2.wrap_angle(found.odometry[:, 2] - true[:, 2])).max() < 0.15
    assert found.prior.noise.per_metre[2] < 0.5 * 2e-4


@pytest.mark.parametrize('images, dark', [(20, False), (400, True)])
def test_a_run_of_too_few_points_leaves_the_others_corrected_and_has_their_drift(images, dark):
    rng = np.random.default_rng(8)
    turns = np.concatenate([drive(rng), [0.0], drive(rng, images)])
    run = np.repeat([0, 1], [401, images + 1])
    true, points = se2.chain(np.zeros(3), steps_of(turns)), seen(turns, rng)
    blind = np.arange(len(turns)) >= 400 if dark else np.arange(len(turns)) == 400
    flows = [flow[: 0 if dark else None] for flow, dark in zip(points, blind, strict=True)]
    _, found = corrected(steps_of(turns + 0.02 * STEP), flows, run)
    assert found.drift == pytest.approx(0.02, abs=2e-3)
    for number in range(2):
        ours, theirs = (poses[run == number] for poses in (found.odometry, true))
        missed = se2.between(ours[0], ours)[:, 2] - se2.between(theirs[0], theirs)[:, 2]
        assert np.abs(se2.wrap_angle(missed)).max() < 0.1


def test_a_robot_that_moves_aside_does_not_seem_to_turn():
    rng = np.random.default_rng(4)
    turns = rng.normal(size=400) * 0.003
    aside = np.where(np.arange(400) < 150, 0.02, -0.01)
    _, found = corrected(steps_of(turns, aside), seen(turns, rng, aside=aside))
    assert found.share > 0.9
    assert found.drift == pytest.approx(0.0, abs=2e-3)


def shifted(rng, shift):
    """Return the points of a camera whose images are all shifted alike."""
    before = rng.uniform(-0.5, 0.5, (400, 60, 2))
    after = before + [shift, 0.0] + rng.normal(size=before.shape) * NOISE
    return list(np.concatenate([before, after], axis=2).astype(np.float32))


@pytest.mark.parametrize(
    'look',
    [
        lambda turns, rng: shifted(rng, 0.05),
        lambda turns, rng: shifted(rng, 0.0),
        lambda turns, rng: [flow * np.float32([-1, -1, -1, -1]) for flow in seen(turns, rng)],
        lambda turns, rng: [flow * np.float32([-1, 1, -1, 1]) for flow in seen(turns, rng)],
    ],
    ids=['aside', 'standing', 'upside down', 'mirrored'],
)
def test_a_camera_that_sees_other_turns_tells_nothing(look):
    rng = np.random.default_rng(9)
    turns = drive(rng)
    odometry, found = corrected(steps_of(turns + 0.02 * STEP), look(turns, rng))
    np.testing.assert_array_equal(found.odometry, odometry)


def test_points_are_followed_in_images_that_are_not_broken():
    def broken():
        raise DatasetError('cut off')

    image = textured_image(0, (240, 320))
    flow = turning.follow(turning.load_small(image), turning.load_small(np.roll(image, 6, axis=1)))
    assert len(flow) > 50
    assert np.median(flow[:, 2] - flow[:, 0]) == pytest.approx(6 / 320, abs=1e-3)
    flows = track_images([image, image, broken, image])
    assert [len(flow) > 0 for flow in flows] == [True, False, False]


def test_outliers_do_not_bend_a_line():
    rng, true = np.random.default_rng(0), np.array([0.5, -2.0])
    columns = rng.normal(size=(80, 2))
    values = columns @ true + 0.3 * rng.normal(size=80)
    values[:20] += 30.0
    np.testing.assert_allclose(turning.robust_line(columns, values)[0], true, atol=0.15)

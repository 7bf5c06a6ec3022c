"""What a map knows of how its poses came about, when it is cut, moved and joined."""

from dataclasses import replace

from kbr_localization.localization.map.kernel_map import MappingRecord
import numpy as np

RECORD = MappingRecord(
    odometry=np.arange(9.0).reshape(3, 3),
    covariances=np.array([np.diag([1.0, 4.0, 9.0])] * 3),
    closures=np.array([[2, 0], [2, 1]]),
    chain=np.array([0, 1]),
    relative=np.array([[1.0, 2.0, 0.1], [3.0, 4.0, 0.2]]),
    misses=np.array([[0.1, 0.2, 0.01], [0.3, 0.4, 0.02]]),
    score=np.array([5.0, 6.0]),
    kept=np.array([1, 0]),
    parameters=np.zeros((1, 6)),
    point=np.array([0.5, -0.1, 0.3]),
)


def test_a_part_of_the_images_has_the_closures_among_them():
    part = RECORD.subset(np.array([2, 1]))
    np.testing.assert_array_equal(part.odometry, RECORD.odometry[[2, 1]])
    np.testing.assert_array_equal(part.closures, [[0, 1]])
    for name in ('chain', 'relative', 'misses', 'score', 'kept'):
        np.testing.assert_array_equal(getattr(part, name), getattr(RECORD, name)[1:])


def test_a_quarter_turn_swaps_variances_and_a_scale_is_that_of_metres():
    moved = RECORD.moved(np.array([7.0, 8.0, 0.5 * np.pi]), scale=2.0)
    expected = [np.diag([16.0, 4.0, 9.0])] * 3
    np.testing.assert_allclose(moved.covariances, expected, atol=1e-12)
    np.testing.assert_allclose(moved.relative, [[2.0, 4.0, 0.1], [6.0, 8.0, 0.2]])
    np.testing.assert_allclose(moved.misses, [[0.2, 0.4, 0.01], [0.6, 0.8, 0.02]])
    np.testing.assert_allclose(moved.point, [1.0, -0.2, 0.3])
    assert moved.deviation_m == 20.0**0.5


def test_chains_of_closures_that_are_joined_have_names_of_their_own():
    both = RECORD.joined(replace(RECORD, score=np.array([7.0, 8.0])))
    np.testing.assert_array_equal(both.chain, [0, 1, 2, 3])
    np.testing.assert_array_equal(both.score, [5.0, 6.0, 7.0, 8.0])
    np.testing.assert_array_equal(both.closures, [*RECORD.closures, *RECORD.closures])
    assert len(both.odometry) == 3 and len(both.parameters) == 2
    nothing = RECORD.subset(np.array([0]))
    np.testing.assert_array_equal(nothing.joined(RECORD).chain, RECORD.chain)

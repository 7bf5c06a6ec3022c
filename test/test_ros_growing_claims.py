"""Of two processes that grow one map one does: nothing is lost, and the other says so."""

from contextlib import contextmanager
from dataclasses import replace
import os
import shutil
import signal
import subprocess
import sys

from command import assert_one_line, invoke
from kbr_localization.errors import MapError
from kbr_localization.localization.map.grow import grown, GrownFile
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.maps import map_keeper
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_node_helpers import start_node
from test_ros_growing import answer, GROWING, Keeping

ON_REQUEST = replace(GROWING, grow_map=False)
HOLD = """
import sys
from pathlib import Path
from kbr_localization.localization.map.grow import GrownFile
file = GrownFile(Path(sys.argv[1]))
file.claim()
print('claimed', flush=True)
sys.stdin.read()
file.release()
"""


@contextmanager
def another_process(path):
    """Give a process that has claimed a file, and lets it go when its input ends."""
    with subprocess.Popen(
        [sys.executable, '-c', HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == 'claimed\n'
        yield process


@pytest.fixture
def impatient(monkeypatch):
    """Let a keeper ask at every image whether the file is free."""
    monkeypatch.setattr(map_keeper, 'CLAIM_SECONDS', 0.0)


def lock(path):
    return path.with_name(f'.{path.name}.lock')


def test_while_another_process_adds_to_the_file_nothing_is_added(tiny_world_copy, impatient):
    beside = tiny_world_copy.map_file.with_name('map_grown.h5')
    with another_process(beside) as other:
        keeping = Keeping(tiny_world_copy)
        said = [text for text in keeping.told if 'no images are added' in text]
        assert len(said) == 1
        assert f'{beside} is being added to by process {other.pid} on' in said[0]
        assert keeping.drive(0.0, 6.0) == 0 and keeping.keeper.failure == said[0]
        with pytest.raises(MapError, match=f'by process {other.pid}'):
            keeping.keeper.add(answer(1.0))
        assert len([text for text in keeping.told if 'no images are added' in text]) == 1
        other.communicate('')
        # it has written nothing, so that this one goes on, once the pose has been sure for 2 m
        assert keeping.drive(6.0, 6.1) == 0 and not keeping.keeper.failure
        assert keeping.drive(6.1, 9.0) > 0
    keeping.keeper.save()
    keeping.keeper.close()
    assert not lock(beside).exists()


def test_the_pose_has_to_be_sure_again_for_two_metres_after_another_process_added(
    tiny_world_copy, impatient
):
    """What the robot saw and drove meanwhile was not followed."""
    keeping = Keeping(tiny_world_copy, ON_REQUEST)
    assert keeping.drive(0.0, 4.0) == 0
    with another_process(tiny_world_copy.map_file.with_name('map_grown.h5')) as other:
        keeping.config = GROWING
        assert keeping.drive(4.0, 4.3) == 0 and keeping.keeper.failure
        other.communicate('')
    assert keeping.drive(4.3, 5.4) == 0 and not keeping.keeper.failure
    assert keeping.drive(5.4, 9.0) > 0


def test_a_process_that_was_killed_holds_nothing(tiny_world_copy):
    beside = tiny_world_copy.map_file.with_name('map_grown.h5')
    with another_process(beside) as other:
        other.kill()
        other.wait()
        assert lock(beside).exists()
        keeping = Keeping(tiny_world_copy)
        assert keeping.drive(0.0, 6.0) == 4 and not keeping.keeper.failure


def test_what_another_process_has_written_is_not_overwritten(tiny_world_copy, impatient):
    late, early = (Keeping(tiny_world_copy, ON_REQUEST) for _ in range(2))
    early.keeper.add(answer(1.0))
    path = early.keeper.save()
    early.keeper.close()
    with pytest.raises(MapError, match='changed by another process since it was read'):
        late.keeper.add(answer(2.0))
    late.config = GROWING
    assert late.drive(0.0, 6.0) == 0 and 'load the map again' in late.keeper.failure
    assert grown(KernelMap.load(path)).sum() == 1
    # what the service ~/load_map does
    late.keeper.use(Keeping(tiny_world_copy, ON_REQUEST).keeper.in_use)
    assert not late.keeper.failure and late.drive(0.0, 6.0) > 0
    late.keeper.save()
    assert grown(KernelMap.load(path)).sum() > 1


def test_a_map_that_was_built_anew_is_not_overwritten_by_one_that_grew(tiny_world_copy):
    keeping = Keeping(tiny_world_copy, in_place=True)
    keeping.drive(0.0, 6.0)
    path = tiny_world_copy.map_file
    KernelMap.load(path).subset(np.arange(30)).save(path)
    with pytest.raises(MapError, match='changed by another process'):
        keeping.keeper.save()
    assert len(KernelMap.load(path)) == 30
    assert '4 added images are not written yet' in keeping.told[-1]


def test_the_same_map_read_again_keeps_its_claim_and_drops_what_was_not_written(tiny_world_copy):
    keeping = Keeping(tiny_world_copy)
    keeping.drive(0.0, 6.0)
    keeping.keeper.use(Keeping(tiny_world_copy, ON_REQUEST).keeper.in_use)
    assert '4 images that were not written yet are not in the map' in keeping.told[-1]
    with pytest.raises(MapError, match=f'process {os.getpid()} on'):
        GrownFile(tiny_world_copy.map_file.with_name('map_grown.h5')).claim()
    assert keeping.drive(0.0, 6.0) == 4
    keeping.keeper.save()


def test_a_map_that_is_left_is_free_for_others(tiny_world_copy, tmp_path):
    keeping = Keeping(tiny_world_copy)
    other = shutil.copy(tiny_world_copy.map_file, tmp_path / 'other.h5')
    keeping.keeper.use(Keeping(tiny_world_copy, ON_REQUEST, wanted=other).keeper.in_use)
    keeping.background.shutdown()
    GrownFile(tiny_world_copy.map_file.with_name('map_grown.h5')).claim()


def test_merging_and_dropping_wait_for_the_process_that_adds(tiny_world_copy):
    keeping = Keeping(tiny_world_copy)
    keeping.drive(0.0, 6.0)
    beside = keeping.keeper.save()
    for option in ('--merge', '--drop'):
        refused = invoke('map', 'grown', tiny_world_copy.map_file, option)
        assert_one_line(refused, f'{beside} is being added to by process {os.getpid()}')
    keeping.keeper.close()
    assert invoke('map', 'grown', tiny_world_copy.map_file, '--merge').returncode == 0
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 44


@pytest.mark.ros
def test_of_two_nodes_on_one_map_the_second_says_that_it_adds_nothing(ros, tiny_world_copy):
    from diagnostic_msgs.msg import DiagnosticArray

    ros.collect(DiagnosticArray, '/diagnostics', RELIABLE)
    first = start_node(ros, tiny_world_copy, grow_map=True)
    second = start_node(ros, tiny_world_copy, ['__ns:=/two'], grow_map=True)
    ros.spin_until(lambda: f'is being added to by process {first.popen.pid} on' in second.output)
    assert second.output.count('no images are added') == 1 and 'ERROR' not in first.output
    first.stop(signal.SIGKILL)
    third = start_node(ros, tiny_world_copy, ['__ns:=/three'], grow_map=True)
    assert 'no images are added' not in third.output
    assert {third.stop(), second.stop()} == {0}
    assert not lock(tiny_world_copy.map_file.with_name('map_grown.h5')).exists()

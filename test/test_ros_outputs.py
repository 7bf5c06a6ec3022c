"""What becomes of an answer when there is a reset, or the end of the work, before it goes out."""

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.ros.node import outputs
from kbr_localization.ros.session.odometry_buffer import Added
import numpy as np
import pytest
from ros_node_helpers import by_stamp, node_at_hand
from ros_robot import Robot

pytestmark = pytest.mark.ros


class Sender:
    """Stands for what sends transforms; keeps their stamps."""

    def __init__(self, *_):
        self.stamps, self.publisher = [], object()

    def send(self, odom_in_map, stamp_ns):
        self.stamps.append(stamp_ns)

    def restart(self):
        self.stamps.clear()


class NoRivals:
    found = False

    def __init__(self, *_):
        pass

    def tick(self):
        pass

    def stop(self):
        pass


def jump_back_in_time(localization):
    localization.reset('the clock jumped back')


def reset_the_odometry(localization):
    newest_ns = localization.session.last.stamp_ns
    for tick in range(1, 4):
        pose = np.array([90.0, 0.0, 0.0])
        localization.session.add_odometry(newest_ns + tick * 50_000_000, pose)


def newest_answer(ros, localization, stamp_ns):
    """Wait until the image of a stamp is answered; odometry alone sends transforms before."""

    def answered():
        last = localization.session.last
        return last is not None and last.stamp_ns == stamp_ns

    ros.spin_until(answered)
    return localization.session.last


@pytest.mark.parametrize('what', [jump_back_in_time, reset_the_odometry])
def test_an_answer_from_before_a_reset_is_counted_and_not_sent(ros, tiny_world, monkeypatch, what):
    sender = Sender()
    monkeypatch.setattr(outputs, 'have_tf', lambda: True)
    monkeypatch.setattr(outputs, 'TransformSender', lambda *_: sender)
    monkeypatch.setattr(outputs, 'RivalWatch', NoRivals)
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot, localization = Robot(ros), node.configured()
        robot.wait_for_listeners()
        robot.drive(0.0, 3.2)
        on_its_way = newest_answer(ros, localization, robot.stamp_ns(3.2))
        ros.spin_until(lambda: robot.stamp_ns(4.2) in sender.stamps)
        answered, used = localization.session.answered, localization.session.used
        what(localization)
        localization._publish(on_its_way)
        assert localization.session.dropped['before a reset'] == 1
        assert localization.session.answered == answered - 1
        assert localization.session.used == used - on_its_way.estimate.updated
        localization.outputs.follow_odometry(robot.stamp_ns(0.1), Added.NEWEST)
        assert not sender.stamps


def test_images_that_wait_when_the_node_is_deactivated_are_not_answered_later(ros, tiny_world):
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot, localization = Robot(ros), node.configured()
        session = localization.session
        robot.wait_for_listeners()
        robot.drive(0.0, 3.2)
        newest_answer(ros, localization, robot.stamp_ns(3.2))
        robot.send_image(3.6)
        ros.spin_until(lambda: len(session.feed.queue) == 1)
        node.trigger_deactivate()
        assert not session.feed.queue and session.dropped['when the node was deactivated'] == 1
        node.trigger_activate()
        robot.drive(3.65, 4.0)
        assert newest_answer(ros, localization, robot.stamp_ns(4.0)).estimate.has_pose
        assert session.answered == 10


def test_an_answer_that_is_finished_while_the_node_is_deactivated_is_counted_and_not_sent(
    ros, tiny_world, monkeypatch
):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot, localization = Robot(ros), node.configured()
        session, held = localization.session, []
        robot.wait_for_listeners()
        robot.drive(0.0, 3.2)
        newest_answer(ros, localization, robot.stamp_ns(3.2))
        work = session.work

        def finished_when_stopped(timeout):
            answer = work(timeout)
            if answer is not None:
                held.append((answer, session.answered, session.used))
                localization._worker._stop.wait(20.0)
            return answer

        monkeypatch.setattr(session, 'work', finished_when_stopped)
        robot.drive(3.25, 4.4)  # the worker may still wait for the first image in the method
        ros.spin_until(lambda: held)
        waiting = len(session.feed.queue)
        node.trigger_deactivate()
        ros.spin(0.3)
        ((answer, answered, used),) = held
        assert answer.stamp_ns not in by_stamp(poses)
        assert session.dropped['when the node was deactivated'] == 1 + waiting
        assert session.answered == answered - 1
        assert session.used == used - answer.estimate.updated

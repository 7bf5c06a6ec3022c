"""A private piece of ROS for every test: own domain, own processes, all ended afterwards."""

from contextlib import contextmanager, suppress
import gc
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from kbr_localization.demo.tour import own_domain
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_nursery import Child

ROOT = Path(__file__).parents[1]
FASTDDS_PROFILE = ROOT / 'config' / 'fastdds.xml'
PATIENCE = 120.0
"""Seconds until a test gives up: much more than a loaded machine takes."""
PROGRAMS = {
    'node': 'kbr_localization.ros.node',
    'player': 'kbr_localization.ros.player',
    'recorder': 'kbr_localization.ros.recorder',
}
"""Modules that run as programs."""
BEST_EFFORT = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Process:
    """A program under test with its output."""

    def __init__(self, popen, log):
        self.popen, self.log = popen, log

    @property
    def output(self):
        return self.log.read_text(errors='replace')

    def stop(self, how=signal.SIGINT, timeout=PATIENCE):
        """Send a signal and return the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(how)
        return self.wait(timeout)

    def wait(self, timeout=PATIENCE):
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f'still running after {timeout} s:\n{self.output}') from None


class RosWorld:
    """A DDS domain with one node of the test and any number of processes."""

    def __init__(self, folder, domain):
        self.folder, self.domain = folder, domain
        self.processes = []
        self.context = Context()
        rclpy.init(args=[], context=self.context, domain_id=self.domain)
        self.node = Node('observer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def environment(self, **extra):
        return {
            **os.environ,
            'ROS_DOMAIN_ID': str(self.domain),
            'OMP_NUM_THREADS': '1',
            'OPENBLAS_NUM_THREADS': '1',
            'PYTHONUNBUFFERED': '1',
            'ROS_LOG_DIR': str(self.folder / 'ros_log'),
            **extra,
        }

    def start(self, module, *arguments, **extra_environment):
        """Start `python -m module arguments` in this domain."""
        program = [sys.executable, '-m', module, *map(str, arguments)]
        return self._run(_subprocess, program, self.environment(**extra_environment))

    def _run(self, start, program, environment):
        log = self.folder / f'process{len(self.processes)}.log'
        log.touch()
        self.processes.append(Process(start(program, environment, log), log))
        return self.processes[-1]

    def start_node(self, module, remappings=(), environment=None, **values):
        """Start a node of the package with parameters."""
        arguments = ['--ros-args']
        for name, value in values.items():
            arguments += ['-p', f'{name}:={_yaml(value)}']
        for rule in remappings:
            arguments += ['-r', rule]
        if environment:  # of libraries a process is told when it starts
            return self.start(PROGRAMS[module], *arguments, **environment)
        return self._run(Child, [PROGRAMS[module], *arguments], self.environment())

    def collect(self, message_type, topic, qos=RELIABLE):
        """Subscribe, and return the list that messages will be appended to."""
        received = []
        self.node.create_subscription(message_type, topic, received.append, qos)
        return received

    def spin(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            # with another timeout each time rclpy would only look after callbacks that await
            self.executor.spin_once(timeout_sec=min(left, 0.1))

    def spin_until(self, condition, timeout=PATIENCE):
        """Spin until a condition holds; fail with the processes' output when it does not."""
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f'not within {timeout} s; {self._last_words()}')
            self.executor.spin_once(timeout_sec=min(left, 0.1))

    def _last_words(self):
        """End the processes in good order, so that they sum up, and quote them."""
        for process in self.processes:
            process.stop()
        outputs = (process.output for process in self.processes)
        return '\n'.join(['the processes say:', *outputs])

    def close(self):
        # a process that is killed leaves its shared memory, 16 MB, on the machine
        running = [process for process in self.processes if process.popen.poll() is None]
        for process in running:
            process.popen.send_signal(signal.SIGINT)
        for process in running:
            with suppress(AssertionError):
                process.wait(timeout=10.0)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)
        # a lifecycle node of the test keeps its services until it is collected, and who gets the
        # domain next would call those of the dead
        gc.collect()


def _subprocess(program, environment, log):
    with log.open('wb') as out:
        return subprocess.Popen(program, env=environment, stdout=out, stderr=subprocess.STDOUT)


@contextmanager
def ros_world(folder):
    """Give a RosWorld and end everything that was started in it."""
    with own_domain() as domain:
        world = RosWorld(folder, domain)
        try:
            yield world
        finally:
            world.close()


def call(ros, service_type, name, request, timeout=PATIENCE):
    """Call a service and return its answer."""
    client = ros.node.create_client(service_type, name)
    assert client.wait_for_service(timeout), f'no service {name}'
    answer = client.call_async(request)
    ros.spin_until(answer.done, timeout)
    ros.node.destroy_client(client)
    return answer.result()


def _yaml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, list) else str(value)

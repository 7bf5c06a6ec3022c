"""A private piece of ROS for every test: own domain, own processes, all ended afterwards."""

from contextlib import suppress
import gc
import os
import signal
import subprocess
import sys
import time

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

PATIENCE = 120.0
"""Seconds until a test gives up: much more than a loaded machine takes."""
BEST_EFFORT = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Process(subprocess.Popen):
    """A program under test with its output."""

    def __init__(self, program, environment, log):
        self.log = log
        with log.open('wb') as out:
            super().__init__(program, env=environment, stdout=out, stderr=subprocess.STDOUT)

    @property
    def output(self):
        return self.log.read_text(errors='replace')

    def stop(self, how=signal.SIGINT):
        """Send a signal and return the exit code."""
        self.send_signal(how)
        return self.wait()

    def wait(self, timeout=PATIENCE):
        try:
            return super().wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            super().wait()
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

    def start(self, module, *arguments):
        """Start `python -m module arguments` in this domain."""
        log = self.folder / f'process{len(self.processes)}.log'
        own = {
            'ROS_DOMAIN_ID': str(self.domain),
            'PYTHONUNBUFFERED': '1',
            'ROS_LOG_DIR': str(self.folder / 'ros_log'),
        }
        program = [sys.executable, '-m', module, *map(str, arguments)]
        self.processes.append(Process(program, {**os.environ, **own}, log))
        return self.processes[-1]

    def start_node(self, module, **values):
        """Start a node of the package with parameters."""
        return self.start(f'kbr_localization.ros.{module}', *parameter_arguments(values))

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

    def spin_until(self, condition):
        """Spin until a condition holds; fail with the processes' output when it does not."""
        end = time.monotonic() + PATIENCE
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                self._stop_processes()  # so that they sum up
                told = '\n'.join(process.output for process in self.processes)
                raise AssertionError(f'not within {PATIENCE} s; the processes say:\n{told}')
            self.executor.spin_once(timeout_sec=min(left, 0.1))

    def _stop_processes(self):
        # a process that is killed leaves its shared memory, 16 MB, on the machine
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        for process in self.processes:
            with suppress(AssertionError):
                process.wait(timeout=10.0)

    def close(self):
        self._stop_processes()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)
        # a lifecycle node of the test keeps its services until it is collected, and who gets the
        # domain next would call those of the dead; the executor's tasks refer to it
        del self.executor
        gc.collect()


def parameter_arguments(values):
    """Arguments of a program that give a node parameters."""
    pairs = [('-p', f'{name}:={value}') for name, value in values.items()]
    return ['--ros-args', *(part for pair in pairs for part in pair)]


def call(ros, service_type, name, request):
    """Call a service and return its answer."""
    client = ros.node.create_client(service_type, name)
    assert client.wait_for_service(PATIENCE), f'no service {name}'
    answer = client.call_async(request)
    ros.spin_until(answer.done)
    ros.node.destroy_client(client)
    return answer.result()

"""A DDS domain of one's own, also among processes."""

from contextlib import ExitStack
import os
import subprocess
import sys

from kbr_localization.demo import dds_domain
from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.errors import RosError
import pytest

HOLD = """
from kbr_localization.demo.dds_domain import own_domain
import os
os.getpid = lambda: %d
with own_domain() as domain:
    print(domain, flush=True)
    input()
"""


def hold_one(pid):
    program = [sys.executable, '-c', HOLD % pid]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_no_two_processes_have_the_same_one_even_if_they_begin_at_the_same_number():
    with ExitStack() as stack:
        holders = [stack.enter_context(hold_one(os.getpid())) for _ in range(3)]
        stack.callback(lambda: [holder.kill() for holder in holders])
        taken = {int(holder.stdout.readline()) for holder in holders}
        taken |= {stack.enter_context(own_domain()) for _ in range(3)}
        assert len(taken) == 6 and taken <= set(dds_domain.DOMAINS)


def test_a_process_that_is_killed_lets_its_domain_go(monkeypatch):
    with hold_one(1) as holder:
        domain = int(holder.stdout.readline())
        monkeypatch.setattr(dds_domain, 'DOMAINS', range(domain, domain + 1))
        with pytest.raises(RosError, match='taken'), own_domain():
            pass
        holder.kill()
        holder.wait()
    with own_domain() as again:
        assert again == domain

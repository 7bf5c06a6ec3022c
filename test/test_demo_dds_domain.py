"""A DDS domain of one's own, also among processes."""

import subprocess
import sys

from kbr_localization.demo.dds_domain import own_domain
import pytest

HOLD = """
from kbr_localization.demo.dds_domain import own_domain
with own_domain() as domain:
    print(domain, flush=True)
    input()
"""


def test_no_two_have_the_same_one_until_the_process_ends():
    program = [sys.executable, '-c', HOLD]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
    with subprocess.Popen(program, **pipes) as holder:
        taken = int(holder.stdout.readline())
        with own_domain() as one, own_domain() as other:
            assert len({taken, one, other}) == 3
        holder.kill()
        holder.wait()


def test_all_domains_may_be_taken(monkeypatch):
    from kbr_localization.demo import dds_domain
    from kbr_localization.errors import RosError

    with own_domain() as taken:
        monkeypatch.setattr(dds_domain, 'DOMAINS', range(taken, taken + 1))
        with pytest.raises(RosError, match='DDS domains are taken'), own_domain():
            pass
    with own_domain() as again:
        assert again == taken

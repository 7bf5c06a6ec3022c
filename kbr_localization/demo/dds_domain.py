"""A DDS domain that nobody else on this machine uses, as far as they ask here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
import socket

from kbr_localization.errors import RosError

DOMAINS = range(1, 101)
"""Beyond 101 the ports of a domain reach into those that Linux gives to anybody."""


@contextmanager
def own_domain() -> Iterator[int]:
    """Keep a DDS domain to oneself; raises RosError when all are taken."""
    start = os.getpid() * 7
    for step in DOMAINS:
        domain = DOMAINS[(start + step) % len(DOMAINS)]
        with socket.socket() as claim:
            try:
                # whoever listens there has the domain; the port falls free with the process
                claim.bind(('127.0.0.1', 17_400 + domain))
                claim.listen()
            except OSError:
                continue
            yield domain
            return
    raise RosError(f'all {len(DOMAINS)} DDS domains are taken: end the processes that use them')

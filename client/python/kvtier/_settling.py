# SPDX-License-Identifier: Apache-2.0
"""After a daemon was lost in the midst of copies: when nothing touches the region's memory any more,
so that an engine may give it to others."""

from __future__ import annotations

import time
from typing import Protocol

#: Counts only while a daemon that the library gave up stands still, perhaps in the midst of a copy.
#: After as long systemd's watchdog kills it; one that nothing watches, and that goes on later still,
#: ends that copy: some MiB at most.
LONGEST_S = 30.0
_PAUSE_S = 0.002


class OfDaemon(Protocol):
    def daemon_ended(self) -> bool: ...


def wait_until_settled(region: OfDaemon) -> None:
    """Returns when the daemon touches the region's memory no more, or after `LONGEST_S`."""
    give_up = time.monotonic() + LONGEST_S
    while not region.daemon_ended() and time.monotonic() < give_up:
        time.sleep(_PAUSE_S)

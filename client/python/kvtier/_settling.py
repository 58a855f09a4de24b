# SPDX-License-Identifier: Apache-2.0
"""After a daemon was lost in the midst of copies: when nothing touches the region's memory any more,
so that an engine may give it to others."""

from __future__ import annotations

import time
from typing import Protocol

#: Far longer than a copy. It counts only while the daemon's process is not known to have ended: one
#: that lives, and that the library gave up, may be in the midst of a copy.
LONGEST_S = 2.0
_PAUSE_S = 0.002


class OfDaemon(Protocol):
    def daemon_ended(self) -> bool: ...


def wait_until_settled(region: OfDaemon) -> None:
    """Returns when the region's daemon has ended, and its copies with it, or after `LONGEST_S`."""
    give_up = time.monotonic() + LONGEST_S
    while not region.daemon_ended() and time.monotonic() < give_up:
        time.sleep(_PAUSE_S)

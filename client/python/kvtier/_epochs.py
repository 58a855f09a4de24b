# SPDX-License-Identifier: Apache-2.0
"""Which weights an engine has, from one change of them to the next: the epoch, by which blocks of
other weights are told apart.

An engine begins in the epoch that its files name. A new one begins whenever the engine says that the
weights may be others. Its name is random, so that no other engine has it, unless the caller names the
weights. The daemon's blocks of an epoch stay for engines that are in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ._facts import short


def unnamed_epoch() -> str:
    """One that no engine has been in."""
    return f"unnamed:{secrets.token_hex(16)}"


class WeightEpochs:
    """Used by the scheduler's thread. first: the name of the weights that were loaded; None: it is not
    known which they are. run: names the training run in which the engine's weight versions are unique;
    "": they name nothing. version: the engine's, None if it has none. unnamed: makes names that no
    other engine has."""

    def __init__(
        self,
        first: str | None,
        run: str = "",
        version: Callable[[], str | None] = lambda: None,
        unnamed: Callable[[], str] = unnamed_epoch,
    ) -> None:
        self.current = unnamed() if first is None else first
        self._unnamed = unnamed
        self._run = run
        self._version = version
        self._version_before = version()
        self._is_new = False
        self._may_be_named = False

    def turn(self, may_be_named: bool) -> bool:
        """The weights may be others from now on. may_be_named: whether nothing that was computed with
        those before is left in the engine, where it would be taken for what a name stands for. Returns
        whether `current` is another one: not if nothing has begun since the last turn."""
        self._may_be_named = may_be_named
        if self._is_new:
            return False
        self._is_new = True
        self.current = self._unnamed()
        return True

    def begin(self) -> bool:
        """Before the engine asks for blocks or computes some: whether the caller has named the weights
        since the turn, so that `current` is another one."""
        if not self._is_new:
            return False
        self._is_new = False
        version, before = self._version(), self._version_before
        self._version_before = version
        if not self._run or not self._may_be_named or version in (None, before):
            return False
        self.current = f"named:{short(f'{self._run}/{version}')}"
        return True

# SPDX-License-Identifier: Apache-2.0
"""Tells whether SGLang has flushed its caches since its weights became others."""

from __future__ import annotations

import threading
import weakref


class StorageThreads:
    """SGLang's threads that call a storage, to tell whether it has flushed its caches since an update of the
    weights: a flush ends them, and makes others. Until then they go on to store pages of the weights before.
    Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._old: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def note(self, changed: bool) -> None:
        """This thread calls. changed: the weights are found to be others."""
        with self._lock:
            if changed and any(one.is_alive() for one in self._seen):
                self._old = weakref.WeakSet(threading.enumerate())
            if threading.current_thread() is not threading.main_thread():
                self._seen.add(threading.current_thread())

    def have_old_pages(self) -> bool:
        """Whether this thread may still have pages to store that other weights computed."""
        with self._lock:
            return threading.current_thread() in self._old

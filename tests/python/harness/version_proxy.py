# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and the daemon, and changes the protocol version that one of them names: so
each meets the other as of another release."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 20, 16
_FRAME_HEADER_BYTES, _MAGIC_BYTES = 16, 4


class VersionProxy:
    """Listens at `path`. says: HELLO's version, of clients; answers: HELLO_REPLY's, of the daemon; None:
    as it comes. connections: how often a client has come."""

    def __init__(
        self,
        path: str,
        daemon: str,
        says: tuple[int, int] | None = None,
        answers: tuple[int, int] | None = None,
    ) -> None:
        self.path = path
        self.connections = 0
        self._daemon, self._says, self._answers = daemon, says, answers
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Call it when no client is there any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            daemon = socket.socket(socket.AF_UNIX)
            daemon.connect(self._daemon)
            ends = [threading.Thread(target=self._serve, args=(client, daemon))]
            self._threads += ends
            ends[0].start()

    def _serve(self, client: socket.socket, daemon: socket.socket) -> None:
        back = threading.Thread(target=self._forward, args=(daemon, client, 0, self._answers))
        back.start()
        self._forward(client, daemon, _MAGIC_BYTES, self._says)
        back.join()
        client.close()
        daemon.close()

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        offset: int,
        version: tuple[int, int] | None,
    ) -> None:
        """Until the source ends. offset: of the version in the payload of the first frame."""
        with contextlib.suppress(OSError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(source, _MOST_BYTES, _MOST_DESCRIPTORS)
                if not data:
                    break
                if version is not None:
                    at = _FRAME_HEADER_BYTES + offset
                    data = data[:at] + struct.pack("<HH", *version) + data[at + 4 :]
                    version = None
                sent = socket.send_fds(target, [data], descriptors)
                target.sendall(data[sent:])
                for descriptor in descriptors:
                    os.close(descriptor)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

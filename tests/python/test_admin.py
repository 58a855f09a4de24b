# SPDX-License-Identifier: Apache-2.0
"""Requests to the admin socket."""

import json
import os
import socket
import struct
import tempfile
import threading
import unittest
import unittest.mock

import kvtier
from harness.daemon_test_case import DaemonTestCase


class AdminTest(DaemonTestCase):
    def test_status_shows_this_client_by_its_name(self):
        self.connect()
        status = kvtier.admin({"op": "status"}, self.daemon.admin_socket)
        self.assertIn("python test", str(status))

    def test_daemons_are_found_without_a_path(self):
        with unittest.mock.patch.dict(os.environ, KVTIER_SOCKET=self.daemon.socket):
            with kvtier.connect() as connection:
                self.assertTrue(connection.is_connected())
            self.assertEqual(kvtier.admin({"op": "status"})["socket"], self.daemon.socket)

    def test_a_refusal_is_an_error_with_its_reason(self):
        with self.assertRaises(kvtier.KvtierError) as raised:
            kvtier.admin({"op": "no such thing"}, self.daemon.admin_socket)
        self.assertTrue(raised.exception.reason)

    def test_without_a_daemon_it_is_unavailable(self):
        with tempfile.TemporaryDirectory() as directory, self.assertRaises(kvtier.UnavailableError):
            kvtier.admin({"op": "status"}, os.path.join(directory, "admin.sock"))


class ScriptedDaemon:
    """Answers one request on its socket with two progress messages and a reply."""

    HEADER = struct.Struct("<IHHQ")  # payload bytes, type, flags, request id
    PROGRESS, REPLY = 33, 34

    def __init__(self, path):
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def join(self):
        self._thread.join()
        self._listener.close()

    def _serve(self):
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rwb") as stream:
            size, _, _, request_id = self.HEADER.unpack(stream.read(self.HEADER.size))
            stream.read(size)
            for kind, value in (
                (self.PROGRESS, {"done": 1}),
                (self.PROGRESS, {"done": 2}),
                (self.REPLY, {"all": 2}),
            ):
                text = json.dumps(value).encode()
                stream.write(self.HEADER.pack(len(text) + 4, kind, 0, request_id))
                stream.write(struct.pack("<I", len(text)) + text)
            stream.flush()


class AdminProgressTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-python-")
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "admin.sock")
        daemon = ScriptedDaemon(self.path)
        self.addCleanup(daemon.join)

    def test_progress_is_told_message_by_message_before_the_reply_comes(self):
        told = []
        reply = kvtier.admin({"op": "verify"}, self.path, progress=told.append)
        self.assertEqual((told, reply), ([{"done": 1}, {"done": 2}], {"all": 2}))

    def test_what_the_progress_function_raises_comes_out(self):
        def fail(_):
            raise RuntimeError("enough")

        with self.assertRaisesRegex(RuntimeError, "enough"):
            kvtier.admin({"op": "verify"}, self.path, progress=fail)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""`kvtierctl doctor` on this machine, beside a daemon and without one."""

import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

from harness.daemon_test_case import DaemonTestCase
from harness.paths import daemon_program


def run_doctor(directory, *arguments, **environment):
    program = pathlib.Path(daemon_program()).parent / "kvtierctl"
    return subprocess.run(
        [program, "doctor", *(["--directory", directory] if directory else []), *arguments],
        env={**os.environ, "KVTIER_SOCKET": "", "XDG_RUNTIME_DIR": str(directory), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class DoctorTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def checks(self, done):
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], "kvtier.doctor/1")
        return {check["name"]: check for check in document["checks"]}

    def test_it_says_of_each_part_how_it_is_and_what_to_do(self):
        done = run_doctor(self.directory, "--json", KVTIER_SOCKET="/nonexistent/kvtier.sock")
        checks = self.checks(done)
        for name in ("driver", "memlock", "hugepages", "disk", "io_uring", "numa", "memory"):
            self.assertIn(name, checks)
        self.assertEqual(checks["daemon"]["level"], "warn")
        self.assertIn("kvtierd --dev", checks["daemon"]["advice"])
        for check in checks.values():
            self.assertEqual(bool(check["advice"]), check["level"] != "ok", check)
        failed = [name for name, check in checks.items() if check["level"] == "fail"]
        self.assertEqual(done.returncode, 1 if failed else 0, failed)

    def test_a_place_where_another_user_could_listen_fails(self):
        (self.directory / "kvtier").mkdir()
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(str(self.directory / "kvtier" / "kvtier.sock"))
        (self.directory / "kvtier").chmod(0o777)
        done = run_doctor(self.directory)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("fail  socket owner", done.stdout)
        self.assertIn("can be written by other users", done.stdout)

    def test_a_disk_directory_that_others_may_write_to_is_warned_of(self):
        disk = self.directory / "kvtier" / "disk"
        disk.mkdir(parents=True)
        for mode, level in ((0o700, "ok"), (0o777, "warn")):
            disk.chmod(mode)
            # No directory is named: doctor looks where kvtierd --dev would write.
            done = run_doctor("", "--json", KVTIER_SOCKET="/nonexistent/kvtier.sock",
                              XDG_CACHE_HOME=str(self.directory))
            self.assertEqual(self.checks(done)["disk owner"]["level"], level, done.stdout)

    def test_a_directory_that_a_daemon_for_oneself_would_make_with_those_above_it_is_well(self):
        done = run_doctor("", "--json", KVTIER_SOCKET="/nonexistent/kvtier.sock",
                          XDG_CACHE_HOME=str(self.directory / "not" / "there"))
        self.assertIn(f"{self.directory}: ", self.checks(done)["disk"]["found"])

    def test_it_fits_on_one_screen(self):
        done = run_doctor(self.directory)
        self.assertLessEqual(done.stdout.count("\n"), 40)


class DoctorBesideADaemonTest(DaemonTestCase):
    def test_a_daemon_that_serves_is_well(self):
        with tempfile.TemporaryDirectory() as directory:
            by_socket = run_doctor(directory, KVTIER_SOCKET=self.daemon.socket)
            beside = pathlib.Path(self.daemon.socket).parent / "admin.sock"
            by_admin_socket = run_doctor(directory, "--admin-socket", beside)
        self.assertIn(f"serves on {self.daemon.socket}", by_socket.stdout)
        if os.geteuid() == 0:
            self.assertIn(f"serves on {self.daemon.socket}", by_admin_socket.stdout)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Takes the journal's place and looks at the entries of a kvtierd. REQUIRES: a /run of its own."""
import os
import socket
import subprocess
import sys

SECONDS = 20


def fields_of(datagram):
    return dict(line.split("=", 1) for line in datagram.decode().splitlines())


def main(kvtierd):
    os.makedirs("/run/systemd/journal")
    os.makedirs("/run/kvtier")
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind("/run/systemd/journal/socket")
    journal.settimeout(SECONDS)
    # Standard error is a pipe; said to be the journal's by its device and inode.
    reading, writing = os.pipe()
    status = os.fstat(writing)
    settings = ["pool.bytes=1MiB", "host.bytes=64MiB", "restart.keep_for=0s",
                "server.socket=/run/kvtier/s",
                "server.admin_socket=/run/kvtier/a"]
    daemon = subprocess.Popen(
        [kvtierd] + [word for setting in settings for word in ("--set", setting)],
        stdout=subprocess.PIPE, stderr=writing,
        env={**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
    os.close(writing)
    entries = []
    while not entries or entries[-1]["KVTIER_ID"] != "server.ready":
        entries.append(fields_of(journal.recv(65536)))
    # Only now does it take signals its own way.
    assert daemon.stdout.readline().startswith(b"READY ")
    daemon.terminate()
    assert daemon.wait(SECONDS) == 0
    assert entries[0]["MESSAGE"].startswith("daemon.starting: kvtierd "), entries[0]
    assert all(entry["SYSLOG_IDENTIFIER"] == "kvtierd" for entry in entries), entries
    assert all(entry["PRIORITY"] == "6" for entry in entries), entries
    with os.fdopen(reading, "rb") as errors:
        assert errors.read() == b"", "what is in the journal is not on standard error too"
    print(f"ok: {len(entries)} entries")


main(sys.argv[1])

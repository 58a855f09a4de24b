# SPDX-License-Identifier: Apache-2.0
"""Takes the journal's place and looks at the entries of a kvtierd. REQUIRES: a /run of its own."""
import os
import socket
import subprocess
import sys

SECONDS = 20
SETTINGS = ["pool.bytes=1MiB", "host.bytes=64MiB", "restart.keep_for=0s",
            "server.socket=/run/kvtier/s", "server.admin_socket=/run/kvtier/a"]


def listen(path):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(path)
    made.settimeout(SECONDS)
    return made


def fields_of(datagram):
    return dict(line.split("=", 1) for line in datagram.decode().splitlines())


def run(kvtierd, journal, manager, output_is_journal):
    """The entries of a daemon, and its standard output elsewhere than in the journal."""
    # Standard error is a pipe; said to be the journal's by its device and inode.
    reading, writing = os.pipe()
    status = os.fstat(writing)
    daemon = subprocess.Popen(
        [kvtierd] + [word for setting in SETTINGS for word in ("--set", setting)],
        stdout=writing if output_is_journal else subprocess.PIPE, stderr=writing,
        env={**os.environ, "NOTIFY_SOCKET": "/run/kvtier/notify",
             "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
    os.close(writing)
    entries = []
    while not entries or entries[-1]["KVTIER_ID"] != "server.ready":
        entries.append(fields_of(journal.recv(65536)))
    # Only now does it take signals its own way.
    while b"READY=1" not in manager.recv(65536):
        pass
    daemon.terminate()
    output, _ = daemon.communicate(timeout=SECONDS)
    assert daemon.returncode == 0
    while entries[-1]["KVTIER_ID"] != "daemon.stopped":
        entries.append(fields_of(journal.recv(65536)))
    with os.fdopen(reading, "rb") as errors:
        assert errors.read() == b"", "what is in the journal is not on standard error too"
    return entries, output


def main(kvtierd):
    os.makedirs("/run/systemd/journal")
    os.makedirs("/run/kvtier")
    journal, manager = listen("/run/systemd/journal/socket"), listen("/run/kvtier/notify")
    entries, output = run(kvtierd, journal, manager, output_is_journal=False)
    assert output.startswith(b"READY socket="), output
    assert entries[0]["MESSAGE"].startswith("daemon.starting: kvtierd "), entries[0]
    assert all(entry["SYSLOG_IDENTIFIER"] == "kvtierd" for entry in entries), entries
    assert all(entry["PRIORITY"] == "6" for entry in entries), entries
    run(kvtierd, journal, manager, output_is_journal=True)
    print(f"ok: {len(entries)} entries")


main(sys.argv[1])

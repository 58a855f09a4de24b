# SPDX-License-Identifier: Apache-2.0
"""runbook.py SOURCE_DIRECTORY: the runbook has every warning and error that exists, METRICS.md a section
for every alert, and tests expect the lines of the faults that can be provoked."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
runbook = (source / "docs/OPERATIONS.md").read_text()
metrics = (source / "docs/METRICS.md").read_text().splitlines()

ids = set()
for path in (source / "daemon").rglob("*.cc"):
    ids |= set(re.findall(r'(?:Warning|Error)\(\s*"([a-z]+\.[a-z_]+)"', path.read_text()))
alerts = set()
for path in (source / "tools").glob("monitoring/*.rules.yml"):
    alerts |= set(re.findall(r"alert: (\w+)", path.read_text()))

# Faults that a test provokes, and of which it expects the line. A kind of its own each.
PROVOKED = {
    "canary.differs", "canary.distrusted", "cold.away", "cold.damaged", "cold.failed",
    "device.copy_failed", "device.degraded",
    "disk.budget_spent", "disk.damaged", "disk.header_kept", "disk.index_failed",
    "disk.not_encrypted", "disk.read_failed", "disk.unavailable", "disk.write_failed",
    "disk.writes_paused",
    "drain.incomplete", "keeper.lost", "memory.short", "model.no_revision",
    "pool.exhausted", "pool.overwritten", "restart.damaged",
    "server.client_refused", "session.warned",
}  # fmt: skip
tests = "".join(path.read_text() for path in (source / "tests").rglob("*_test.cc"))

assert len(ids) > 10, "the pattern finds no log ids any more"
missing = sorted(name for name in ids if f"`{name}`" not in runbook)
if missing:
    sys.exit("docs/OPERATIONS.md, runbook: nothing about " + ", ".join(missing))
missing = sorted(name for name in alerts if f"### {name}" not in metrics)
if missing:
    sys.exit("docs/METRICS.md, alerts: nothing about " + ", ".join(missing))
unprovoked = sorted(name for name in PROVOKED if name not in ids or name not in tests)
if unprovoked:
    sys.exit("no test expects the line of " + ", ".join(unprovoked))
print(f"ok: {len(ids)} log ids, {len(alerts)} alerts")

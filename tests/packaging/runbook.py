# SPDX-License-Identifier: Apache-2.0
"""runbook.py SOURCE_DIRECTORY: the runbook has every warning, error and alert that exists."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
runbook = (source / "docs/OPERATIONS.md").read_text()

ids = set()
for path in (source / "daemon").rglob("*.cc"):
    ids |= set(re.findall(r'(?:Warning|Error)\(\s*"([a-z]+\.[a-z_]+)"', path.read_text()))
alerts = set()
for path in (source / "tools").glob("monitoring/*.rules.yml"):
    alerts |= set(re.findall(r"alert: (\w+)", path.read_text()))

assert len(ids) > 10, "the pattern finds no log ids any more"
missing = sorted(name for name in ids | alerts if f"`{name}`" not in runbook)
if missing:
    sys.exit("docs/OPERATIONS.md, runbook: nothing about " + ", ".join(missing))
print(f"ok: {len(ids)} log ids, {len(alerts)} alerts")

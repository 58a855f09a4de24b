#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the library of the commit before beside this tree's daemon, and this tree's library beside that
# commit's daemon, as hosts have them while an upgrade goes from process to process: all works, or the
# library names both versions in one line and its engine has misses.
#
#   tools/test-previous.sh [COMMIT]
#
# COMMIT: the other commit; without it, the one before HEAD. The release preset of this tree is built before.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

here=$PWD
commit=$(git rev-parse --verify "${1:-HEAD~1}^{commit}")
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"; git worktree prune' EXIT
git worktree add --quiet --detach "$work/tree" "$commit"

# beside LIBRARY_TREE DAEMON_TREE: the daemon's own tree starts it, because its settings may have other names.
beside() {
  PYTHONPATH=$2/client/python:$2/tests/python KVTIERD=$2/build/release/bin/kvtierd \
    KVTIER_LIBRARY=$2/build/release/lib/libkvtier.so PYTHONDONTWRITEBYTECODE=1 \
    /usr/bin/python3 - "$work" "$here/tests/python/other_commit.py" "$1" <<'PYTHON'
import os
import subprocess
import sys

from harness.private_daemon import PrivateDaemon, settings

work, program, library_tree = sys.argv[1:]
directory = os.path.join(work, "daemon")
os.makedirs(directory, exist_ok=True)
daemon = PrivateDaemon(directory, settings(64, 128, 0, "host"))
daemon.start()
try:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{library_tree}/client/python",
        "KVTIER_LIBRARY": f"{library_tree}/build/release/lib/libkvtier.so",
    }
    ended = subprocess.run(
        [sys.executable, program, daemon.socket], env=environment, timeout=300, check=False
    )
finally:
    daemon.kill()
sys.exit(ended.returncode)
PYTHON
}

build_preset release kvtierd kvtier-keeper kvtierctl kvtier
(cd "$work/tree" && build_preset release kvtierd kvtier-keeper kvtierctl kvtier)
echo "== the library of ${commit:0:8} beside this daemon"
beside "$work/tree" "$here"
echo "== this library beside the daemon of ${commit:0:8}"
beside "$here" "$work/tree"

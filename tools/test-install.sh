#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a release build as users get it, and does what they do first: the wheel is installed in an empty environment
# and in a bare root of Debian 12, the Debian packages in another, and the daemon, its tools and the demonstration run.
# Where roots cannot be made, says why and tries the environment alone.
#
#   tools/test-install.sh [BUILD_DIRECTORY]
#
# BUILD_DIRECTORY: that of the preset release, with everything built; without it, build/wheel is made.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packaging/bare_root.sh  # sets `work`

[[ $# -le 1 && ${1:-} != -* ]] || { echo 'usage: tools/test-install.sh [BUILD_DIRECTORY]' >&2; exit 2; }
[[ -z ${1:-} ]] || export KVTIER_BUILD_DIRECTORY=$1

# timed WHAT COMMAND...: shows the output of a command only if it fails, and else how long it took, and how long
# a user waits for the first table.
timed() {
  local what=$1 started=$SECONDS
  shift
  if ! "$@" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    echo "test-install: $what failed" >&2
    exit 1
  fi
  grep '^from pip install to the table' "$work/log" || true
  echo "== $what: $((SECONDS - started)) s"
}

places=(here)
debian=bookworm
if why=$(roots_are_made); then
  places+=("$debian")
else
  echo "== bare roots are left out: $why"
  debian=
fi
timed 'wheel made' tools/packaging/build-wheel.sh "$work/wheel"
timed "wheel installed and run: ${places[*]}" tools/packaging/test-wheel.sh "$work"/wheel/*.whl "${places[@]}"
timed 'Debian packages made' tools/packaging/build-packages.sh "$work/packages"
[[ -z $debian ]] ||
  timed "Debian packages installed and run: $debian" tools/packaging/test-packages.sh "$work/packages" "$debian"

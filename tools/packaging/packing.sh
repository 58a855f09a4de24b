# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that pack a build, which are called with the directory for their output:
# sets `output`, that directory; `build`, KVTIER_BUILD_DIRECTORY or build/wheel; and `work`, which
# is gone when the script ends.
# Files that are packed have the time of the commit, or SOURCE_DATE_EPOCH.

# The version of glibc that the parts may require.
readonly floor=2.34

die() {
  printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
  exit 1
}
[[ $# == 1 && $1 != -* ]] || { echo "usage: tools/packaging/${0##*/} OUTPUT_DIRECTORY" >&2; exit 2; }
mkdir -p "$1"
output=$(realpath "$1")
build=$(realpath -m "${KVTIER_BUILD_DIRECTORY:-build/wheel}")
work=$(mktemp -d)
readonly output build work
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}

# check_floor NAME VERSION: VERSION of glibc, or nothing, is what NAME asks for.
check_floor() {
  [[ $(printf '%s\n' "$2" "$floor" | sort -V | tail -n 1) == "$floor" ]] ||
    die "$1 needs glibc $2, more than $floor"
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian packages. One set serves Debian 12 and later and Ubuntu 22.04 and later: libraries
# whose packages have other names there are linked into the programs, and of glibc no more is asked for
# than 2.34 (tools/packaging/test-packages.sh installs them in each).
#
#   tools/packaging/build-packages.sh OUTPUT_DIRECTORY
#
# KVTIER_BUILD_DIRECTORY names a build (configured with -DKVTIER_STATIC=ON) to take the files from instead of
# making one in build/wheel, which build-wheel.sh makes, too. Timestamps: those of the commit, or
# SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "$0")/../.."

# What the parts may ask of glibc.
readonly floor=2.34

die() {
  printf 'build-packages: %s\n' "$*" >&2
  exit 1
}
[[ $# == 1 ]] || die 'usage: tools/packaging/build-packages.sh OUTPUT_DIRECTORY'
mkdir -p "$1"
readonly output=$(realpath "$1")
readonly build=$(realpath -m "${KVTIER_BUILD_DIRECTORY:-build/wheel}")
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}

if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  cmake --preset release -B "$build" -DKVTIER_STATIC=ON -DKVTIER_BUILD_TESTS=OFF
  cmake --build "$build"
fi
(cd "$build" && cpack -B "$work") >"$work/cpack.log" || {
  cat "$work/cpack.log" >&2
  die 'cpack failed'
}
for package in "$work"/*.deb; do
  # dpkg-shlibdeps knows what each part asks for.
  needed=$(dpkg-deb --field "$package" Depends | { grep -o 'libc6 (>= [0-9.]*' || true; } | sed 's/.* //')
  [[ $(printf '%s\n' "$needed" "$floor" | sort -V | tail -n 1) == "$floor" ]] ||
    die "${package##*/} needs glibc $needed, more than $floor"
  cp "$package" "$output"
done
ls "$output"/*.deb

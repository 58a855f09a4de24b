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

source tools/packaging/packing.sh

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
  check_floor "${package##*/}" "$needed"
  cp "$package" "$output"
done
ls "$output"/*.deb

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes all that a release consists of: wheel, source distribution, tarball, Debian packages, a list
# of their contents (SPDX), the notes, and checksums.
#
#   tools/release.sh OUTPUT_DIRECTORY                # of a tagged commit, from a clean tree
#   tools/release.sh --snapshot OUTPUT_DIRECTORY     # of any tree; notes are those not released yet
#
# The version is that of the file VERSION. On Debian 12, after tools/setup.sh --build; builds for half an hour
# and more, without a compiler cache: with one, objects name a generated source by another path. One build, in build/wheel, serves the wheel and the Debian packages: these link what changes its
# name from release to release of Debian and Ubuntu into the programs, and so one set serves Debian 12 and
# later and Ubuntu 22.04 and later. KVTIER_WHEEL names a wheel to take instead of building one; with
# KVTIER_NO_PACKAGES=1 no Debian packages are made. Timestamps are those of the commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
  printf 'release: %s\n' "$*" >&2
  exit 1
}
snapshot=
if [[ ${1:-} == --snapshot ]]; then
  snapshot=yes
  shift
fi
[[ $# == 1 && $1 != -* ]] || die 'usage: tools/release.sh [--snapshot] OUTPUT_DIRECTORY'
mkdir -p "$1"
readonly output=$(realpath "$1")
[[ -z $(ls -A "$output") ]] || die "$output is not empty"
readonly version=$(<VERSION)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} CCACHE_DISABLE=1
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The part of the changelog below the heading "## $1".
notes_of() {
  awk -v heading="$1" '/^## /{on = index($0 " ", "## " heading " ") == 1; next} on' CHANGELOG.md |
    sed -e '/./,$!d'
}

notes=$(notes_of "$version")
if [[ -z $snapshot ]]; then
  [[ -z $(git status --porcelain) ]] || die 'the tree has changes that are not committed'
  [[ $(git describe --exact-match --tags 2>/dev/null) == "v$version" ]] ||
    die "this commit has no tag v$version"
  [[ -n $notes ]] || die "CHANGELOG.md has nothing under a heading \"## $version\""
else
  notes=$(notes_of Unreleased)
fi
printf '%s\n' "$notes" >"$output/NOTES.md"

if [[ -n ${KVTIER_WHEEL:-} ]]; then
  cp "$KVTIER_WHEEL" "$output"
else
  tools/packaging/build-wheel.sh "$output"
fi
readonly wheel=$(echo "$output"/kvtier-"$version"-*.whl)
[[ -e $wheel ]] || die "the wheel is not of version $version"

PYTHONPATH=tools/packaging PYTHONDONTWRITEBYTECODE=1 python3 -c \
  'import build_backend, sys; build_backend.build_sdist(sys.argv[1])' "$output"

# Programs and libraries for systems without Python; unpacked anywhere, they find each other.
readonly tree=kvtier-$version-linux-x86_64
tools/packaging/unpack-wheel.sh "$wheel" "$work/$tree"
tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$SOURCE_DATE_EPOCH" --format=gnu "$tree" | gzip -9n >"$output/$tree.tar.gz"

if [[ -z ${KVTIER_NO_PACKAGES:-} ]]; then
  tools/packaging/build-packages.sh "$output"
fi

python3 tools/packaging/sbom.py "$wheel" >"$output/kvtier-$version.spdx.json"
(cd "$output" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
printf 'release: %s\n' "$output"
ls -l "$output"

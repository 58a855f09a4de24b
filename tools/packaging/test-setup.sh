#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries tools/setup.sh in bare roots of Debian 12 that have packages of their owners already: setup removes none of
# them, and afterwards the tree can be configured and a library that uses Boost compiled.
#
#   tools/packaging/test-setup.sh [--demo|--build|--tests|--all] [NAME ...]
#
# Without an option it calls setup with --tests. Names: bare, scipy (which brings another Boost),
# desktop (a browser, gnuplot, shells). Without any: all three. Needs root, mmdebstrap and a mirror
# within reach, and minutes; tests/packaging/setup.py asks apt the same in seconds, and installs
# nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/packaging/bare_root.sh

die() {
  printf 'test-setup: %s\n' "$*" >&2
  exit 1
}
level=--tests
if [[ ${1:-} == --* ]]; then
  level=$1
  shift
fi
readonly level
names=("$@")
[[ $# -gt 0 ]] || names=(bare scipy desktop)

packages_of() {
  case $1 in
    bare) echo apt ;;
    scipy) echo apt,python3-scipy,libboost-dev ;;
    desktop) echo apt,chromium,gnuplot-nox,fish,zsh,libboost-dev ;;
    *) die "no such machine: $1" ;;
  esac
}

readonly journey='
set -eu
installed() { dpkg-query --show --showformat "\${db:Status-Abbrev} \${Package}\n" | sed -n "s/^ii *//p" | sort; }
installed >/before
/tree/tools/setup.sh "$1"
installed >/after
gone=$(comm -23 /before /after)
[ -z "$gone" ] || { echo "removed: $gone"; exit 1; }
echo "$(comm -13 /before /after | wc -l) packages more"
/tree/tools/setup.sh "$1" >/again
grep -v "left out" /again || true
cd /tree
case $1 in --demo | --build) tests=OFF ;; *) tests=ON ;; esac
cmake --preset release -DKVTIER_BUILD_TESTS=$tests >/t.log 2>&1 || { tail -n 20 /t.log; exit 1; }
ninja -C build/release kvtier_tools_support >/t.log 2>&1 ||
  { tail -n 20 /t.log; exit 1; }
'

for name in "${names[@]}"; do
  printf '== %s\n' "$name"
  make_root bookworm "$(packages_of "$name")"
  mkdir "$root/tree"
  git ls-files -z | xargs -0 tar --create --no-recursion | tar --extract --directory "$root/tree"
  chroot "$root" bash -c "$journey" journey "$level"
done
printf 'test-setup: ok %s %s\n' "$level" "${names[*]}"

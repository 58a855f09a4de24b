#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs packages of Debian 12 or later, and never removes one. Quick and silent when all of them are there;
# needs root only when something is missing. Debian 12 is what kvtier is tested on.
#
#   tools/setup.sh --demo     # the packages that compile the programs of tools/quickstart.sh
#   tools/setup.sh --build    # the same for all shipped files
#   tools/setup.sh            # and for the tests
#   tools/setup.sh --all      # and for single tests: a browser, shells, servers; without it they skip
#
# Most of it can be done without: if apt would have to remove a package for one of these, setup leaves it out and
# says so. It does not install services' packages but with --all, because Debian starts them at once.
set -euo pipefail

usage() {
  sed -n '/^#   tools/s/^# *//p' "$0" >&2
  exit 2
}
level=${1---tests}
case $level in --demo | --build | --tests | --all) ;; *) usage ;; esac
[[ $# -le 1 ]] || usage

# Debian 12 has a Boost and a clang that are too old under their plain names; later ones have no others.
boost='' clang=''
if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then boost=1.81 clang=-14; fi
readonly boost clang
# Where Boost is unpacked if it cannot be installed, because SciPy's packages bring another version of it.
# cmake/KvtierLibraries.cmake looks there.
boost_directory=$(cd "$(dirname "$0")/.." && pwd)/build/boost
readonly boost_directory

# Nothing works without them.
boost_packages=("libboost$boost-dev" "libboost-json$boost-dev")
needed=(
  g++ cmake ninja-build pkg-config python3
  libcli11-dev libexpected-dev libfmt-dev librocksdb-dev libspdlog-dev libssl-dev libsystemd-dev
  libtomlplusplus-dev liburing-dev libxxhash-dev
)
# A build or a test does without each of them; the demonstration needs arrays, from wherever they come.
wanted=(python3-numpy)

if [[ $level != --demo ]]; then
  wanted+=(
    ccache
    # the libraries for cold stores: servers that speak RESP, or S3
    libhiredis-dev "libcurl4-openssl-dev|libcurl-dev"
    # manual pages
    pandoc
    # Debian packages, the wheel
    dpkg-dev file python3-pip python3-setuptools python3-venv python3-wheel
  )
fi
if [[ $level == --tests || $level == --all ]]; then
  needed+=(libgtest-dev libgmock-dev)
  wanted+=(
    # fuzzers
    "clang$clang" "libclang-rt$clang-dev"
    # the file system that records writes for the robustness campaign
    libfuse3-dev fuse3
    # tests of the unit and of Debian packages
    init-system-helpers procps systemd
  )
fi
if [[ $level == --all ]]; then
  wanted+=(
    # tensors of the Python package
    python3-torch
    # Kubernetes manifests, GitHub's workflows
    python3-yaml
    # bare systems, in which tests install the shipped files
    mmdebstrap
    # what judges the metrics page: promtool, the OpenMetrics parser, and a browser for the live page
    prometheus python3-prometheus-client chromium-headless-shell
    # stores for the tests of the cold tier: a file system that can hang, and a server
    bindfs redis-server
    # tests of manual pages and completions; gnuplot draws for kvtierctl bench --plot
    fish "gnuplot-nox|gnuplot-qt|gnuplot-x11" man-db mandoc zsh
  )
fi

# missing_of PACKAGE[|PACKAGE...]...: those that are not installed, one a line; the first where each of several serves
# and none is there.
missing_of() {
  local package states
  for package in "$@"; do
    states=$(dpkg-query --show --showformat '${db:Status-Abbrev}\n' ${package//|/ } 2>/dev/null || true)
    grep -q '^ii' <<<"$states" || echo "${package%%|*}"
  done
}

# installable PACKAGE...: apt can install them and remove nothing for it. It is asked where it would get them from,
# which takes half as long as to simulate it.
installable() {
  apt-get install --print-uris --yes --no-remove --no-install-recommends "$@" >/dev/null 2>&1
}

fail() {
  cat "$log" >&2
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# choose PACKAGE...: adds each to `chosen` if apt can install it with the others there, and else to `left_out`.
choose() {
  if installable "${chosen[@]}" "$@"; then
    chosen+=("$@")
  elif (($# == 1)); then
    left_out+=("$1")
  else
    choose "${@:1:$#/2}"
    choose "${@:$#/2+1}"
  fi
}

# Boost beside the system's: its packages are unpacked, and nothing is installed.
unpack_boost() {
  local packages=() name work
  for name in "libboost$boost" "libboost-json$boost" "libboost-container$boost" "libboost-system$boost"; do
    packages+=("$name-dev")
  done
  mapfile -t -O "${#packages[@]}" packages < <(apt-cache depends "${packages[@]}" |
    sed -n 's/^  Depends: \(libboost-\(json\|container\|system\)[0-9.]*\)$/\1/p' | grep -v -- -dev | sort -u)
  echo "setup: libboost$boost-dev would replace another version: unpacking it into $boost_directory instead"
  work=$(mktemp -d)
  # The sandbox's user of apt cannot write to a directory of root's alone.
  chmod 0755 "$work"
  (cd "$work" && apt-get -o APT::Sandbox::User=root download "${packages[@]}") >>"$log" 2>&1 ||
    fail 'Boost could not be downloaded; see above'
  rm -rf "$boost_directory"
  mkdir -p "$boost_directory"
  for name in "$work"/*.deb; do dpkg-deb --extract "$name" "$boost_directory"; done
  rm -rf "$work"
}

mapfile -t missing_boost < <(missing_of "${boost_packages[@]}")
[[ ! -d $boost_directory/usr/include/boost ]] || missing_boost=()
mapfile -t missing < <(missing_of "${needed[@]}")
missing+=("${missing_boost[@]}")
mapfile -t missing_wanted < <(missing_of "${wanted[@]}")
((${#missing[@]} + ${#missing_wanted[@]} > 0)) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian system; install the equivalents of: ${missing[*]} ${missing_wanted[*]}" >&2
  exit $((${#missing[@]} > 0))
fi
if [[ $EUID -ne 0 ]]; then
  if ((${#missing[@]} > 0)); then
    echo "setup: $((${#missing[@]} + ${#missing_wanted[@]})) packages are missing; run as root:" \
      "apt-get install --no-remove ${missing[*]} ${missing_wanted[*]}" >&2
    exit 1
  fi
  echo "setup: not installed, since this is not root; what uses them is left out: ${missing_wanted[*]}"
  exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# Package lists may be absent or older than the archive: refresh them before the first install.
if ! apt-get update >"$log" 2>&1; then
  ((${#missing[@]} == 0)) || fail 'apt-get update failed; see above'
  echo "setup: apt-get update failed; what uses these is left out: ${missing_wanted[*]}"
  exit 0
fi
chosen=("${missing[@]}" "${missing_wanted[@]}")
left_out=()
if ! installable "${chosen[@]}"; then
  if ((${#missing_boost[@]} > 0)) && ! installable "${missing_boost[@]}"; then
    unpack_boost
    mapfile -t missing < <(missing_of "${needed[@]}")
  fi
  chosen=("${missing[@]}")
  if ((${#chosen[@]} > 0)) && ! installable "${chosen[@]}"; then
    apt-get install --simulate --no-remove --no-install-recommends "${chosen[@]}" >"$log" 2>&1 || true
    fail 'apt-get cannot install what is needed without removing packages; see above. A container can: see Dockerfile'
  fi
  ((${#missing_wanted[@]} == 0)) || choose "${missing_wanted[@]}"
fi
if ((${#chosen[@]} > 0)); then
  echo "setup: installing ${#chosen[@]} packages: ${chosen[*]}"
  apt-get install --yes --no-remove --no-install-recommends "${chosen[@]}" >"$log" 2>&1 ||
    fail 'apt-get failed; see above'
fi
((${#left_out[@]} == 0)) ||
  echo "setup: left out, because apt would remove packages for them or has none: ${left_out[*]}"
echo "setup: done"

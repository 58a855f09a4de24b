#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of Debian 12 or later that kvtier is built with, and those that its tests use
# unless called with --build. Quick and silent when all of them are there; needs root only when
# something is missing. Debian 12 is what kvtier is tested on.
set -euo pipefail

# Debian 12 has a Boost and a clang that are too old under their plain names; later ones have no others.
boost='' clang=''
if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then boost=1.81 clang=-14; fi

packages=(
  # build
  g++ cmake ninja-build pkg-config ccache
  # libraries
  "libboost$boost-dev" "libboost-json$boost-dev" libcli11-dev libexpected-dev libfmt-dev librocksdb-dev
  libspdlog-dev libssl-dev libsystemd-dev libtomlplusplus-dev liburing-dev libxxhash-dev
  # static probes; only a header, and the build works without
  systemtap-sdt-dev
  # the library for cold stores that speak RESP; the build works without
  libhiredis-dev
  # manual pages; the build works without
  pandoc
  # the file system that records writes for the robustness campaign; the build works without
  libfuse3-dev fuse3
  # the demonstration
  python3 python3-numpy
  # tests that the build configures: GoogleTest, libFuzzer
  libgtest-dev libgmock-dev "clang$clang" "libclang-rt$clang-dev"
)
test_packages=(
  # the Python package, its arrays and tensors, and its installation
  python3-pip python3-setuptools python3-torch python3-wheel
  # packages, and tests of the unit and of them
  dpkg-dev file init-system-helpers procps systemd
  # what judges the metrics page: promtool, the OpenMetrics parser, and a browser for the live page
  prometheus python3-prometheus-client chromium-headless-shell
  # a store for the tests of the cold tier, and the cluster of tools/test-cluster.sh
  redis-server ceph-common ceph-mon ceph-osd
  # draws the results of the kernels' benchmark
  python3-matplotlib
  # tests of manual pages and completions; gnuplot draws for kvtierctl bench --plot
  fish gnuplot-nox man-db mandoc zsh
)
[[ ${1-} == --build ]] || packages+=("${test_packages[@]}")

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state == ii* ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian system; install the equivalents of: ${missing[*]}" >&2
  exit 1
fi
if [[ $EUID -ne 0 ]]; then
  echo "setup: ${#missing[@]} packages are missing; run as root: apt-get install ${missing[*]}" >&2
  exit 1
fi

echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# Package lists may be absent or older than the archive: refresh them before the first install.
if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1; then
  cat "$log" >&2
  echo "setup: apt-get failed; see above" >&2
  exit 1
fi
echo "setup: done"

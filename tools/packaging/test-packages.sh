#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages in bare roots of distributions, by their own apt and from their own
# archives, and plays what an administrator does there: the installed configuration is checked, the daemon
# is started as its user and asked, and then all of it is removed and purged. There is no systemd running.
#
#   tools/packaging/test-packages.sh DIRECTORY SUITE...
#
# DIRECTORY holds the packages. Suites are those of Debian or Ubuntu: bookworm, trixie, jammy, noble. Needs
# root, mmdebstrap and their mirrors within reach.
set -euo pipefail
source "$(dirname "$0")/bare_root.sh"

die() {
  printf 'test-packages: %s\n' "$*" >&2
  exit 1
}
[[ $# -ge 2 ]] || die 'usage: tools/packaging/test-packages.sh DIRECTORY SUITE...'
readonly directory=$(realpath "$1")
shift
debs=("$directory"/*.deb)
[[ -e ${debs[0]} ]] || die "$directory has no packages"

# An administrator's commands; runs in a root.
readonly journey='
set -eu
export DEBIAN_FRONTEND=noninteractive
printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
apt-get -qq update
apt-get -qq install --yes --no-install-recommends /t/*.deb >/t/apt.log 2>&1 || { tail -n 30 /t/apt.log; exit 1; }
kvtierd --version
kvtierd --check-config --config /etc/kvtier/kvtierd.toml >/dev/null
install -d -o kvtier -g kvtier /run/kvtier
setpriv --reuid=kvtier --regid=kvtier --clear-groups kvtierd --config /etc/kvtier/kvtierd.toml \
  --set pool.bytes=64MiB --set host.bytes=128MiB --set disk.bytes=256MiB --set disk.free_floor_bytes=0B \
  --set restart.keep_for=0s >/t/kvtierd.log 2>&1 &
daemon=$!
tries=0
until kvtierctl status >/t/status 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] && kill -0 "$daemon" || { cat /t/status /t/kvtierd.log; exit 1; }
  sleep 0.1
done
cat /t/status
kill -TERM "$daemon"
wait "$daemon"
# Libraries for stores are opened at run time: all that they need has to be there.
for library in /usr/lib/kvtier/kvtier-cold-*.so; do
  [ ! -e "$library" ] || ! ldd "$library" | grep "not found" || exit 1
done
apt-get -qq purge --yes $(dpkg-query -W -f "\${Package} " "kvtier*" "libkvtier*") >/t/apt.log 2>&1
[ ! -e /etc/kvtier ] && [ ! -e /var/lib/kvtier ] || { echo "left after a purge"; exit 1; }
'

for suite in "$@"; do
  printf '== %s\n' "$suite"
  make_root "$suite" apt,ca-certificates
  mkdir "$root/t"
  cp "${debs[@]}" "$root/t/"
  chroot "$root" sh -c "$journey"
done
printf 'test-packages: ok %s\n' "$*"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# packages.sh BUILD_DIRECTORY VERSION LINKING: builds the Debian packages and takes them through install,
# upgrade, removal and purge in a tree of their own. LINKING is `static` for a build with KVTIER_STATIC, else
# `shared`.
set -euo pipefail
build=$1
version=$2
linking=$3

for program in cpack dpkg dpkg-deb dpkg-shlibdeps deb-systemd-helper systemd-sysusers; do
  command -v $program >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
done
if [[ $EUID -ne 0 ]]; then echo "skipped: dpkg installs as root only"; exit 77; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
expect() { "$@" || fail "$*"; }

# --- build and list ---
debs=$scratch/debs
(cd "$build" && cpack -B "$debs") >"$scratch/cpack.log" 2>&1 || {
  cat "$scratch/cpack.log" >&2
  fail "cpack"
}
deb_of() { echo "$debs/$1_$version-"*.deb; }
has() {
  dpkg-deb --contents "$(deb_of "$1")" | awk '{ print $6 }' | grep -Eqx "\.$2" ||
    fail "$1 lacks $2"
}
lacks() {
  ! dpkg-deb --contents "$(deb_of "$1")" | awk '{ print $6 }' | grep -Eq "$2" ||
    fail "$1 should not have $2"
}
has kvtierd /usr/sbin/kvtierd
has kvtierd /usr/libexec/kvtier/kvtier-keeper
has kvtierd /usr/lib/systemd/system/kvtierd.service
has kvtierd /usr/lib/sysusers.d/kvtier.conf
has kvtierd /usr/lib/tmpfiles.d/kvtier.conf
has kvtierd /etc/kvtier/kvtierd.toml
has kvtierd /usr/share/doc/kvtierd/OPERATIONS.md
has kvtierd /usr/share/doc/kvtierd/METRICS.md
has kvtierd /usr/share/doc/kvtierd/monitoring/kvtier.rules.yml
has kvtierd /usr/share/man/man8/kvtierd.8.gz
has kvtierd /usr/share/man/man5/kvtierd.toml.5.gz
has kvtierd '/usr/lib/kvtier/kvtier-cold-files\.so'
has kvtier-tools /usr/share/man/man1/kvtierctl.1.gz
has kvtier-tools /usr/share/bash-completion/completions/kvtierctl
has kvtier-tools /usr/bin/kvtierctl
has libkvtier0 '/usr/lib/[^/]+/libkvtier\.so\.0'
has libkvtier-dev '/usr/lib/[^/]+/libkvtier\.so'
has libkvtier-dev /usr/include/kvtier/kvtier.h
has libkvtier-dev '/usr/lib/[^/]+/pkgconfig/kvtier\.pc'
# Libraries for cold stores are packages where they were built.
cold=()
for library in kvtier-cold-resp kvtier-cold-s3; do
  if [[ -e $build/lib/$library.so ]]; then
    cold+=("$library")
    has "$library" "/usr/lib/kvtier/$library\.so"
  fi
done
lacks libkvtier0 'include|\.so$'
# Each program that users start has a manual page.
for package in kvtierd kvtier-tools; do
  for program in $(dpkg-deb --contents "$(deb_of $package)" | sed -n 's|.* \./usr/s\?bin/\(.\+\)|\1|p'); do
    has $package "/usr/share/man/man[18]/$program\.[18]\.gz"
  done
done
dpkg-deb --ctrl-tarfile "$(deb_of libkvtier0)" | tar --extract --to-stdout ./triggers |
  grep -qx 'activate-noawait ldconfig' || fail "libkvtier0 has no trigger of ldconfig"
lacks kvtierd 'bin/kvtierctl|libkvtier\.|kvtier-cold-resp|kvtier-cold-s3'
field() { dpkg-deb --field "$(deb_of "$1")" "$2"; }
# A library that is not linked into it.
library=librocksdb
[[ $linking == shared ]] || library=libsystemd0
[[ $(field kvtierd Depends) == *$library* ]] || fail "kvtierd: libraries are not in Depends"
[[ $(field kvtier-tools Depends) == *"libkvtier0 (>= $version"* ]] ||
  fail "kvtier-tools: Depends $(field kvtier-tools Depends)"
[[ $(field libkvtier-dev Depends) == *"libkvtier0 (= $version"* ]] || fail "libkvtier-dev: Depends"
for library in "${cold[@]}"; do
  [[ $(field "$library" Depends) == *"kvtierd (= $version"*lib* ]] ||
    fail "$library: Depends $(field "$library" Depends)"
done
[[ $(dpkg-deb --info "$(deb_of kvtierd)" conffiles) == /etc/kvtier/kvtierd.toml ]] ||
  fail "the configuration is no conffile"

# --- a tree that is not running: scripts are told by DPKG_ROOT ---
root=$scratch/root
mkdir -p "$root"/{etc,var/lib/dpkg/info,var/lib/dpkg/updates,usr}
touch "$root/var/lib/dpkg/status"
in_root() {
  dpkg --root="$root" --log="$scratch/dpkg.log" --force-script-chrootless --force-depends \
    --force-confdef --force-confold "$@" >"$scratch/out" 2>&1 || { cat "$scratch/out" >&2; fail "dpkg $*"; }
}
enabled=$root/etc/systemd/system/multi-user.target.wants/kvtierd.service
all=("$debs"/*.deb)
[[ ${#all[@]} -eq $((4 + ${#cold[@]})) ]] || fail "${#all[@]} packages"

in_root --install "${all[@]}"
expect test -L "$enabled"
expect grep -q '^kvtier:' "$root/etc/passwd"
expect test -d "$root/var/lib/kvtier"
uid=$(awk -F: '$1 == "kvtier" { print $3 }' "$root/etc/passwd")
[[ $(stat -c '%a %u' "$root/var/lib/kvtier") == "700 $uid" ]] || fail "/var/lib/kvtier"
[[ $(stat -c '%a %U' "$root/etc/kvtier/kvtierd.toml") == "644 root" ]] || fail "kvtierd.toml's mode"
grep -q "ExecStart=/usr/sbin/kvtierd" "$root/usr/lib/systemd/system/kvtierd.service" ||
  fail "the unit names another program"
"$root/usr/sbin/kvtierd" --check-config --config "$root/etc/kvtier/kvtierd.toml" >/dev/null ||
  fail "the installed configuration does not pass"
LD_LIBRARY_PATH=$(dirname "$root"/usr/lib/*/libkvtier.so.0) "$root/usr/bin/kvtierctl" --version \
  >/dev/null || fail "the installed kvtierctl does not run"

# A program is built against the installed files.
echo '#include <kvtier/kvtier.h>
int main(void) { return kvt_version() == 0; }' >"$scratch/program.c"
PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$(echo "$root"/usr/lib/*/pkgconfig) \
  cc "$scratch/program.c" -o "$scratch/program" -I"$root/usr/include" \
  $(PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$(echo "$root"/usr/lib/*/pkgconfig) \
    pkg-config --cflags --libs kvtier) || fail "a program against libkvtier-dev"

# --- upgrade: the administrator's changes stay ---
echo '# mine' >>"$root/etc/kvtier/kvtierd.toml"
echo block >"$root/var/lib/kvtier/block"
rm "$enabled"
in_root --install "${all[@]}"
expect grep -q '^# mine' "$root/etc/kvtier/kvtierd.toml"
expect test -e "$root/var/lib/kvtier/block"
[[ ! -e $enabled ]] || fail "an upgrade enabled what the administrator had disabled"

# --- removal keeps configuration and cache, a purge takes them ---
in_root --remove "${cold[@]}" kvtierd kvtier-tools libkvtier-dev libkvtier0
[[ ! -e $root/usr/sbin/kvtierd && ! -e $root/usr/bin/kvtierctl ]] || fail "programs are left"
[[ ! -e $root/run/kvtier ]] || fail "/run/kvtier is left"
expect test -e "$root/etc/kvtier/kvtierd.toml"
expect test -e "$root/var/lib/kvtier/block"
# A drive that is mounted there is emptied, and the purge goes on.
if unshare --mount true 2>/dev/null; then
  mkdir -p "$scratch/drive/var/lib/kvtier"
  unshare --mount sh -ec 'export DPKG_ROOT=$0
    mount -t tmpfs tmpfs "$DPKG_ROOT/var/lib/kvtier"
    touch "$DPKG_ROOT/var/lib/kvtier/block"
    sh "$1" purge
    [ -z "$(ls -A "$DPKG_ROOT/var/lib/kvtier")" ]' "$scratch/drive" "$root/var/lib/dpkg/info/kvtierd.postrm" \
    2>"$scratch/out" || fail "a purge with a drive: $(<"$scratch/out")"
fi
in_root --purge "${cold[@]}" kvtierd kvtier-tools libkvtier-dev libkvtier0
left=$(cd "$root" && find . -iname '*kvtier*' ! -path './var/lib/dpkg/*')
[[ -z $left ]] || fail "left after a purge: $left"
echo ok

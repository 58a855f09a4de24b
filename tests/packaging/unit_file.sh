#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# unit_file.sh UNIT_DIRECTORY KVTIERD: systemd understands the unit, the user and the directories;
# the unit is as locked up as promised, and hides no GPU.
set -euo pipefail
source_directory=$1
kvtierd=$2

command -v systemd-analyze >/dev/null || { echo "skipped: systemd is not installed"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# The program as built stands in for the one that would be installed.
unit=$scratch/kvtierd.service
sed "s|/usr/sbin/kvtierd|$kvtierd|" "$source_directory/kvtierd.service" >"$unit"

complaints=$(systemd-analyze verify --man=no "$unit" 2>&1) || fail "verify: $complaints"
[[ -z $complaints ]] || fail "verify: $complaints"

# In tenths, as systemd counts; two of them are those of ProtectProc=.
systemd-analyze security --offline=true --threshold=16 --no-pager "$unit" >"$scratch/security" ||
  fail "more exposed than 1.6: $(tail -n 1 "$scratch/security")"
grep -q 'security`: 1\.6)' "$source_directory/../../docs/THREAT_MODEL.md" || fail "the page says another figure"
! grep -q '^ProtectProc=' "$unit" || fail "ProtectProc= hides when clients began"
tail -n 1 "$scratch/security"

for hides_gpus in PrivateDevices=yes PrivateDevices=true ProcSubset=pid InaccessiblePaths=/dev; do
  ! grep -q "^$hides_gpus" "$unit" || fail "$hides_gpus hides GPUs"
done
for needed in 'DeviceAllow=char-nvidia rw' 'DeviceAllow=char-nvidia-uvm rw' LimitMEMLOCK=infinity \
  Type=notify RestartPreventExitStatus=78 StartLimitIntervalSec=0 FileDescriptorStoreMax=128; do
  grep -qx "$needed" "$unit" || fail "$needed is missing"
done
grep -q '^After=.*nvidia-persistenced.service' "$unit" || fail "it may start before its GPUs"
grep -Eq '^WatchdogSec=[1-9]' "$unit" || fail "there is no watchdog"

# The user and the directories, made in an empty tree.
root=$scratch/root
mkdir -p "$root"/{etc,usr/lib/sysusers.d,usr/lib/tmpfiles.d}
cp "$source_directory/sysusers.conf" "$root/usr/lib/sysusers.d/kvtier.conf"
cp "$source_directory/tmpfiles.conf" "$root/usr/lib/tmpfiles.d/kvtier.conf"
if [[ $EUID -eq 0 ]]; then
  systemd-sysusers --root="$root" kvtier.conf || fail "systemd-sysusers"
  grep -q '^kvtier:' "$root/etc/passwd" || fail "there is no user kvtier"
  systemd-tmpfiles --root="$root" --create kvtier.conf || fail "systemd-tmpfiles"
  uid=$(awk -F: '$1 == "kvtier" { print $3 }' "$root/etc/passwd")
  [[ $(stat -c '%a %u' "$root/run/kvtier") == "755 $uid" ]] || fail "/run/kvtier is not right"
  [[ $(stat -c '%a %u' "$root/var/lib/kvtier") == "700 $uid" ]] || fail "/var/lib/kvtier is not right"
fi
echo ok

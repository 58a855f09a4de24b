#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Ceph cluster for tests: one monitor and some OSDs that keep objects in memory, as an ordinary user,
# without systemd, manager or authentication. Everything lies in one directory and on 127.0.0.1.
#
#   tools/test-cluster.sh PROGRAM...           starts a cluster, runs PROGRAM with KVTIER_TEST_CLUSTER
#                                              set to its directory, and stops it; 77: the packages
#                                              are missing
#   tools/test-cluster.sh start DIRECTORY      starts a cluster that stays
#   tools/test-cluster.sh signal DIRECTORY SIGNAL OSD...   signals some of its OSDs
#   tools/test-cluster.sh await DIRECTORY OSD...           waits until OSDs have ended
#   tools/test-cluster.sh revive DIRECTORY OSD...          starts OSDs that have ended: with their
#                                              objects after SIGTERM, empty after SIGKILL
#   tools/test-cluster.sh stop DIRECTORY       ends it and deletes the directory
#
# KVTIER_TEST_OSDS (3), KVTIER_TEST_POOL_SIZE (2) and KVTIER_TEST_OSD_BYTES (1 GiB) say how large it is.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly osds=${KVTIER_TEST_OSDS:-3}
readonly pool_size=${KVTIER_TEST_POOL_SIZE:-2}
readonly osd_bytes=${KVTIER_TEST_OSD_BYTES:-$((1 << 30))}
readonly pool=kvtier

missing_packages() {
  local program
  for program in ceph ceph-mon ceph-osd monmaptool rados; do
    command -v "$program" >/dev/null || echo "$program"
  done
}

# A port that is free now; the monitor's address has to be known before it starts.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

write_configuration() {
  local directory=$1 fsid=$2 port=$3
  cat >"$directory/ceph.conf" <<END
[global]
fsid = $fsid
mon_host = v2:127.0.0.1:$port
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = $directory
admin_socket =
log_file = $directory/\$name.log
mon_data = $directory/mon
osd_data = $directory/osd.\$id
pid_file =
keyring = $directory/keyring
crash_dir = $directory
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_osd_min_down_reporters = 1
osd_pool_default_size = $pool_size
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = $osd_bytes
osd_fast_shutdown = false
osd_heartbeat_interval = 1
osd_heartbeat_grace = 4
osd_max_object_name_len = 256
osd_max_object_namespace_len = 256
[client]
log_file =
END
}

start_osd() {
  local directory=$1 osd=$2
  ceph-osd --foreground --conf "$directory/ceph.conf" --id "$osd" \
    >"$directory/osd.$osd.out" 2>&1 </dev/null &
  echo $! >"$directory/osd.$osd.pid"
}

make_osd() {
  local directory=$1 osd=$2 uuid=$3
  mkdir "$directory/osd.$osd"
  ceph-osd --conf "$directory/ceph.conf" --id "$osd" --mkfs --osd-uuid "$uuid" --no-mon-config \
    >"$directory/osd.$osd.mkfs" 2>&1
}

ask() {
  local directory=$1
  shift
  ceph --conf "$directory/ceph.conf" --connect-timeout 30 "$@" 2>/dev/null
}

# Until all placement groups can be used.
wait_until_active() {
  local directory=$1 part
  for ((part = 0; part < 600; part++)); do
    if rados --conf "$directory/ceph.conf" --rados-osd-op-timeout 1 -p "$pool" ls >/dev/null 2>&1; then
      return
    fi
    read -rt 0.1 <> <(:) || true
  done
  echo "test-cluster: the pool does not come up; see $directory/*.log" >&2
  return 1
}

start() {
  local directory=$1 fsid port osd uuid
  directory=$(mkdir -p "$directory" && cd "$directory" && pwd)
  fsid=$(cat /proc/sys/kernel/random/uuid)
  port=$(free_port)
  write_configuration "$directory" "$fsid" "$port"
  touch "$directory/keyring"
  monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$directory/monmap" >/dev/null
  ceph-mon --conf "$directory/ceph.conf" --mkfs --id a --monmap "$directory/monmap" >/dev/null
  ceph-mon --foreground --conf "$directory/ceph.conf" --id a >"$directory/mon.out" 2>&1 </dev/null &
  echo $! >"$directory/mon.pid"
  for ((osd = 0; osd < osds; osd++)); do
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ask "$directory" osd new "$uuid" >/dev/null
    make_osd "$directory" "$osd" "$uuid"
    start_osd "$directory" "$osd"
  done
  ask "$directory" osd pool create "$pool" 32 >/dev/null
  ask "$directory" osd pool application enable "$pool" kvtier >/dev/null
  wait_until_active "$directory"
}

revive() {
  local directory=$1 osd
  shift
  for osd in "$@"; do start_osd "$directory" "$osd"; done
}

signal() {
  local directory=$1 signal=$2 osd
  shift 2
  for osd in "$@"; do kill "-$signal" "$(cat "$directory/osd.$osd.pid")"; done
}

# Until they have ended, which after SIGTERM includes writing their objects to files.
await() {
  local directory=$1 osd
  shift
  for osd in "$@"; do
    # A process whose parent has not asked for its end yet has ended all the same.
    while [[ $(ps -o state= -p "$(cat "$directory/osd.$osd.pid")") == [!Z]* ]]; do
      read -rt 0.1 <> <(:) || true
    done
  done
}

stop() {
  local directory=$1 file
  for file in "$directory"/*.pid; do
    if [[ -e $file ]]; then kill -KILL "$(cat "$file")" 2>/dev/null || true; fi
  done
  rm -rf "$directory"
}

run() {
  local missing directory
  missing=$(missing_packages)
  if [[ $missing ]]; then
    echo "test-cluster: skipped, since these programs are missing:" $missing
    exit 77
  fi
  directory=$(mktemp -d /tmp/kvtier-cluster.XXXXXX)
  # shellcheck disable=SC2064
  trap "stop '$directory'" EXIT
  start "$directory"
  KVTIER_TEST_CLUSTER=$directory "$@"
}

case ${1-} in
  start | stop | signal | await | revive) "$@" ;;
  '')
    echo "usage: tools/test-cluster.sh PROGRAM..." >&2
    exit 2
    ;;
  *) run "$@" ;;
esac

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How much of what a store can do the libraries for cold stores reach: each measurement stands beside
# `rados bench`, or beside pipelines of hiredis with nothing around them, of the same size and depth and
# run right before it, since the machine may be busy otherwise. Prints the medians of the ratios.
#
#   tools/bench/cold.sh [ROUNDS [KIND...]]      5 and rados resp by default; build/release, or
#                                               KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ! ${KVTIER_TEST_CLUSTER-} ]]; then
  KVTIER_TEST_OSDS=1 KVTIER_TEST_POOL_SIZE=1 KVTIER_TEST_OSD_BYTES=$((6 << 30)) \
    exec tools/test-cluster.sh "$0" "$@"
fi

readonly rounds=${1:-5}
if [[ $# -lt 2 ]]; then set -- "$rounds" rados resp; fi
readonly kinds=("${@:2}")
readonly build=${KVTIER_BUILD:-build/release}
readonly depth=16
readonly seconds=3
readonly cluster=$KVTIER_TEST_CLUSTER/ceph.conf
readonly redis=$KVTIER_TEST_CLUSTER/redis.sock

redis-server --port 0 --unixsocket "$redis" --save '' --appendonly no --maxmemory 4gb \
  --maxmemory-policy allkeys-lru >/dev/null &
# With the others that the cluster's directory lists, so that they end together.
echo $! >"$KVTIER_TEST_CLUSTER/redis.pid"
until redis-cli -s "$redis" ping >/dev/null 2>&1; do read -rt 0.1 <> <(:) || true; done

bench() {
  "$build/bin/kvtier-cold-bench" "$build/lib/kvtier-cold-$1.so" "$2" "$3" "$4" "$depth" "$seconds"
}

rados_bench() {
  rados --conf "$cluster" -p kvtier bench "$seconds" "$@" -t "$depth" --run-name ceiling |
    sed -n 's/^Bandwidth (MB\/sec): *//p'
}

resp_ceiling() {
  "$build/bin/kvtier-resp-ceiling" "$redis" "$1" "$2" "$depth" "$seconds"
}

report() {
  python3 - "$@" <<'END'
import statistics, sys
name, *numbers = sys.argv[1:]
pairs = [tuple(map(float, pair.split(":"))) for pair in numbers]
ratios = sorted(ours / ceiling for ours, ceiling in pairs)
print(f"| {name} | {statistics.median(p[1] for p in pairs):.0f} | "
      f"{statistics.median(p[0] for p in pairs):.0f} | {statistics.median(ratios):.2f} "
      f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |")
END
}

purge() { rados --conf "$cluster" purge kvtier --yes-i-really-really-mean-it >/dev/null; }

# Both write into an empty pool, in memory that the OSD has used before: the first touch of a page
# costs more than the write itself, above all in a virtual machine.
rados_rounds() {
  local bytes=$1 round puts=() gets=() written reads
  rados_bench write -b "$bytes" --no-cleanup >/dev/null
  for ((round = 0; round < rounds; round++)); do
    purge
    written=$(rados_bench write -b "$bytes" --no-cleanup)
    reads=$(rados_bench rand)
    purge
    puts+=("$(bench rados "kvtier@$cluster" put "$bytes"):$written")
    gets+=("$(bench rados "kvtier@$cluster" get "$bytes"):$reads")
  done
  purge
  report "RADOS put, $((bytes / 1024)) KiB" "${puts[@]}"
  report "RADOS get, $((bytes / 1024)) KiB" "${gets[@]}"
}

resp_rounds() {
  local bytes=$1 round puts=() gets=() ceiling
  for ((round = 0; round < rounds; round++)); do
    ceiling=$(resp_ceiling put "$bytes")
    puts+=("$(bench resp "$redis" put "$bytes"):$ceiling")
    ceiling=$(resp_ceiling get "$bytes")
    gets+=("$(bench resp "$redis" get "$bytes"):$ceiling")
  done
  report "RESP put, $((bytes / 1024)) KiB" "${puts[@]}"
  report "RESP get, $((bytes / 1024)) KiB" "${gets[@]}"
}

echo "| what, $depth under way | ceiling, MB/s | kvtier, MB/s | ratio, median (range) |"
echo "|---|---|---|---|"
for bytes in $((2 << 20)) $((256 << 10)); do
  for kind in "${kinds[@]}"; do "${kind}_rounds" "$bytes"; done
done

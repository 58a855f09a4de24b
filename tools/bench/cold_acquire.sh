#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The cost of a configured cold tier for acquires of blocks that this host has: a daemon without one
# beside a daemon with a Ceph cluster that answers, and that stands still. The three are measured in
# turn. Prints medians of p50 and p99 over the rounds.
#
#   tools/bench/cold_acquire.sh [ROUNDS]      9 by default; build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ! ${KVTIER_TEST_CLUSTER-} ]]; then exec tools/test-cluster.sh "$0" "$@"; fi

readonly rounds=${1:-9}
readonly build=${KVTIER_BUILD:-build/release}
readonly directory=$KVTIER_TEST_CLUSTER

start_daemon() {
  local name=$1
  shift
  "$build/bin/kvtierd" --set "server.socket=$directory/$name.sock" \
    --set "server.admin_socket=$directory/$name.admin" --set pool.device=host \
    --set pool.bytes=256MiB --set host.bytes=256MiB --set disk.bytes=0B --set restart.keep_for=0s \
    "$@" >"$directory/$name.out" 2>&1 &
  # With the others that the cluster's directory lists, so that they end together.
  echo $! >"$directory/$name.pid"
  until [[ -S $directory/$name.sock ]]; do read -rt 0.1 <> <(:) || true; done
}

measure() {
  "$build/bin/kvtierctl" --json --socket "$directory/$1.sock" \
    --admin-socket "$directory/$1.admin" bench --samples 2000 >"$directory/$2.$3.json"
}

start_daemon without
start_daemon with --set cold.kind=rados --set "cold.endpoint=kvtier@$directory/ceph.conf"
for ((round = 0; round < rounds; round++)); do
  measure without none "$round"
  measure with healthy "$round"
  tools/test-cluster.sh signal "$directory" STOP 0 1 2
  measure with stopped "$round"
  tools/test-cluster.sh signal "$directory" CONT 0 1 2
done

python3 - "$directory" "$rounds" <<'END'
import json, statistics, sys
directory, rounds = sys.argv[1], int(sys.argv[2])
def rows(kind):
    return [{row["hashes"]: row for row in json.load(open(f"{directory}/{kind}.{i}.json"))["acquire"]}
            for i in range(rounds)]
kinds = {"none": "no cold tier", "healthy": "answers", "stopped": "stands still"}
measured = {kind: rows(kind) for kind in kinds}
print("| hashes | cold tier | p50 us | p99 us | p50 / without | p99 / without |\n|---|---|---|---|---|---|")
for hashes in measured["none"][0]:
    for kind, name in kinds.items():
        def median(key):
            return statistics.median(one[hashes][key] for one in measured[kind])
        def ratio(key):
            pairs = zip(measured[kind], measured["none"])
            return statistics.median(one[hashes][key] / base[hashes][key] for one, base in pairs)
        print(f"| {hashes} | {name} | {median('p50_us'):.0f} | {median('p99_us'):.0f} | "
              f"{ratio('p50_us'):.2f} | {ratio('p99_us'):.2f} |")
END

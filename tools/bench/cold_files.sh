#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the library for shared directories with a process that only copies files of the same size, as many
# at a time: below the directory, or with a delay through a file system of its own there. Each measurement
# stands beside the copy's, run right before or after it. Prints medians of the rates, medians and ranges of
# their ratios for each second of wall time and of a processor's time, and a lookup's time for a prefix of 100
# blocks.
#
#   tools/bench/cold_files.sh DIRECTORY [ROUNDS [DELAY_US [KIB...]]]   3 rounds; build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly rounds=${2:-3} delay_us=${3:-0}
sizes=("${@:4}")
((${#sizes[@]} > 0)) || sizes=(64 256 2048)
readonly build=${KVTIER_BUILD:-build/release}
readonly depth=16 seconds=3
directory=$(mktemp -d "$1/kvtier-cold.XXXXXX")
readonly directory
readonly library=$build/lib/kvtier-cold-files.so root=$directory/root below=$directory/below
mkdir "$root" "$below"
end() {
  ! mountpoint -q "$root" || umount "$root"
  rm -rf "$directory"
}
trap end EXIT

if ((delay_us > 0)); then
  "$build/bin/kvtier-slow-files" "$delay_us" 30 "$below" "$root" &
  until mountpoint -q "$root"; do read -rt 0.1 <> <(:) || true; done
else
  rmdir "$below"
  ln -s root "$below"
fi

# measure VERB BYTES ROUND: of both, in directories that the kernel knows nothing of, and that do not stay. The
# one is first in even rounds, the other in odd ones. Each begins when the disk has all that was written before:
# else the second pays for the first one's bytes.
measure() {
  local plain=plain.$1.$2.$3 store=store.$1.$2.$3 order=(copy kvtier) one
  (($3 % 2 == 0)) || order=(kvtier copy)
  local -A figures
  for one in "${order[@]}"; do
    sync -f "$below"
    case $one in
      copy)
        mkdir "$root/$plain"
        figures[$one]=$("$build/bin/kvtier-plain-copy" "$root/$plain" "$1" "$2" "$depth" "$seconds")
        rm -rf "${below:?}/$plain"
        ;;
      kvtier)
        mkdir "$root/$store"
        figures[$one]=$("$build/bin/kvtier-cold-bench" "$library" "$root/$store" "$1" "$2" "$depth" "$seconds")
        rm -rf "${below:?}/$store"
        ;;
    esac
  done
  echo "${figures[copy]} ${figures[kvtier]}"
}

report() {
  python3 - "$@" <<'END'
import statistics, sys
name, *numbers = sys.argv[1:]
rows = [list(map(float, row.split())) for row in numbers]
def median(of):
    return statistics.median(of(*row) for row in rows)
def spread(of):
    ratios = [of(*row) for row in rows]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
print(f"| {name} | {median(lambda p, pc, o, oc: p):.0f} | {median(lambda p, pc, o, oc: o):.0f} | "
      f"{spread(lambda p, pc, o, oc: o / p)} | {spread(lambda p, pc, o, oc: oc / pc)} |")
END
}

echo "| files, $depth under way | plain copy, MB/s | kvtier, MB/s | ratio | ratio for each second of a processor |"
echo "|---|---|---|---|---|"
for kib in "${sizes[@]}"; do
  bytes=$((kib << 10))
  for verb in put get; do
    rows=()
    for ((round = 0; round < rounds; round++)); do
      rows+=("$(measure "$verb" "$bytes" "$round")")
    done
    report "$verb, $kib KiB" "${rows[@]}"
  done
done
# The names were written by another way, so that the kernel does not know them yet.
mkdir "$root/store"
lookups=()
for ((round = 1; round <= rounds; round++)); do
  "$build/bin/kvtier-cold-bench" "$library" "$below/store" get 4096 "$depth" 0.1 $round >/dev/null
  lookups+=("$("$build/bin/kvtier-cold-bench" "$library" "$root/store" lookup 4096 1 0 $round | cut -d' ' -f1)")
done
echo "lookups of 100 blocks, ms: ${lookups[*]}"

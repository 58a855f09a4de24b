#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a directory that runs kvtier-codec-bench on a machine that has nothing of what it needs:
#
#   tools/bench/codec/codec-bundle.sh DIRECTORY FILE.kv
#   DIRECTORY/run.sh [OPTION...]       there; the disk is that of its working directory
#
# KVTIER_BUILD_DIRECTORY names the build to take the program from (build/release).
set -euo pipefail
cd "$(dirname "$0")/../../.."

readonly bundle=$1 kv=$2
readonly program=${KVTIER_BUILD_DIRECTORY:-build/release}/bin/kvtier-codec-bench
rm -rf "$bundle"
mkdir -p "$bundle/lib"
strip --strip-all -o "$bundle/kvtier-codec-bench" "$program"
# The other libraries belong to the system.
ldd "$program" | awk '$3 ~ /\/lib(fmt|uring|xxhash|boost_json)\.so/ {print $3}' |
  xargs -I '{}' cp --dereference '{}' "$bundle/lib"
# Some tens of blocks of each size are enough: what is measured repeats them.
head --bytes=33554432 "$kv" >"$bundle/blocks.kv"
cat >"$bundle/run.sh" <<'END'
#!/usr/bin/env bash
# Rates in memory, then of the disk: with threads that copy to the pool, and as with a GPU's copies.
set -euo pipefail
bundle=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$bundle/lib
readonly workers=$(($(nproc) > 4 ? $(nproc) - 2 : 2))
for copies in "" --device-copies; do
  echo "workers: $workers $copies"
  "$bundle/kvtier-codec-bench" --kv "$bundle/blocks.kv" --file codec-bench.kvt --workers "$workers" \
    $copies "$@"
done
END
chmod +x "$bundle/run.sh"

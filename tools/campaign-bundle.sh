#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a directory with which the campaign runs on a machine that has python3 with numpy, glibc 2.36 or
# later, and a checkout of the same commit, but neither compiler nor packages nor FUSE:
#
#   tools/campaign-bundle.sh [DIRECTORY]     default: build/campaign-bundle
#
# It holds campaign.tar.xz, the programs with their libraries, and two recordings for power-loss,
# writes-1.xz and writes-2.xz (with keys on disk), which are made unless they are there. On the other
# machine, in the checkout:
#
#   mkdir /tmp/campaign && tar -xJf DIRECTORY/campaign.tar.xz -C /tmp/campaign
#   KVTIER_BUILD_DIRECTORY=/tmp/campaign TMPDIR=/dev/shm tools/campaign.sh --jobs 28 --minutes 8 \
#     --recording DIRECTORY/writes-1.xz --resume campaign.json
#
# Needs patchelf. KVTIER_BUILD_DIRECTORY names a build to take the programs from instead of making one.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

[[ $# -le 1 && ${1:-} != -* ]] || { echo 'usage: tools/campaign-bundle.sh [DIRECTORY]' >&2; exit 2; }
readonly bundle=${1:-build/campaign-bundle}
readonly programs=(kvtierd kvtier-keeper kvtierctl kvtier-sim)
readonly fuzzers=(fuzz_frame_decoder fuzz_attend_plan fuzz_admin_request fuzz_zmtp fuzz_disk_format
  fuzz_key_file fuzz_sessions)
if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  build_preset release "${programs[@]}" "${fuzzers[@]}" kvtier kvtier-record-writes
fi
build=$(realpath "${KVTIER_BUILD_DIRECTORY:-build/release}")
readonly build
stage=$(mktemp --directory)
readonly stage
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib" "$stage/tests/fuzz" "$bundle"

for program in "${programs[@]}" "${fuzzers[@]}"; do
  if [[ -e $build/bin/$program ]]; then
    strip --strip-all -o "$stage/bin/$program" "$build/bin/$program"
  else
    echo "campaign-bundle: left out: $program, which is not built" >&2
  fi
done
cp --dereference "$build/lib/libkvtier.so.0" "$stage/lib"

# Shared libraries, but for those that belong to the system.
readonly base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libcuda)\.so'
for file in "$stage"/bin/* "$stage"/lib/*; do
  ldd "$file" || true # kvtier-keeper is static
done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $base ]] || cp --dereference "$library" "$stage/lib/$name"
done
find "$stage/lib" -type f -exec strip --strip-unneeded {} +
# Not through LD_LIBRARY_PATH, which the interpreter would use as well.
for file in "$stage"/bin/*; do
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$file" 2>/dev/null || true
done
find "$stage/lib" -type f -exec patchelf --force-rpath --set-rpath "\$ORIGIN" {} +

# The fuzzers' commands, with paths that are relative to the bundle.
cp --recursive tests/fuzz/corpus* "$stage/tests/fuzz"
sed -n "s|\"$build/bin/|\"bin/|; s|\"$PWD/tests/fuzz/corpus|\"tests/fuzz/corpus|; /^add_test/p" \
  "$build/tests/fuzz/CTestTestfile.cmake" >"$stage/tests/fuzz/CTestTestfile.cmake"

tar --create --directory "$stage" . | xz --threads=0 -6 >"$bundle/campaign.tar.xz"
for seed in 1 2; do
  if [[ ! -e $bundle/writes-$seed.xz ]]; then
    KVTIER_BUILD_DIRECTORY=$build tools/campaign.sh --only power-loss --minutes 0 --seed "$seed" \
      --recording "$bundle/writes-$seed.xz" --resume "$stage/campaign.json"
  fi
done
echo "campaign-bundle: $bundle, $(du --summarize --block-size=1M "$bundle" | cut -f1) MiB, commit $(
  git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a directory that runs the GPU tests and the GPU benchmark on a machine that has an NVIDIA
# driver and nothing else of what they need:
#
#   tools/gpu-bundle.sh [DIRECTORY]      default: build/gpu-bundle
#   DIRECTORY/gpu-test.sh                on the machine with the GPU
#   DIRECTORY/gpu-bench.sh [OPTION...]   there, too; prints a table and writes gpu-bench.json
#     --only disk --set-bytes 4294967296 --directory /dev/shm --drives /dev/shm,/dev/shm,/dev/shm,/dev/shm
#                                        "disk" to VRAM by four drives on tmpfs (Linux 6.6 or newer)
#   DIRECTORY/gpu-python.sh              there, if python3 has torch: tests of the Python package
#   DIRECTORY/gpu-engine.sh [OPTION...]  there, too: an engine with and without its prefix cache
#   DIRECTORY/kernel-bench.sh [OPTION...]   likewise of the kernels, beside torch's if python3 has it
#   DIRECTORY/sanitize.sh DIRECTORY/bin     the kernels under compute-sanitizer, where there is one
#
# DIRECTORY.tar.xz has the same, to be sent there.
#
# KVTIER_BUILD_DIRECTORY names a build to take the programs from instead of making one.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

[[ $# -le 1 && ${1:-} != -* ]] || { echo 'usage: tools/gpu-bundle.sh [DIRECTORY]' >&2; exit 2; }
readonly bundle=${1:-build/gpu-bundle}
if [[ ! -e $bundle/gpu-test.sh && -n $(ls -A "$bundle" 2>/dev/null) ]]; then
  echo "gpu-bundle: $bundle is no bundle, and would be emptied" >&2
  exit 1
fi
readonly programs=(kvtierd kvtier-keeper kvtierctl kvtier-gpu-bench kvtier-kernel-bench)
readonly tests=(gpu_device_test gpu_daemon_test gpu_attention_test gpu_pool_peer gpu_decode_test
  gpu_prefill_test gpu_mla_test gpu_kv_write_test gpu_merge_lse_test)
readonly libraries=(kvtier kvtier_kernels kvtier_faulty_kernels)
readonly most_mib=60

if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  build_preset release "${programs[@]}" "${tests[@]}" "${libraries[@]}"
fi
# Absolute, so that ldd names the libraries there in full.
build=$(realpath "${KVTIER_BUILD_DIRECTORY:-build/release}")
readonly build

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
touch "$bundle/gpu-test.sh" # tells a bundle from other directories, also if this script fails
for program in "${programs[@]}" "${tests[@]}"; do
  strip --strip-all -o "$bundle/bin/$program" "$build/bin/$program"
done

# Shared libraries, but for those that belong to the system and must fit its kernel and driver.
readonly base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libcuda)\.so'
for program in "$bundle"/bin/*; do
  # kvtier-keeper is static.
  LD_LIBRARY_PATH=$build/lib ldd "$program" || true
done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $base ]] || cp --dereference "$library" "$bundle/lib/$name"
done
cp --dereference "$build"/lib/libkvtier_{,faulty_}kernels.so "$bundle/lib/"

# The Python package with what its tests read of the source tree. An interpreter brings libraries of
# its own, so of the others it gets only the one that it lacks, if libkvtier needs that at all.
mkdir -p "$bundle/source/client" "$bundle/source/docs" "$bundle/lib/python"
cp README.md "$bundle/source"
cp docs/PYTHON.md "$bundle/source/docs"
cp --recursive --parents client/include client/python tests/python kernels/include \
  tools/bench/engine/nano_engine.py "$bundle/source"
# The demonstration is not run there, and its weights are 8 MiB.
rm -r "$bundle/source/client/python/kvtier/demo"
find "$bundle/source" \( -name __pycache__ -o -name .mypy_cache \) -prune -exec rm -rf {} +
cp --dereference "$build/lib/libkvtier.so.0" "$bundle/lib/python"
for library in "$bundle"/lib/libkvtier_kernels.so "$bundle"/lib/libfmt.so.*; do
  [[ ! -e $library ]] || ln --symbolic --relative "$library" "$bundle/lib/python"
done
find "$bundle/lib" -name '*.so*' -exec strip --strip-unneeded {} +

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[[ -z $(git status --porcelain 2>/dev/null) ]] || commit+=+
echo "$commit" >"$bundle/COMMIT"

cat >"$bundle/gpu-test.sh" <<'END'
#!/usr/bin/env bash
# Runs the tests that need a GPU; arguments go to each of them (--gtest_filter=...).
set -uo pipefail
cd "$(dirname "$0")"
export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=()
for test in bin/*_test; do
  "$test" --gtest_brief=1 "$@" || failed+=("$test")
done
if [[ ${#failed[@]} -ne 0 ]]; then
  echo "gpu-test: failed: ${failed[*]}" >&2
  exit 1
fi
echo "gpu-test: all passed"
END

cat >"$bundle/gpu-bench.sh" <<'END'
#!/usr/bin/env bash
# Prints a table and writes gpu-bench.json here, or where --output says. Replays
# mooncake_conversation.jsonl as well, if it lies beside this script.
set -euo pipefail
readonly here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ " $* " == *" --output "* ]] || set -- --output gpu-bench.json "$@"
readonly trace=$here/mooncake_conversation.jsonl
[[ " $* " == *" --trace "* || ! -e $trace ]] || set -- --trace "$trace" "$@"
exec "$here/bin/kvtier-gpu-bench" --commit "$(cat "$here/COMMIT")" "$@"
END
cat >"$bundle/kernel-bench.sh" <<'END'
#!/usr/bin/env bash
# Prints a table and writes kernel-bench.json here, or where --json says; --grid wide takes minutes.
# Where python3 has torch, its attention is timed beside it: KVTIER_PEERS_S seconds, 0 for none.
set -euo pipefail
readonly here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ " $* " == *" --json "* ]] || set -- --json kernel-bench.json "$@"
"$here/bin/kvtier-kernel-bench" --commit "$(cat "$here/COMMIT")" "$@"
readonly peers_s=${KVTIER_PEERS_S:-60}
while [[ $1 != --json ]]; do shift; done
if [[ $peers_s != 0 ]] && python3 -c 'import torch' 2>/dev/null; then
  # Without our LD_LIBRARY_PATH: torch brings libraries of its own.
  env -u LD_LIBRARY_PATH python3 "$here/torch_peers.py" "$2" --seconds "$peers_s"
fi
END

cp tests/gpu/kernels/sanitize.sh kernels/bench/torch_peers.py "$bundle/"

cat >"$bundle/bin/kvtierd.sh" <<'END'
#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$here/kvtierd" "$@"
END
cat >"$bundle/python-environment.sh" <<'END'
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib/python${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export KVTIER_LIBRARY=$here/lib/python/libkvtier.so.0 KVTIERD=$here/bin/kvtierd.sh
export PYTHONPATH=$here/source/client/python PYTHONDONTWRITEBYTECODE=1
END
cat >"$bundle/gpu-python.sh" <<'END'
#!/usr/bin/env bash
# Runs the Python package's tests with a GPU; arguments name some of them (test_gpu).
set -euo pipefail
source "$(dirname "$0")/python-environment.sh"
cd "$here/source/tests/python"
[[ $# -gt 0 ]] || set -- test_gpu test_kernels test_kernel_attention test_kernels_on_gpu test_kept_memory_on_gpu test_region_sources_on_gpu test_lost_regions_on_gpu test_torch
exec python3 -m unittest --verbose "$@"
END
cat >"$bundle/gpu-engine.sh" <<'END'
#!/usr/bin/env bash
# Prints a table and writes gpu-engine.json here, or where --json says.
set -euo pipefail
source "$(dirname "$0")/python-environment.sh"
[[ " $* " == *" --json "* ]] || set -- --json gpu-engine.json "$@"
exec python3 "$here/source/tools/bench/engine/nano_engine.py" --model llama-8b "$@"
END
chmod +x "$bundle"/*.sh "$bundle"/bin/*.sh

tar --create --directory "$(dirname "$bundle")" "$(basename "$bundle")" | xz --threads=0 >"$bundle.tar.xz"
archive_mib=$(($(stat --format=%s "$bundle.tar.xz") / 1048576 + 1))
echo "gpu-bundle: $bundle, commit $(cat "$bundle/COMMIT"); $bundle.tar.xz, $archive_mib MiB"
if ((archive_mib > most_mib)); then
  echo "gpu-bundle: the archive has more than $most_mib MiB" >&2
  exit 1
fi

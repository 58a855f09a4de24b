#!/usr/bin/env bash
# Makes a directory that runs the GPU tests and the GPU benchmark on a machine that has an NVIDIA
# driver and nothing else of what they need:
#
#   tools/gpu-bundle.sh [DIRECTORY]      default: build/gpu-bundle
#   DIRECTORY/gpu-test.sh                on the machine with the GPU
#   DIRECTORY/gpu-bench.sh [OPTION...]   there, too; prints a table and writes gpu-bench.json
#   DIRECTORY/kernel-bench.sh [OPTION...]   likewise of the kernels: kernel-bench.json
#   DIRECTORY/sanitize.sh DIRECTORY/bin     the kernels under compute-sanitizer, where there is one
#
# KVTIER_BUILD_DIRECTORY names a build to take the programs from instead of making one.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly bundle=${1:-build/gpu-bundle}
readonly programs=(kvtierd kvtierctl kvtier-gpu-bench kvtier-kernel-bench)
readonly tests=(gpu_device_test gpu_daemon_test gpu_pool_peer gpu_decode_test gpu_append_test
  gpu_mla_test gpu_kv_write_test gpu_block_ops_test)
readonly most_mib=60

if [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]]; then
  build_preset release "${programs[@]}" "${tests[@]}"
fi
readonly build=${KVTIER_BUILD_DIRECTORY:-build/release}

rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib"
for program in "${programs[@]}" "${tests[@]}"; do
  strip --strip-debug -o "$bundle/bin/$program" "$build/bin/$program"
done

# Shared libraries, but for those that belong to the system and must fit its kernel and driver.
readonly base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libcuda)\.so'
for program in "$bundle"/bin/*; do
  LD_LIBRARY_PATH=$build/lib ldd "$program"
done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $base ]] || cp --dereference "$library" "$bundle/lib/$name"
done
find "$bundle/lib" -name '*.so*' -exec strip --strip-debug {} +

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
# Prints a table and writes gpu-bench.json here, or where --output says.
set -euo pipefail
readonly here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ " $* " == *" --output "* ]] || set -- --output gpu-bench.json "$@"
exec "$here/bin/kvtier-gpu-bench" --commit "$(cat "$here/COMMIT")" "$@"
END
cat >"$bundle/kernel-bench.sh" <<'END'
#!/usr/bin/env bash
# Prints a table and writes kernel-bench.json here, or where --json says; --grid wide takes minutes.
set -euo pipefail
readonly here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ " $* " == *" --json "* ]] || set -- --json kernel-bench.json "$@"
exec "$here/bin/kvtier-kernel-bench" --commit "$(cat "$here/COMMIT")" "$@"
END

cp tests/gpu/kernels/sanitize.sh "$bundle/"
chmod +x "$bundle"/*.sh

size_mib=$(du --summarize --block-size=1M "$bundle" | cut -f1)
echo "gpu-bundle: $bundle, $size_mib MiB, commit $(cat "$bundle/COMMIT")"
if ((size_mib > most_mib)); then
  echo "gpu-bundle: more than $most_mib MiB" >&2
  exit 1
fi

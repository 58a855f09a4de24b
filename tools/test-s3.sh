#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the cold tier on real servers that speak S3: two daemons behind moto, from PyPI (40 MB at the first
# run), and behind Ceph's gateway where Debian's packages radosgw, ceph-mon and ceph-osd are installed.
#
#   tools/test-s3.sh      build/release, or KVTIER_BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/s3_servers.sh

readonly build=${KVTIER_BUILD:-build/release}

test_server() {
  echo "test-s3: $1"
  KVTIER_S3_ENDPOINT="blocks?endpoint=http://127.0.0.1:$s3_port" \
    "$build/bin/cold_s3_integration_test" --gtest_brief=1 --gtest_filter='RealS3Test.*'
}

start_moto
test_server "moto"
if have_gateway; then
  start_gateway
  test_server "$(radosgw --version)"
else
  echo "test-s3: Ceph's gateway is not installed, and was not tested"
fi

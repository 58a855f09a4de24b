#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the cold tier on real servers that speak S3: two daemons behind moto, from PyPI (40 MB at the first
# run), and behind Ceph's gateway where Debian's packages radosgw, ceph-mon and ceph-osd are installed.
#
#   tools/test-s3.sh      build/release, or KVTIER_BUILD
#
# With KVTIER_TRACES two hosts replay the first 1,500 requests of each recorded trace there, too.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/s3_servers.sh

readonly build=${KVTIER_BUILD:-build/release}

bench() {
  "$build/bin/kvtier-cold-bench" "$build/lib/kvtier-cold-s3.so" "blocks?endpoint=$s3_scheme://127.0.0.1:$s3_port" "$@"
}

test_server() {
  echo "test-s3: $1"
  local -x KVTIER_S3_ENDPOINT="blocks?endpoint=$s3_scheme://127.0.0.1:$s3_port"
  "$build/bin/cold_s3_integration_test" --gtest_brief=1 --gtest_filter='RealS3Test.*'
  KVTIER_TRACE_REQUESTS=1500 "$build/bin/two_hosts_replay_test" --gtest_brief=1 --gtest_filter='*OverS3*'
  # The second writes objects of the same names, and finds the first one's.
  bench get 4096 4 0.1 >/dev/null
  if bench get 8192 4 0.1 >/dev/null 2>&1; then
    echo "test-s3: FAILED: an object that was there was replaced" >&2
    exit 1
  fi
}

start_moto
test_server "moto"
make_certificate
s3_scheme=https
start_moto --ssl-cert "$s3_directory/certificate.pem" --ssl-key "$s3_directory/key.pem"
if bench put 1000 1 1 >/dev/null 2>&1; then
  echo "test-s3: FAILED: a server is trusted whose authority is unknown" >&2
  exit 1
fi
AWS_CA_BUNDLE=$s3_directory/certificate.pem test_server "moto by TLS"
s3_scheme=http
if have_gateway; then
  start_gateway
  test_server "$(radosgw --version)"
else
  echo "test-s3: Ceph's gateway is not installed, and was not tested"
fi

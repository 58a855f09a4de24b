#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Renders the Helm chart as an operator's commands do, and lets the daemon of build/release check the configurations.
# The first run downloads 75 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/build.sh

readonly helm=0.2.2
readonly directory=$HOME/.cache/kvtier/chart-$helm
if [[ ! -f $directory/installed ]]; then
  rm -rf "$directory"
  python3 -m venv "$directory"
  "$directory/bin/pip" install --quiet --disable-pip-version-check "helm-python-sdk==$helm" PyYAML
  touch "$directory/installed"
fi
build_preset release kvtierd
# A chart that was not rendered is a failure here: it ends with 77.
"$directory/bin/python" tests/packaging/manifests.py . build/release/bin/kvtierd

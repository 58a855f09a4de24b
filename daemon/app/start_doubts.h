// SPDX-License-Identifier: Apache-2.0
// Why a configuration that goes together would not start on this machine, or serve with less. For
// `--check-config`, which may run on another machine, as another user and beside a daemon.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "gpu/gpus.h"

namespace kvtier {

struct StartDoubt {
  std::string text;  // a sentence without a full stop
  // The start ends until the configuration is changed; else it is tried again, or serves without.
  bool is_final = false;
};

// Asks as the start does, in its order, but for what a daemon that runs here may have: ports,
// sockets, locks and free memory. Makes nothing. Waits for the disk and for the GPUs' driver.
[[nodiscard]] std::vector<StartDoubt> DoubtsOfStart(const Config& config, const Gpus& gpus);

}  // namespace kvtier

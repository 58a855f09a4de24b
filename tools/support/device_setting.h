// SPDX-License-Identifier: Apache-2.0
// Where a private daemon has its pool.
#pragma once

#include <string>

#include "tools/support/private_daemon.h"

namespace kvtier {

// As `pool.device` takes it: "host", "cuda:1"; empty leaves it to the daemon. Settings that come
// after it override it.
inline void PutOnDevice(const std::string& device, PrivateDaemonOptions* options) {
  if (!device.empty()) options->settings.push_back("pool.device=\"" + device + "\"");
}

}  // namespace kvtier

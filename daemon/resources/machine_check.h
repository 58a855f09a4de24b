// SPDX-License-Identifier: Apache-2.0
// Looks for the files and GPUs that a configuration names, for `--check-config`, which may run on
// another machine than the daemon will.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "gpu/gpus.h"

namespace kvtier {

// Says which of them a start here would not find or could not read, in sentences without a full
// stop. Any thread; waits for the disk and, where a GPU is named, for its driver.
[[nodiscard]] std::vector<std::string> MissingHere(const Config& config, const Gpus& gpus);

}  // namespace kvtier

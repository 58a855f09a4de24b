// SPDX-License-Identifier: Apache-2.0
// Shows a configuration, and documents all of them.
#pragma once

#include <string>

#include "daemon/config/config.h"

namespace kvtier {

// Every key with its value in effect, as a TOML document that LoadConfig reads back to the same.
[[nodiscard]] std::string FormatConfig(const Config& config);

// The configuration that packages install: every key explained and commented out.
[[nodiscard]] std::string ConfigExampleToml();

// docs/CONFIGURATION.md.
[[nodiscard]] std::string ConfigReferenceMarkdown();

}  // namespace kvtier

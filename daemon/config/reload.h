// SPDX-License-Identifier: Apache-2.0
// Takes over a configuration that was read again, as far as a running daemon can.
//
// A reload takes over all that can change or nothing. Pure functions, for any thread; the Daemon
// applies their results on the event loop.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"

namespace kvtier {

// One key whose value differs, as text.
struct ConfigDifference {
  std::string key;  // "section.name"; "[[tenant]]" for all tenants together
  std::string running;
  std::string wanted;
  std::string place;  // of `wanted`
};

// The log names these to an operator after a reload, in the order of the table of keys.
struct ConfigDifferences {
  std::vector<ConfigDifference> now;      // can change while the daemon runs
  std::vector<ConfigDifference> restart;  // cannot
};

// Tells the cost of a restart with another value of `key`, as the end of a sentence; empty if
// nothing.
[[nodiscard]] std::string_view CostOfRestart(std::string_view key);

// Compares values as texts, so that "1GiB" and "1024MiB" are equal.
[[nodiscard]] ConfigDifferences CompareConfigs(const Config& running, const Config& wanted);

// `running` with what can change taken from `wanted`.
[[nodiscard]] Config TakeReloadable(const Config& running, const Config& wanted);

// Whether the lowest tier of `wanted` has room for the blocks that are pinned. Errors:
// kInvalidArgument "config_below_pinned"; the context names place, key and remedy. REQUIRES:
// `wanted` passed CheckConfig.
[[nodiscard]] Status CheckPinnedFit(const Config& wanted, uint64_t pinned_bytes);

}  // namespace kvtier

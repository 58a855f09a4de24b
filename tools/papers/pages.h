// SPDX-License-Identifier: Apache-2.0
// The project's manual pages, written from the tables that the programs work with.
#pragma once

#include <string>
#include <string_view>

#include "tools/papers/command_table.h"

namespace kvtier {

struct PageEdition {
  std::string_view date;  // "2026-01-31"
  std::string_view version;
};

// kvtierctl(1).
[[nodiscard]] std::string KvtierctlPage(const CommandRow& table, const PageEdition& edition);
// kvtierd(8).
[[nodiscard]] std::string KvtierdPage(const CommandRow& table, const PageEdition& edition);
// kvtierd.toml(5), from the configuration's schema.
[[nodiscard]] std::string ConfigPage(const PageEdition& edition);

}  // namespace kvtier

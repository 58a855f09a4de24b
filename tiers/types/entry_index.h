// SPDX-License-Identifier: Apache-2.0
// A block's row in the directory. Rows are reused: an index is valid as long as its entry lives.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace kvtier {

using EntryIndex = Strong<struct EntryIndexTag, uint32_t>;
inline constexpr EntryIndex kNoEntry{UINT32_MAX};

}  // namespace kvtier

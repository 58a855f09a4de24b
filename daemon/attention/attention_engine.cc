// SPDX-License-Identifier: Apache-2.0
#include "daemon/attention/attention_engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvtier {

std::vector<int32_t> AttentionJob::PaddedTable() const {
  std::vector<int32_t> table(kv_lengths.size() * table_stride);
  auto from = blocks.begin();
  auto row = table.begin();
  for (const int32_t length : kv_lengths) {
    const auto end = from + (length + cache.page_tokens - 1) / cache.page_tokens;
    std::copy(from, end, row);
    from = end;
    row += table_stride;
  }
  return table;
}

Status CheckWork(double work, double allowed) {
  if (work <= allowed) return {};
  return MakeError(ErrorCode::kLimitExceeded, "attend_work",
                   fmt::format("a call's work of {:.3g}, {:.3g} is allowed", work, allowed));
}

}  // namespace kvtier

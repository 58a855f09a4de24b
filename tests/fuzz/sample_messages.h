// SPDX-License-Identifier: Apache-2.0
// One small frame of every message (of some, several), as examples for docs/PROTOCOL.md, for the
// unit tests and for the fuzzer's corpus.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "protocol/model_record.h"

namespace kvtier::wire {

struct Sample {
  std::string name;  // "acquire_reply"; unique
  std::vector<std::byte> frame;
};

[[nodiscard]] std::vector<Sample> SampleMessages();
[[nodiscard]] ModelRecord SampleModelRecord();

}  // namespace kvtier::wire

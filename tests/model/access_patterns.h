// SPDX-License-Identifier: Apache-2.0
// Request traces made to mislead a policy that learns, or one that counts uses.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tools/replay/trace.h"

namespace kvtier {

inline constexpr std::array<std::string_view, 6> kAccessPatterns = {
    "scan",     // conversations, between them long prompts that are asked once
    "loop",     // documents asked in turn, more than fit
    "uniform",  // documents asked at random, each as likely as any other
    "drift",    // few popular documents, and others every minute
    "flip",     // every five minutes conversations give way to prompts asked exactly twice, or back
    "trap",     // documents asked hundreds of times and then never again
};

// An hour or so of requests in blocks of 512 tokens; the same for the same seed. REQUIRES: the
// pattern is one of kAccessPatterns.
[[nodiscard]] Trace MakeAccessPattern(std::string_view pattern, uint64_t seed);

}  // namespace kvtier

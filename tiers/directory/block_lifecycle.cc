// SPDX-License-Identifier: Apache-2.0
#include "tiers/directory/block_lifecycle.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

namespace kvtier {
namespace {

using Names = std::span<const std::string_view>;

std::string NamesOf(uint32_t bits, Names names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if ((bits >> i & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text += names[i];
  }
  return text;
}

[[noreturn]] void Fail(std::string_view event, uint32_t bits, Names names) {
  const std::string states = NamesOf(bits, names);
  std::fprintf(stderr, "check failed: a block cannot %.*s: it is %s\n",
               static_cast<int>(event.size()), event.data(),
               states.empty() ? "in no tier" : states.c_str());
  std::abort();
}

}  // namespace

void FailPoolTransition(PoolEvent event, uint32_t bits) {
  Fail(kPoolTransitions[static_cast<size_t>(event)].name, bits, PoolBits::kNames);
}

void FailBlockTransition(BlockEvent event, uint32_t bits) {
  Fail(kBlockTransitions[static_cast<size_t>(event)].name, bits, EntryBits::kNames);
}

}  // namespace kvtier

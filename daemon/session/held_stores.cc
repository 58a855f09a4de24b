// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/held_stores.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvtier {

bool HeldStores::Reached(const CounterPage& page, const wire::StoreAfter& after) {
  // No farther: a client that has lost its connection moves all its words on by 2^30, and stores
  // that it held then must not happen.
  return page.Read(after.offset) - after.value < (uint32_t{1} << 29);
}

void HeldStores::Hold(PoolId region, std::vector<StoreRequest> blocks,
                      std::shared_ptr<CounterPage> page, const wire::StoreAfter& after) {
  held_.push_back(std::make_shared<Held>(Held{
      .region = region, .blocks = std::move(blocks), .page = std::move(page), .after = after}));
  if (!next_look_.running()) next_look_.Start(kLookEveryMs, [this] { Look(); });
}

void HeldStores::Drop(PoolId region) {
  std::erase_if(held_, [&](const auto& held) { return held->region == region; });
}

void HeldStores::DropAll() { held_.clear(); }

size_t HeldStores::blocks() const {
  size_t blocks = 0;
  for (const auto& held : held_) blocks += held->blocks.size();
  return blocks;
}

// The cache may report the end of a transfer from within its calls, which may end the connection
// and thereby drop the stores held here: so each store is looked for anew after such a call.
void HeldStores::Look() {
  CancelLate();
  size_t left = kBlocksPerLook;
  while (left > 0) {
    const std::shared_ptr<Held> held = NextReady();
    if (!held) break;
    const auto rest = std::span<const StoreRequest>(held->blocks).subspan(held->begun);
    const auto part = rest.first(std::min(rest.size(), left));
    left -= part.size();
    held->begun += part.size();
    if (part.size() == rest.size()) std::erase(held_, held);
    cache_.Store(held->region, part);
  }
  if (!held_.empty()) next_look_.Start(kLookEveryMs, [this] { Look(); });
}

void HeldStores::CancelLate() {
  std::vector<std::shared_ptr<Held>> late;
  size_t blocks = 0;
  for (const auto& held : held_) {
    if (held->begun > 0 || --held->looks_left > 0 || blocks >= kBlocksPerLook) continue;
    late.push_back(held);
    blocks += held->blocks.size();
  }
  for (const auto& held : late) {
    if (std::erase(held_, held) == 0) continue;
    std::vector<BlockIndex> blocks;
    for (const StoreRequest& block : held->blocks) blocks.push_back(block.block);
    cache_.CancelBlocks(held->region, blocks);
  }
}

std::shared_ptr<HeldStores::Held> HeldStores::NextReady() const {
  const auto ready = std::ranges::find_if(
      held_, [](const auto& held) { return held->begun > 0 || Reached(*held->page, held->after); });
  return ready == held_.end() ? nullptr : *ready;
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/pattern_holder.h"

#include <fmt/format.h>

#include "base/digest.h"
#include "tools/bench/gpu/player.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlocks = 64;

BlockHash HashOf(uint32_t block) {
  const std::string name = fmt::format("kvtier.bench held {}", block);
  return Sha256(std::as_bytes(std::span(name)));
}

}  // namespace

Result<PatternHolder> PatternHolder::Open(const std::string& socket) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client, ConnectPlayer(socket));
  PatternHolder holder(std::move(client));
  kvt::Pool& pool = holder.client_.pool();
  auto acquired = pool.Acquire({}, {}, kBlocks);
  if (!acquired) return FromClient(acquired.error());
  std::vector<kvt_commit_entry> entries(kBlocks);
  std::vector<std::byte> bytes(kPlayedBlockBytes);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    FillBlock(HashOf(i), bytes);
    holder.written_.push_back(ChecksumPayload(bytes));
    if (const auto filled = pool.Write(acquired->new_blocks[i], bytes); !filled) {
      return FromClient(filled.error());
    }
    entries[i].block = acquired->new_blocks[i];
    entries[i].hash = ToWire({HashOf(i)}).front();
    entries[i].depth = i;
    entries[i].tokens = kPlayedBlockTokens;
    entries[i].retention = KVT_RETENTION_EXTENDED;
  }
  if (const auto committed = pool.CommitAndWait(entries); !committed) {
    return FromClient(committed.error());
  }
  holder.held_ = std::move(acquired->new_blocks);
  return holder;
}

Result<uint64_t> PatternHolder::CountWrong() {
  std::vector<std::byte> bytes(kPlayedBlockBytes);
  uint64_t wrong = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (const auto read = client_.pool().Read(held_.blocks()[i], bytes); !read) {
      return FromClient(read.error());
    }
    wrong += ChecksumPayload(bytes) == written_[i] ? 0 : 1;
  }
  return wrong;
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "client/core/token_ids.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/messages.h"

namespace kvtier::client {
namespace {

constexpr size_t kMessageBytes = 64;  // a frame without blocks and ids, rounded up
constexpr size_t kBlockBytes = sizeof(BlockHash) + sizeof(uint16_t);

Status CheckCounts(uint32_t block_tokens, size_t blocks, std::span<const uint16_t> counts,
                   size_t ids) {
  uint64_t sum = counts.empty() ? uint64_t{blocks} * block_tokens : 0;
  bool fits = counts.empty() || counts.size() == blocks;
  for (const uint16_t count : counts) {
    fits &= count > 0 && count <= block_tokens;
    sum += count;
  }
  if (fits && sum == ids) return {};
  return MakeError(
      ErrorCode::kInvalidArgument, "bad_token_count",
      fmt::format("{} ids of {} blocks of at most {} tokens", ids, blocks, block_tokens));
}

}  // namespace

Result<bool> AskForTokenIds(DaemonSession* session, PoolId pool, Deadline deadline) {
  const Result<wire::TokensReply> reply = session->channel().Call<wire::TokensReply>(
      wire::Tokens{.pool = pool, .blocks = {}, .ids = {}}, deadline);
  if (reply) return reply->wanted;
  if (reply.error().code == ErrorCode::kUnsupported) return false;
  return tl::unexpected(reply.error());
}

Status TellTokenIds(DaemonSession* session, PoolId pool, uint32_t block_tokens,
                    std::span<const BlockHash> hashes, std::span<const uint16_t> counts,
                    std::span<const uint32_t> ids) {
  KVT_RETURN_IF_ERROR(CheckCounts(block_tokens, hashes.size(), counts, ids.size()));
  const size_t room = std::max<size_t>(session->limits().max_frame_bytes, kMessageBytes);
  wire::Tokens message{.pool = pool, .blocks = {}, .ids = {}};
  const auto bytes_with = [&](size_t tokens) {
    return kMessageBytes + (message.blocks.size() + 1) * kBlockBytes +
           (message.ids.size() + tokens) * sizeof(uint32_t);
  };
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint16_t tokens = counts.empty() ? static_cast<uint16_t>(block_tokens) : counts[i];
    const bool full = message.blocks.size() == wire::kMaxTokenBlocksPerCall ||
                      message.ids.size() + tokens > wire::kMaxTokenIdsPerCall ||
                      bytes_with(tokens) > room;
    if (full && !message.blocks.empty()) {
      KVT_RETURN_IF_ERROR(session->channel().Post(message));
      message.blocks.clear();
      message.ids.clear();
    }
    message.blocks.push_back({hashes[i], tokens});
    const auto own = ids.first(tokens);
    message.ids.insert(message.ids.end(), own.begin(), own.end());
    ids = ids.subspan(tokens);
  }
  if (message.blocks.empty()) return {};
  return session->channel().Post(message);
}

}  // namespace kvtier::client

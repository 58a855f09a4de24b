// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/replay_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

#include "base/units.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/admin.h"

namespace kvtier {
namespace {

constexpr size_t kCommitsPerCall = 4096;
constexpr int64_t kSettleSilenceMs = 60'000;
constexpr uint64_t kBytesPerElement = 2;  // bf16
constexpr uint64_t kMaxHeadSize = 128;
constexpr uint64_t kMaxHeads = 1024;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BlockHash FromWire(const kvt_hash& wire) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), wire.bytes, sizeof(wire.bytes));
  return hash;
}

}  // namespace

std::vector<kvt_hash> ToWire(const std::vector<BlockHash>& hashes) {
  std::vector<kvt_hash> wire(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    std::memcpy(wire[i].bytes, hashes[i].bytes.data(), sizeof(wire[i].bytes));
  }
  return wire;
}

Result<kvt_model_record> ModelOfBlockBytes(uint64_t block_bytes, uint32_t block_tokens,
                                           uint32_t layers) {
  const uint64_t unit = uint64_t{2} * kBytesPerElement * block_tokens * layers;  // K and V
  const uint64_t elements = unit == 0 ? 0 : block_bytes / unit;
  // The widest head that divides the elements, so that odd sizes work, too.
  const uint64_t head_size = std::gcd(elements, kMaxHeadSize);
  const uint64_t heads = elements == 0 ? 0 : elements / head_size;
  if (heads == 0 || heads > kMaxHeads || block_bytes % unit != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_block_bytes",
                     fmt::format("a block of {} tokens takes a multiple of {} bytes, not {}",
                                 block_tokens, unit, block_bytes));
  }
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "kvtier-replay";
  record.groups[0].layers = layers;
  record.groups[0].kv_heads = static_cast<uint32_t>(heads);
  record.groups[0].k_head_dim = static_cast<uint32_t>(head_size);
  record.groups[0].v_head_dim = static_cast<uint32_t>(head_size);
  record.groups[0].block_tokens = block_tokens;
  return record;
}

Result<ReplayClient> ReplayClient::Connect(const ReplayTarget& target, uint32_t block_tokens) {
  KVT_ASSIGN_OR_RETURN(const kvt_model_record record,
                       ModelOfBlockBytes(target.block_bytes, block_tokens, target.layers));
  kvt_connect_options options;
  kvt_connect_options_init(&options);
  options.client_name = "kvtierctl replay";
  // A busy machine's daemon answers late, which is no error of a replay.
  options.request_timeout_ms = kMinuteMs;
  options.reconnect_max_ms = target.reconnect_max_ms;
  options.reconnect_min_ms = std::min(options.reconnect_min_ms, target.reconnect_max_ms);
  auto connection = kvt::Connection::Connect(target.socket, &options);
  if (!connection) return FromClient(connection.error());
  auto model = connection->RegisterModel(record);
  if (!model) return FromClient(model.error());
  auto pool = connection->Attach(model->model, target.pool_bytes, target.device);
  if (!pool) return FromClient(pool.error());
  return ReplayClient(target, block_tokens, std::move(*connection), std::move(*pool));
}

ReplayClient::ReplayClient(ReplayTarget target, uint32_t block_tokens, kvt::Connection connection,
                           kvt::Pool pool)
    : target_(std::move(target)),
      block_tokens_(block_tokens),
      connection_(std::move(connection)),
      pool_(std::move(pool)) {
  if (pool_.Info().device_kind != KVT_DEVICE_HOST) staging_.resize(target_.block_bytes);
}

kvt::Result<std::span<const std::byte>> ReplayClient::Look(const kvt_block& block) {
  if (staging_.empty()) {
    const auto bytes = pool_.Bytes(block);
    if (!bytes) return bytes.error();
    return std::span<const std::byte>(*bytes);
  }
  if (const auto read = pool_.Read(block, staging_); !read) return read.error();
  return std::span<const std::byte>(staging_);
}

kvt::Status ReplayClient::Fill(const BlockHash& hash, const kvt_block& block) {
  if (!staging_.empty()) {
    FillBlock(hash, staging_);
    return pool_.Write(block, staging_);
  }
  const auto bytes = pool_.Bytes(block);
  if (!bytes) return bytes.error();
  FillBlock(hash, *bytes);
  return {};
}

Status ReplayClient::Play(const TraceRequest& request) {
  ++report_.requests;
  const std::vector<kvt_hash> hashes = ToWire(request.hashes);
  const auto start = SteadyClock::now();
  auto acquired = pool_.Acquire(hashes);
  if (!acquired) {
    ++(acquired.error().unavailable() ? report_.requests_without_daemon : report_.errors);
    // The next daemon wants the memory that the last one's pool took.
    if (acquired.error().unavailable()) pool_.UnmapDevice();
    CountBlocks(request, {}, 0);
    return {};
  }
  report_.acquire_us.push_back(SecondsSince(start) * 1e6);

  const size_t promised = acquired->hits.size();
  WaitForHits(start, &*acquired);
  KVT_RETURN_IF_ERROR(Settle());
  const size_t hits = CheckHits(hashes, *acquired);
  report_.blocks_lost_loading += promised - acquired->hits.size();
  CountBlocks(request, *acquired, hits);

  std::vector<kvt_block> held = acquired->hits.Take();
  if (hits == held.size()) KVT_RETURN_IF_ERROR(FillMisses(hashes, hits, &held));
  // In one call and in order, so that the deepest blocks are forgotten first.
  if (!held.empty()) (void)pool_.Release(held);
  CountAsyncErrors();
  return Settle();
}

void ReplayClient::WaitForHits(SteadyClock::time_point start, kvt::Acquired* acquired) {
  if (acquired->load.id == 0) return;
  // Blocks become usable in order. The first run of one tier's blocks shows that tier's rate; what
  // follows was loading meanwhile.
  const auto below_pool = [](const auto& source) { return source.tier != KVT_TIER_POOL; };
  const auto& sources = acquired->sources;
  const auto begin = std::ranges::find_if(sources, below_pool);
  const auto end = std::find_if(begin, sources.end(),
                                [&](const auto& source) { return source.tier != begin->tier; });
  const auto run_end = static_cast<uint32_t>(end - sources.begin());
  auto progress = pool_.Wait(acquired, run_end);
  if (progress && progress->ready >= run_end && begin != end) {
    const auto bytes = static_cast<uint64_t>(end - begin) * target_.block_bytes;
    report_.onload[begin->tier].Add({bytes, SecondsSince(start)});
  }
  if (progress) progress = pool_.Wait(acquired, static_cast<uint32_t>(sources.size()));
  if (!progress) acquired->hits.Release();
}

size_t ReplayClient::CheckHits(const std::vector<kvt_hash>& hashes, const kvt::Acquired& acquired) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < acquired.hits.size(); ++i) {
    const auto bytes = Look(acquired.hits[i]);
    if (!bytes || !BlockMatches(FromWire(hashes[i]), *bytes)) ++wrong;
  }
  // Bytes read while the references stood count; nothing protected those of a lost block.
  if (!pool_.Check(acquired.hits.blocks())) {
    ++report_.requests_without_daemon;
    return 0;
  }
  report_.wrong_blocks += wrong;
  return acquired.hits.size();
}

void ReplayClient::CountBlocks(const TraceRequest& request, const kvt::Acquired& acquired,
                               size_t hits) {
  HitCounts blocks;
  HitCounts tokens;
  for (size_t i = 0; i < request.hashes.size(); ++i) {
    const uint32_t block_tokens = BlockTokens(request, block_tokens_, i);
    ++blocks.asked;
    tokens.asked += block_tokens;
    ++(i < hits ? blocks.hit[acquired.sources[i].tier] : blocks.miss);
    (i < hits ? tokens.hit[acquired.sources[i].tier] : tokens.miss) += block_tokens;
  }
  report_.blocks.Add(blocks);
  report_.tokens.Add(tokens);
}

Status ReplayClient::FillMisses(const std::vector<kvt_hash>& hashes, size_t first,
                                std::vector<kvt_block>* held) {
  const auto missed = static_cast<uint32_t>(hashes.size() - first);
  if (missed == 0) return {};
  auto allocated = pool_.Acquire({}, {}, missed);
  if (!allocated) {
    const kvt_status code = allocated.error().code;
    ++(code == KVT_UNAVAILABLE          ? report_.requests_without_daemon
       : code == KVT_RESOURCE_EXHAUSTED ? report_.requests_without_room
                                        : report_.errors);
    return {};
  }
  KVT_RETURN_IF_ERROR(Settle());
  std::vector<kvt_commit_entry> entries(missed);
  for (uint32_t i = 0; i < missed; ++i) {
    const size_t position = first + i;
    if (!Fill(FromWire(hashes[position]), allocated->new_blocks[i])) return {};
    kvt_commit_entry& entry = entries[i];
    entry.block = allocated->new_blocks[i];
    entry.hash = hashes[position];
    entry.depth = static_cast<uint32_t>(position);
    entry.tokens = static_cast<uint16_t>(block_tokens_);
    entry.retention = KVT_RETENTION_EXTENDED;
    entry.has_parent = position > 0;
    if (position > 0) entry.parent = hashes[position - 1];
  }
  for (size_t begin = 0; begin < entries.size(); begin += kCommitsPerCall) {
    const size_t count = std::min(kCommitsPerCall, entries.size() - begin);
    // A lost connection shows at the next acquire; refusals come by CountAsyncErrors.
    (void)pool_.Commit(std::span(entries).subspan(begin, count));
  }
  const std::vector<kvt_block> taken = allocated->new_blocks.Take();
  held->insert(held->end(), taken.begin(), taken.end());
  return {};
}

void ReplayClient::CountAsyncErrors() {
  std::array<kvt_async_error, 16> errors;
  size_t count = 0;
  do {
    count = kvt_take_errors(connection_.get(), errors.data(), errors.size(), nullptr);
    for (const kvt_async_error& error : std::span(errors).first(count)) {
      // A block that a daemon's death has taken was counted where it was missed.
      if (std::string_view(error.reason) == "lost_at_restart") continue;
      const bool duplicate = error.code == KVT_ALREADY_EXISTS;
      ++(duplicate ? report_.blocks_committed_twice : report_.errors);
    }
  } while (count == errors.size());
}

Status ReplayClient::Settle() {
  if (target_.settle_admin_socket.empty()) return {};
  // Commits and releases went out without waiting, and the admin socket is another one.
  if (const auto flushed = connection_.Flush(); !flushed) return FromClient(flushed.error());
  const auto reply = CallAdmin(target_.settle_admin_socket, R"({"op":"settle"})", kSettleSilenceMs);
  if (!reply) return tl::unexpected(reply.error());
  return {};
}

const ReplayReport& ReplayClient::Finish() {
  (void)connection_.Flush();
  CountAsyncErrors();
  return report_;
}

}  // namespace kvtier

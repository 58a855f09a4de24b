// SPDX-License-Identifier: Apache-2.0
#include "tests/model/offline_replay.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tests/fakes/fake_machine.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

constexpr SessionId kSession{1};
// Blocks hold nothing that anyone looks at. A slot is its header's page and the payload's.
constexpr uint64_t kBlockBytes = 4 * kKiB;
constexpr uint64_t kSlotsPerSlab = 64;
constexpr uint64_t kSlabBytes = kSlotsPerSlab * 2 * kBlockBytes + 4 * kKiB;

constexpr uint64_t kConversationTokens = 1536;
// KV of Llama-3.1-8B.
constexpr uint64_t kTokenBytes = 128 * kKiB;

// Which requests are the last of a conversation that the client closes.
std::vector<bool> Closing(const Trace& trace, double share) {
  const uint64_t blocks = std::max<uint64_t>(kConversationTokens / trace.block_tokens, 1);
  std::unordered_map<BlockHash, size_t> last;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const std::vector<BlockHash>& hashes = trace.requests[i].hashes;
    if (!hashes.empty()) last[hashes[std::min<uint64_t>(hashes.size(), blocks) - 1]] = i;
  }
  std::vector<bool> closing(trace.requests.size());
  constexpr uint64_t kParts = 1000;
  for (const auto& [conversation, request] : last) {
    const uint64_t spread = conversation.Prefix64() * 0x9E37'79B9'7F4A'7C15 >> 32;
    closing[request] = static_cast<double>(spread % kParts) < share * kParts;
  }
  return closing;
}

// The time of Llama-3.1-8B on an H200, as measured.
double PrefillMs(uint64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return 0.0292 * n + 3.78e-7 * n * n;
}

// The time that a token's KV of that model takes from the tier over one bus, or from one drive.
double LoadMs(Tier tier, uint64_t tokens) {
  constexpr std::array<double, kTierCount> kMsAByte = {0, 1e3 / 54e9, 1e3 / 5e9};
  return static_cast<double>(tokens * kTokenBytes) * kMsAByte[static_cast<size_t>(tier)];
}

uint32_t Slabs(uint64_t slots) {
  return static_cast<uint32_t>((slots + kSlotsPerSlab - 1) / kSlotsPerSlab);
}

MachineSizes MachineFor(const OfflineSizes& sizes) {
  return {.device_bytes = sizes.pool * kBlockBytes,
          .slab_bytes = kSlabBytes,
          .host_slabs = Slabs(sizes.host),
          .host_slabs_ready = Slabs(sizes.host),
          .disk_slabs = Slabs(sizes.disk),
          .disk_files = sizes.disk == 0 ? 0u : 1u};
}

CacheOptions OptionsFor(const OfflineSizes& sizes) {
  CacheOptions options;
  options.pool_bytes = sizes.pool * kBlockBytes;
  options.pool_eviction = sizes.eviction;
  options.slab_bytes = kSlabBytes;
  return options;
}

class OfflineClient {
 public:
  OfflineClient(const Trace& trace, const OfflineSizes& sizes)
      : trace_(trace),
        closing_(Closing(trace, sizes.closed_share)),
        machine_(MachineFor(sizes), /*seed=*/1),
        cache_(OptionsFor(sizes), machine_.Environment(), IndexSnapshot{}) {
    cache_.OpenSession(kSession, [](const LoadProgress&) {});
    const NamespaceIdentity identity{.tenant = "tenant", .block_bytes = kBlockBytes};
    auto pool = cache_.AttachPool(identity, 0);
    KVT_CHECK(pool);
    pool_ = std::move(*pool);
  }

  OfflineReport PlayAll() {
    const int64_t start_ms = trace_.requests.empty() ? 0 : trace_.requests.front().arrival_ms;
    for (size_t i = 0; i < trace_.requests.size(); ++i) {
      const TraceRequest& request = trace_.requests[i];
      AdvanceTo(request.arrival_ms - start_ms);
      Play(request);
      if (!closing_[i]) continue;
      KVT_CHECK(cache_.Hint(pool_.id, request.hashes, SequenceHint::kClosed, 0));
      machine_.loop.RunAll();
    }
    report_.disk_read_blocks = cache_.stats().disk_read_blocks;
    report_.disk_written_blocks = cache_.stats().disk_write_blocks;
    machine_.loop.DropAll();
    return report_;
  }

 private:
  void AdvanceTo(int64_t ms) {
    const int64_t elapsed_ms = machine_.clock.elapsed_ms();
    if (ms <= elapsed_ms) return;
    machine_.clock.Advance(ms - elapsed_ms);
    if (ms / 1000 == elapsed_ms / 1000) return;
    cache_.Tick();
    machine_.loop.RunAll();
  }

  void Play(const TraceRequest& request) {
    const AcquireReply found = Acquire(request.hashes, 0);
    const size_t hits = found.hits.size();
    uint64_t asked = 0, saved = 0, possible = 0;
    bool all_seen = true;
    for (size_t i = 0; i < request.hashes.size(); ++i) {
      const uint32_t tokens = BlockTokens(request, trace_.block_tokens, i);
      asked += tokens;
      all_seen &= !seen_.insert(request.hashes[i]).second;
      if (all_seen) possible += tokens;
      if (i >= hits) continue;
      saved += tokens;
      report_.hit_tokens[static_cast<size_t>(found.hits[i].tier)] += tokens;
      report_.load_ms += LoadMs(found.hits[i].tier, tokens);
    }
    report_.asked_tokens += asked;
    report_.asked_ms += PrefillMs(asked);
    report_.saved_ms += PrefillMs(saved);
    report_.possible_ms += PrefillMs(possible);
    const auto missing = static_cast<uint32_t>(request.hashes.size() - hits);
    std::vector<BlockHandle> held;
    for (const AcquiredBlock& hit : found.hits) held.push_back(hit.handle);
    for (const BlockHandle& block : Acquire({}, missing).new_blocks) {
      const size_t depth = held.size();
      CommitRequest commit{.block = block, .hash = request.hashes[depth]};
      commit.tokens =
          static_cast<uint16_t>(std::max(BlockTokens(request, trace_.block_tokens, depth), 1u));
      commit.depth = static_cast<uint32_t>(depth);
      if (depth > 0) commit.parent = request.hashes[depth - 1];
      KVT_CHECK(cache_.Commit(kSession, pool_.id, commit));
      held.push_back(block);
    }
    std::ranges::reverse(held);
    KVT_CHECK(cache_.Release(kSession, pool_.id, held).empty());
    machine_.loop.RunAll();
  }

  AcquireReply Acquire(const std::vector<BlockHash>& hashes, uint32_t new_blocks) {
    std::optional<Result<AcquireReply>> reply;
    cache_.Acquire(
        {.session = kSession, .pool = pool_.id, .hashes = hashes, .new_blocks = new_blocks},
        [&](Result<AcquireReply> result) { reply = std::move(result); });
    machine_.loop.RunAll();
    KVT_CHECK(reply.has_value() && reply->has_value());
    return std::move(**reply);
  }

  const Trace& trace_;
  const std::vector<bool> closing_;
  FakeMachine machine_;
  Cache cache_;
  PoolInfo pool_;
  std::unordered_set<BlockHash> seen_;  // by any request
  OfflineReport report_;
};

}  // namespace

OfflineReport ReplayOffline(const Trace& trace, const OfflineSizes& sizes) {
  return OfflineClient(trace, sizes).PlayAll();
}

}  // namespace kvtier

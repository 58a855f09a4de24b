// SPDX-License-Identifier: Apache-2.0
// Blocks are found by tenant and model, in every namespace that fits. The same hash may stand for
// different blocks in different namespaces.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "daemon/admin/admin_operations.h"
#include "daemon/admin/chosen_models.h"
#include "daemon/session/block_handler.h"
#include "daemon/session/models.h"
#include "protocol/restorable_prefix.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// The limits of one step of a listing: about 2 ms each of looking and of writing. A filter that few
// blocks pass makes looking the larger part.
constexpr uint32_t kRowsPerStep = 65536;
constexpr uint32_t kBlocksPerStep = 1024;

std::string_view TierName(Tier tier) { return kTierNames[static_cast<size_t>(tier)]; }

std::string_view RetentionName(RetentionClass retention) {
  return retention == RetentionClass::kMemory ? "memory" : "extended";
}

json::array TierNames(const BlockPresence& presence) {
  json::array names;
  for (const Tier tier : {Tier::kPool, Tier::kHost, Tier::kDisk}) {
    if (presence.in(tier)) names.emplace_back(TierName(tier));
  }
  if (presence.cold) names.emplace_back("cold");
  return names;
}

tl::unexpected<Error> BadRequest(std::string context) {
  return MakeError(ErrorCode::kInvalidArgument, "bad_request", std::move(context));
}

json::object NamespaceJson(const ModelRegistry& models, const NamespaceIdentity& name_space) {
  const std::string fingerprint = name_space.model.Hex();
  return {{"tenant", name_space.tenant},
          {"model", fingerprint},
          {"model_name", models.NameOf(name_space.tenant, fingerprint)},
          {"block_bytes", name_space.block_bytes}};
}

// Written by hand, because a listing may have a million blocks. All texts are names of this program
// or hexadecimal digits, so that nothing needs to be escaped.
void AppendBlock(const BlockRecord& block, std::string* out) {
  *out += fmt::format(R"({{"hash":"{}","namespace":{},"tiers":{})", block.key.hash.Hex(),
                      block.key.namespace_id.value, json::serialize(TierNames(block.presence)));
  *out += fmt::format(R"(,"tokens":{},"depth":{},"created_s":{},"last_use_s":{},"uses":{},)"
                      R"("retention":"{}","references":{},"pinned":{}}})",
                      block.tokens, PositionOf(block.depth), block.created_s, block.last_use_s,
                      block.uses, RetentionName(block.retention), block.references,
                      block.pinned_until_ms > 0);
}

// Walks the directory in steps. A block that is cached during the whole walk is listed exactly
// once, whatever is evicted or committed between the steps.
class Listing final : public AdminOperation {
 public:
  Listing(const OperationBasics& basics, const ModelRegistry* models,
          std::shared_ptr<AdminCall> call, BlockFilter filter, uint64_t cursor, uint32_t limit)
      : AdminOperation(basics, std::move(call)),
        models_(*models),
        filter_(std::move(filter)),
        cursor_(cursor),
        left_(limit) {}

  void Run() override {
    if (Cancelled()) return;
    const BlockWalk step =
        cache_.Walk(cursor_, kRowsPerStep, std::min(left_, kBlocksPerStep), filter_);
    cursor_ = step.next_cursor;
    left_ -= static_cast<uint32_t>(step.blocks.size());
    for (const BlockRecord& block : step.blocks) {
      if (!blocks_.empty()) blocks_ += ',';
      AppendBlock(block, &blocks_);
    }
    if (step.finished || left_ == 0) return Finish(step.finished);
    Later(0, [this] { Run(); });
  }

 private:
  void Finish(bool finished) {
    json::array namespaces;
    for (const NamespaceIdentity& name_space : cache_.Namespaces()) {
      namespaces.push_back(NamespaceJson(models_, name_space));
    }
    Reply(fmt::format(R"({{"schema":"kvtier.ls/1","now_s":{},"cursor":{},"finished":{},)"
                      R"("namespaces":{},"blocks":[{}]}})",
                      clock_.WallMs() / 1000, cursor_, finished, json::serialize(namespaces),
                      blocks_));
  }

  const ModelRegistry& models_;
  const BlockFilter filter_;
  uint64_t cursor_;
  uint32_t left_;
  std::string blocks_;
};

json::value DropJson(const std::optional<BlockDrop>& drop) {
  if (!drop) return nullptr;
  return {{"when_s", drop->when_s},
          {"tier", TierName(drop->tier)},
          {"reason", DropReasonName(drop->reason)}};
}

json::value MissJson(const std::optional<BlockMiss>& miss) {
  if (!miss) return nullptr;
  return {{"when_s", miss->when_s}, {"reason", MissReasonName(miss->reason)}};
}

void DescribeBlock(const BlockRecord& block, json::object* out) {
  (*out)["tiers"] = TierNames(block.presence);
  (*out)["disk_unverified"] = block.presence.disk_unverified;
  (*out)["tokens"] = block.tokens;
  (*out)["depth"] = PositionOf(block.depth);
  (*out)["retention"] = RetentionName(block.retention);
  (*out)["created_s"] = block.created_s;
  (*out)["last_use_s"] = block.last_use_s;
  (*out)["uses"] = block.uses;
  (*out)["references"] = block.references;
  (*out)["pinned_until_ms"] = block.pinned_until_ms;
  (*out)["expires_ms"] = block.expires_ms;
  (*out)["moving"] = block.moving;
  (*out)["persist_failed"] = block.persist_failed;
  if (block.presence.in(Tier::kDisk)) (*out)["disk_offset"] = block.disk_offset;
}

Status CheckHashes(const AdminRequestBody& request, size_t most) {
  if (request.hashes.empty()) return BadRequest("\"hashes\" is missing or empty");
  if (request.hashes.size() <= most) return {};
  return BadRequest(fmt::format("\"hashes\" has {}, at most {}", request.hashes.size(), most));
}

}  // namespace

Result<std::unique_ptr<AdminOperation>> MakeListing(const OperationBasics& basics,
                                                    const ModelRegistry* models,
                                                    const AdminRequestBody& request,
                                                    std::shared_ptr<AdminCall> call) {
  if (request.limit == 0) return BadRequest("\"limit\" must not be 0");
  BlockFilter filter{.tier = request.tier,
                     .cold = request.cold,
                     .namespaces = NamespacesOf(*basics.cache, *models, request)};
  if (!request.prefix.empty()) {
    filter.hashes = HashRange::BeginningWith(request.prefix);
    if (!filter.hashes) return BadRequest("\"prefix\" must be 1 to 64 hexadecimal digits");
  }
  return std::make_unique<Listing>(basics, models, std::move(call), std::move(filter),
                                   request.cursor, request.limit);
}

Result<std::string> InspectBlock(const Cache& cache, const ModelRegistry& models,
                                 const Clock& clock, const AdminRequestBody& request) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, 1));
  const BlockHash& hash = request.hashes.front();
  const std::vector<NamespaceIdentity> namespaces = cache.Namespaces();
  json::array found;
  for (const NamespaceId id : NamespacesOf(cache, models, request)) {
    const BlockKey key{id, hash};
    const std::optional<BlockRecord> block = cache.Inspect(key);
    const BlockPast past = cache.PastOf(key);
    if (!block && !past.drop && !past.miss) continue;
    json::object shown = NamespaceJson(models, namespaces[id.value]);
    shown["cached"] = block.has_value();
    if (block) DescribeBlock(*block, &shown);
    shown["last_drop"] = DropJson(past.drop);
    shown["last_miss"] = MissJson(past.miss);
    found.push_back(std::move(shown));
  }
  return json::serialize(json::object{{"schema", "kvtier.inspect/1"},
                                      {"hash", hash.Hex()},
                                      {"now_ms", clock.WallMs()},
                                      {"blocks", std::move(found)}});
}

Result<std::string> PinBlocks(Cache* cache, const ModelRegistry& models,
                              const AdminRequestBody& request) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, SIZE_MAX));
  if (request.ttl_ms > kMaxPinTtlMs) {
    return BadRequest(fmt::format("\"ttl_ms\" must be 0 to {}", kMaxPinTtlMs));
  }
  uint64_t blocks = 0;
  for (const NamespaceId id : NamespacesOf(*cache, models, request)) {
    KVT_ASSIGN_OR_RETURN(const uint32_t pinned, cache->Pin(id, request.hashes, request.ttl_ms));
    blocks += pinned;
  }
  return json::serialize(json::object{{"schema", "kvtier.pin/1"},
                                      {"asked", request.hashes.size()},
                                      {"blocks", blocks},
                                      {"ttl_ms", request.ttl_ms}});
}

Result<std::string> EvictBlocks(Cache* cache, const ModelRegistry& models,
                                const AdminRequestBody& request) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, SIZE_MAX));
  const std::vector<NamespaceId> ids = NamespacesOf(*cache, models, request);
  if (request.cold) {
    return BadRequest("\"tier\" must be pool, host or disk: other hosts use the cold store, too");
  }
  std::array<uint64_t, 5> outcomes{};
  for (const BlockHash& hash : request.hashes) {
    // A hash counts as absent only if it is in none of the namespaces.
    EvictOutcome worst = EvictOutcome::kAbsent;
    for (const NamespaceId id : ids) {
      const EvictOutcome outcome = cache->Evict({id, hash}, request.tier);
      if (outcome != EvictOutcome::kAbsent) worst = outcome;
    }
    ++outcomes[static_cast<size_t>(worst)];
  }
  const auto count = [&](EvictOutcome outcome) { return outcomes[static_cast<size_t>(outcome)]; };
  return json::serialize(json::object{{"schema", "kvtier.evict/1"},
                                      {"asked", request.hashes.size()},
                                      {"evicted", count(EvictOutcome::kEvicted)},
                                      {"absent", count(EvictOutcome::kAbsent)},
                                      {"referenced", count(EvictOutcome::kReferenced)},
                                      {"pinned", count(EvictOutcome::kPinned)},
                                      {"moving", count(EvictOutcome::kMoving)}});
}

}  // namespace kvtier

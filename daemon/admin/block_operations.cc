// SPDX-License-Identifier: Apache-2.0
// Blocks are found by tenant and model, in every namespace that fits. The same hash may stand for
// different blocks in different namespaces.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <set>
#include <span>
#include <vector>

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
// The price of a step that looks for hashes in namespaces, and of a block that is found: to evict,
// pin or describe it costs far more than to look for it.
constexpr size_t kLooksPerStep = 8192;
constexpr size_t kFoundPrice = 32;

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
void AppendBlock(const BlockRecord& block, size_t name_space, std::string* out) {
  *out += fmt::format(R"({{"hash":"{}","namespace":{},"tiers":{})", block.key.hash.Hex(),
                      name_space, json::serialize(TierNames(block.presence)));
  *out += fmt::format(R"(,"tokens":{},"depth":{},"created_s":{},"last_use_s":{},"uses":{},)"
                      R"("retention":"{}","references":{},"pinned":{}}})",
                      block.tokens, PositionOf(block.depth), block.created_s, block.last_use_s,
                      block.uses, RetentionName(block.retention), block.references,
                      block.pinned_until_ms > 0);
}

// Walks the directory in steps. A block that is cached during the whole walk is listed exactly
// once, whatever is evicted or committed between the steps.
class Listing final : public OperationOnModels {
 public:
  Listing(const OperationBasics& basics, const ModelRegistry* models,
          std::shared_ptr<AdminCall> call, const AdminRequestBody& request, BlockFilter filter)
      : OperationOnModels(basics, models, std::move(call), request),
        filter_(std::move(filter)),
        cursor_(request.cursor),
        left_(request.limit) {}

  void Run() override {
    request_.all ? WhenAdopted([this] { Begin(); }) : Begin();
  }

 private:
  void Begin() { ChoosesAll() ? Step() : OperationOnModels::Run(); }

  void OnChosen(std::vector<NamespaceId> chosen) override {
    filter_.namespaces = std::move(chosen);
    Step();
  }

  void Step() {
    if (Cancelled()) return;
    const BlockWalk step =
        cache_.Walk(cursor_, kRowsPerStep, std::min(left_, kBlocksPerStep), filter_);
    cursor_ = step.next_cursor;
    left_ -= static_cast<uint32_t>(step.blocks.size());
    for (const BlockRecord& block : step.blocks) {
      if (!blocks_.empty()) blocks_ += ',';
      AppendBlock(block, PositionOfNamespace(block.key.namespace_id), &blocks_);
    }
    if (step.finished || left_ == 0) return Finish(step.finished);
    Later(0, [this] { Step(); });
  }

  // Among those that the reply lists, which are its blocks' own: a daemon may know so many that all
  // of them would fit no reply.
  size_t PositionOfNamespace(NamespaceId id) {
    const auto [position, added] = positions_.try_emplace(id, namespaces_.size());
    if (added) namespaces_.push_back(NamespaceJson(models_, cache_.IdentityOf(id)));
    return position->second;
  }

  void Finish(bool finished) {
    Reply(fmt::format(R"({{"schema":"kvtier.ls/1","now_s":{},"cursor":{},"finished":{},)"
                      R"("namespaces":{},"blocks":[{}]}})",
                      clock_.WallMs() / 1000, cursor_, finished, json::serialize(namespaces_),
                      blocks_));
  }

  BlockFilter filter_;
  uint64_t cursor_;
  uint32_t left_;
  std::map<NamespaceId, size_t> positions_;
  json::array namespaces_;
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

// Looks for each hash of the request in each of the chosen namespaces, in steps. It goes on when
// its caller has gone, so that it is done whole or not begun. Until all blocks of an earlier daemon
// are adopted, their namespaces may be unknown.
class OperationOnHashes : public OperationOnModels {
 public:
  using OperationOnModels::OperationOnModels;
  void Run() override {
    WhenAdopted([this] { OperationOnModels::Run(); });
  }

 protected:
  // Hashes that OnHashes is given at once.
  static constexpr size_t kHashesAtOnce = 256;

  // Some of the request's hashes, from the position `first` on, in one namespace. Returns the
  // price, at least one look for each.
  [[nodiscard]] virtual Result<size_t> OnHashes(NamespaceId id, size_t first,
                                                std::span<const BlockHash> hashes) = 0;
  virtual void Finish() = 0;

 private:
  void OnChosen(std::vector<NamespaceId> chosen) override {
    chosen_ = std::move(chosen);
    Step();
  }

  void Step() {
    const std::span<const BlockHash> hashes = request_.hashes;
    for (size_t price = 0; next_ < chosen_.size() && price < kLooksPerStep;) {
      const auto some = hashes.subspan(done_, std::min(hashes.size() - done_, kHashesAtOnce));
      const Result<size_t> looked = OnHashes(chosen_[next_], done_, some);
      if (!looked) return Fail(looked.error());
      price += *looked;
      done_ += some.size();
      if (done_ < hashes.size()) continue;
      done_ = 0;
      ++next_;
    }
    if (next_ == chosen_.size()) return Finish();
    if (ProgressIsDue()) {
      Progress(json::serialize(json::object{{"done", next_}, {"total", chosen_.size()}}));
    }
    Later(0, [this] { Step(); });
  }

  std::vector<NamespaceId> chosen_;
  size_t next_ = 0;  // of the chosen namespaces
  size_t done_ = 0;  // hashes in it
};

class Inspection final : public OperationOnHashes {
 public:
  using OperationOnHashes::OperationOnHashes;
  // One to look at waits for nothing.
  void Run() override { OperationOnModels::Run(); }

 private:
  Result<size_t> OnHashes(NamespaceId id, size_t, std::span<const BlockHash> hashes) override {
    const BlockKey key{id, hashes.front()};
    const std::optional<BlockRecord> block = cache_.Inspect(key);
    const BlockPast past = cache_.PastOf(key);
    if (!block && !past.drop && !past.miss) return 1;
    json::object shown = NamespaceJson(models_, cache_.IdentityOf(id));
    shown["cached"] = block.has_value();
    if (block) DescribeBlock(*block, &shown);
    shown["last_drop"] = DropJson(past.drop);
    shown["last_miss"] = MissJson(past.miss);
    found_.push_back(std::move(shown));
    return kFoundPrice;
  }

  void Finish() override {
    Reply(json::serialize(json::object{{"schema", "kvtier.inspect/1"},
                                       {"hash", request_.hashes.front().Hex()},
                                       {"now_ms", clock_.WallMs()},
                                       {"blocks", std::move(found_)}}));
  }

  json::array found_;
};

class Pinning final : public OperationOnHashes {
 public:
  using OperationOnHashes::OperationOnHashes;

 private:
  Result<size_t> OnHashes(NamespaceId id, size_t first,
                          std::span<const BlockHash> hashes) override {
    KVT_ASSIGN_OR_RETURN(const uint32_t pinned, cache_.Pin(id, hashes, *request_.ttl_ms));
    blocks_ += pinned;
    for (size_t i = 0; pinned > 0 && i < hashes.size(); ++i) {
      if (cache_.Inspect({id, hashes[i]})) found_.insert(first + i);
    }
    return hashes.size() + pinned * kFoundPrice;
  }

  void Finish() override {
    Reply(json::serialize(json::object{{"schema", "kvtier.pin/1"},
                                       {"asked", request_.hashes.size()},
                                       {"blocks", blocks_},
                                       {"absent", request_.hashes.size() - found_.size()},
                                       {"ttl_ms", *request_.ttl_ms}}));
  }

  uint64_t blocks_ = 0;     // in all namespaces
  std::set<size_t> found_;  // positions of the hashes that are in one at least
};

class Eviction final : public OperationOnHashes {
 public:
  Eviction(const OperationBasics& basics, const ModelRegistry* models,
           std::shared_ptr<AdminCall> call, const AdminRequestBody& request)
      : OperationOnHashes(basics, models, std::move(call), request),
        worst_(request.hashes.size(), EvictOutcome::kAbsent) {}

 private:
  Result<size_t> OnHashes(NamespaceId id, size_t first,
                          std::span<const BlockHash> hashes) override {
    size_t price = hashes.size();
    for (size_t i = 0; i < hashes.size(); ++i) {
      const EvictOutcome outcome = cache_.Evict({id, hashes[i]}, request_.tier, objects_);
      if (outcome == EvictOutcome::kAbsent) continue;
      EvictOutcome& worst = worst_[first + i];
      if (worst == EvictOutcome::kAbsent || outcome != EvictOutcome::kEvicted) worst = outcome;
      price += kFoundPrice;
    }
    return price;
  }

  // The reply waits until the evicted blocks cannot come back at a restart: an operator who evicts
  // a block because it must not be served again has to be able to rely on the reply.
  void Finish() override {
    const auto reply = [this](const Status& durable) {
      durable ? Reply(Document()) : Fail(durable.error());
    };
    cache_.WhenEvictionsAreDurable(WhileAlive(reply), objects_);
  }

  [[nodiscard]] std::string Document() const {
    const auto count = [&](EvictOutcome outcome) { return std::ranges::count(worst_, outcome); };
    return json::serialize(json::object{{"schema", "kvtier.evict/1"},
                                        {"asked", request_.hashes.size()},
                                        {"evicted", count(EvictOutcome::kEvicted)},
                                        {"absent", count(EvictOutcome::kAbsent)},
                                        {"referenced", count(EvictOutcome::kReferenced)},
                                        {"pinned", count(EvictOutcome::kPinned)},
                                        {"moving", count(EvictOutcome::kMoving)}});
  }

  // By the hashes' positions. A hash counts as absent only if it is in none of the namespaces, and
  // as evicted only if no block of it stayed.
  std::vector<EvictOutcome> worst_;
  const std::shared_ptr<ObjectEviction> objects_ = std::make_shared<ObjectEviction>();
};

}  // namespace

Result<std::unique_ptr<AdminOperation>> MakeListing(const OperationBasics& basics,
                                                    const ModelRegistry* models,
                                                    const AdminRequestBody& request,
                                                    std::shared_ptr<AdminCall> call) {
  if (request.limit == 0) return BadRequest("\"limit\" must not be 0");
  BlockFilter filter{.tier = request.tier, .cold = request.cold};
  if (!request.prefix.empty()) {
    filter.hashes = HashRange::BeginningWith(request.prefix);
    if (!filter.hashes) return BadRequest("\"prefix\" must be 1 to 64 hexadecimal digits");
  }
  return std::make_unique<Listing>(basics, models, std::move(call), request, std::move(filter));
}

Result<std::unique_ptr<AdminOperation>> MakeInspection(const OperationBasics& basics,
                                                       const ModelRegistry* models,
                                                       const AdminRequestBody& request,
                                                       std::shared_ptr<AdminCall> call) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, 1));
  return std::make_unique<Inspection>(basics, models, std::move(call), request);
}

Result<std::unique_ptr<AdminOperation>> MakePinning(const OperationBasics& basics,
                                                    const ModelRegistry* models,
                                                    const AdminRequestBody& request,
                                                    std::shared_ptr<AdminCall> call) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, SIZE_MAX));
  if (!request.ttl_ms || *request.ttl_ms > kMaxPinTtlMs) {
    return BadRequest(fmt::format("\"ttl_ms\" must be given, 0 to {}", kMaxPinTtlMs));
  }
  return std::make_unique<Pinning>(basics, models, std::move(call), request);
}

Result<std::unique_ptr<AdminOperation>> MakeEviction(const OperationBasics& basics,
                                                     const ModelRegistry* models,
                                                     const AdminRequestBody& request,
                                                     std::shared_ptr<AdminCall> call) {
  KVT_RETURN_IF_ERROR(CheckHashes(request, SIZE_MAX));
  if (request.cold) {
    return BadRequest("\"tier\" must be pool, host or disk: other hosts use the cold store, too");
  }
  return std::make_unique<Eviction>(basics, models, std::move(call), request);
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// The models that the cache has blocks of, and forgetting all blocks of some. Both walk the
// directory in steps, so that clients' requests are served between them.

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <map>
#include <tuple>

#include "daemon/admin/admin_operations.h"
#include "daemon/admin/chosen_models.h"
#include "daemon/session/models.h"
#include "tiers/cache.h"

namespace kvtier {
namespace {

namespace json = boost::json;

// One step takes some milliseconds.
constexpr uint32_t kRowsPerStep = 65536;
constexpr uint32_t kBlocksPerStep = 4096;
constexpr size_t kUsesPerStep = 4096;
// An eviction costs far more than a look.
constexpr uint32_t kEvictionsPerStep = 256;

constexpr std::array<std::pair<Tier, std::string_view>, 3> kTiers = {
    {{Tier::kPool, "pool"}, {Tier::kHost, "host"}, {Tier::kDisk, "disk"}}};

class ModelListing final : public OperationOnModels {
 public:
  using OperationOnModels::OperationOnModels;

 private:
  void OnChosen(std::vector<NamespaceId> chosen) override {
    filter_.namespaces = std::move(chosen);
    Step();
  }

  void Step() {
    if (Cancelled()) return;
    const BlockWalk step = cache_.Walk(cursor_, kRowsPerStep, kBlocksPerStep, filter_);
    cursor_ = step.next_cursor;
    for (const BlockRecord& block : step.blocks) Count(block);
    Later(0, [this, finished = step.finished] { finished ? AddSome() : Step(); });
  }

  struct Use {
    uint64_t blocks = 0;
    std::array<uint64_t, kTiers.size()> in_tiers{};
    int64_t last_use_s = 0;
  };
  struct Row {
    std::string fingerprint;  // of one of its groups
    bool in_use = false;
    uint64_t bytes = 0;
    Use use;
  };
  // Tenant, name, epoch and, of a model without a name, its fingerprint.
  using RowKey = std::tuple<std::string, std::string, std::string, std::string>;

  void Count(const BlockRecord& block) {
    Use& use = uses_[block.key.namespace_id];
    ++use.blocks;
    for (size_t i = 0; i < kTiers.size(); ++i) {
      use.in_tiers[i] += block.presence.in(kTiers[i].first) ? 1 : 0;
    }
    use.last_use_s = std::max<int64_t>(use.last_use_s, block.last_use_s);
  }

  void AddSome() {
    const size_t end = std::min<size_t>(filter_.namespaces->size(), added_ + kUsesPerStep);
    for (; added_ < end; ++added_) {
      const NamespaceId id = (*filter_.namespaces)[added_];
      Add(id, cache_.IdentityOf(id));
    }
    if (added_ == filter_.namespaces->size()) return Reply(Document());
    Later(0, [this] { AddSome(); });
  }

  void Add(NamespaceId id, const NamespaceIdentity& identity) {
    const auto group = models_.FindGroup(identity.tenant, identity.model);
    const bool in_use = group && models_.IsHeld(*group->model, identity.tenant);
    const auto counted = uses_.find(id);
    // One that has no blocks, and that no engine uses, is of no interest any more.
    if (counted == uses_.end() && !in_use) return;
    const Use use = counted == uses_.end() ? Use() : counted->second;
    const std::string fingerprint = identity.model.Hex();
    const RowKey key = group ? RowKey(identity.tenant, group->model->record.name,
                                      group->model->record.revision, "")
                             : RowKey(identity.tenant, "", "", fingerprint);
    if (rows_.size() >= request_.limit && !rows_.contains(key)) return void(++omitted_);
    Row& row = rows_[key];
    if (row.fingerprint.empty()) row.fingerprint = fingerprint;
    row.in_use |= in_use;
    row.bytes += use.blocks * identity.block_bytes;
    row.use.blocks += use.blocks;
    for (size_t i = 0; i < kTiers.size(); ++i) row.use.in_tiers[i] += use.in_tiers[i];
    row.use.last_use_s = std::max(row.use.last_use_s, use.last_use_s);
  }

  [[nodiscard]] std::string Document() const {
    json::array models;
    for (const auto& [key, row] : rows_) {
      json::object tiers;
      for (size_t i = 0; i < kTiers.size(); ++i) tiers[kTiers[i].second] = row.use.in_tiers[i];
      models.push_back({{"tenant", std::get<0>(key)},
                        {"model_name", std::get<1>(key)},
                        {"epoch", std::get<2>(key)},
                        {"model", row.fingerprint},
                        {"in_use", row.in_use},
                        {"blocks", row.use.blocks},
                        {"bytes", row.bytes},
                        {"tiers", std::move(tiers)},
                        {"last_use_s", row.use.last_use_s}});
    }
    return json::serialize(json::object{{"schema", "kvtier.models/1"},
                                        {"now_s", clock_.WallMs() / 1000},
                                        {"omitted", omitted_},
                                        {"models", std::move(models)}});
  }

  BlockFilter filter_;
  uint64_t cursor_ = 0;
  std::map<NamespaceId, Use> uses_;
  size_t added_ = 0;            // of the chosen namespaces
  std::map<RowKey, Row> rows_;  // at most the request's limit, since a reply has a bound
  uint64_t omitted_ = 0;        // groups of other models
};

// The reply waits until the evicted blocks cannot come back at a restart.
class Forgetting final : public OperationOnModels {
 public:
  using OperationOnModels::OperationOnModels;

  void Run() override {
    WhenAdopted([this] { OperationOnModels::Run(); });
  }

 private:
  void OnChosen(std::vector<NamespaceId> chosen) override {
    if (chosen.empty()) {
      return Fail({ErrorCode::kNotFound, "unknown_model",
                   "no blocks of such a model are known; `kvtierctl models` lists them"});
    }
    filter_.namespaces = std::move(chosen);
    Step();
  }

  // It goes on when its caller has gone, so that it is done whole or not begun.
  void Step() {
    const BlockWalk step = cache_.Walk(cursor_, kRowsPerStep, kEvictionsPerStep, filter_);
    cursor_ = step.next_cursor;
    for (const BlockRecord& block : step.blocks) {
      ++outcomes_[static_cast<size_t>(cache_.Evict(block.key, std::nullopt, objects_))];
    }
    if (step.finished) return Finish();
    if (ProgressIsDue()) Progress(json::serialize(json::object{{"done", Evicted()}}));
    Later(0, [this] { Step(); });
  }

  [[nodiscard]] uint64_t Of(EvictOutcome outcome) const {
    return outcomes_[static_cast<size_t>(outcome)];
  }
  [[nodiscard]] uint64_t Evicted() const { return Of(EvictOutcome::kEvicted); }

  void Finish() {
    for (const NamespaceId id : *filter_.namespaces) cache_.Forgive(id);
    const auto reply = [this](const Status& durable) {
      if (!durable) return Fail(durable.error());
      Reply(json::serialize(json::object{{"schema", "kvtier.forget/1"},
                                         {"models", filter_.namespaces->size()},
                                         {"evicted", Evicted()},
                                         {"absent", Of(EvictOutcome::kAbsent)},
                                         {"referenced", Of(EvictOutcome::kReferenced)},
                                         {"pinned", Of(EvictOutcome::kPinned)},
                                         {"moving", Of(EvictOutcome::kMoving)}}));
    };
    cache_.WhenEvictionsAreDurable(WhileAlive(reply), objects_);
  }

  BlockFilter filter_;
  uint64_t cursor_ = 0;
  std::array<uint64_t, 5> outcomes_{};
  const std::shared_ptr<ObjectEviction> objects_ = std::make_shared<ObjectEviction>();
};

}  // namespace

std::unique_ptr<AdminOperation> MakeModelListing(const OperationBasics& basics,
                                                 const ModelRegistry* models,
                                                 const AdminRequestBody& request,
                                                 std::shared_ptr<AdminCall> call) {
  return std::make_unique<ModelListing>(basics, models, std::move(call), request);
}

Result<std::unique_ptr<AdminOperation>> MakeForgetting(const OperationBasics& basics,
                                                       const ModelRegistry* models,
                                                       const AdminRequestBody& request,
                                                       std::shared_ptr<AdminCall> call) {
  if (request.model.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_request", "\"model\" is missing");
  }
  return std::make_unique<Forgetting>(basics, models, std::move(call), request);
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// The models that clients have registered, by tenant.
//
// Event loop only. The registry belongs to the daemon and outlives every session. A model stays
// while a session holds it. Beside these the registry keeps the models that were registered last,
// so that blocks are shown with names after their engine has gone: an engine may register model
// after model, one for each change of its weights, for as long as the daemon runs.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "protocol/model_record.h"
#include "protocol/session_messages.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// Everything that a tenant registered under one name: the ranks, layouts and weights of a model
// share one. Without a name: the models of the tenant that found no label of their own left.
struct ModelLabel {
  std::string tenant;
  std::string name;
  friend bool operator==(const ModelLabel&, const ModelLabel&) = default;
};

// The labels that metrics give models. Clients choose names, and each of these makes series that a
// monitoring system keeps for weeks: so there are only so many of them. Revisions have none, since
// a running engine may get other weights thousands of times. Labels are never removed, so that
// counters under a label never fall.
class ModelLabels {
 public:
  explicit ModelLabels(uint32_t most_per_tenant) : most_per_tenant_(most_per_tenant) {}

  // The position in all() of the label for such a model: a new one, if the tenant has not as many
  // as it may, else the one without a name. REQUIRES: `name` is not empty.
  uint32_t LabelFor(const std::string& tenant, const std::string& name);
  [[nodiscard]] const std::vector<ModelLabel>& all() const { return all_; }

 private:
  const uint32_t most_per_tenant_;
  std::vector<ModelLabel> all_;
  std::unordered_map<std::string, uint32_t> named_;  // labels with a name, by tenant
};

// Models of a tenant that no session holds and that the registry still knows. A record has at most
// some kilobytes.
inline constexpr size_t kMaxIdleModels = 1024;
// To encode and hash a model record takes as long as to look for so many blocks.
inline constexpr size_t kModelHashPrice = 64;

// One registered model, the same from its registration on.
struct RegisteredModel {
  wire::ModelId id;
  ModelRecord record;
  ModelFingerprint fingerprint;
  // The cache knows each group by these, in the record's order.
  std::vector<wire::RegisterModelReply::Group> groups;
  uint32_t label = 0;  // among the registry's labels
};

// Held by each session that uses the model: the registry does not forget it meanwhile.
using ModelHold = std::shared_ptr<const RegisteredModel>;

// Ids are a tenant's own, count from 1 and are never given again.
class ModelRegistry {
 public:
  // A tenant's sessions hold at most `max_held_per_tenant` models at once. Metrics give at most
  // `max_labels_per_tenant` models of a tenant a label of their own.
  ModelRegistry(uint32_t max_held_per_tenant, uint32_t max_labels_per_tenant)
      : max_held_per_tenant_(max_held_per_tenant), labels_(max_labels_per_tenant) {}

  struct Registration {
    ModelHold model;
    bool is_new = false;
  };
  // The same record gives the same model for as long as the registry knows it. Forgets the idle
  // model that was registered longest ago if there are too many. REQUIRES: record.Validate()
  // passed. Errors: kLimitExceeded "too_many_models".
  [[nodiscard]] Result<Registration> Register(const std::string& tenant, const ModelRecord& record);
  // How many the registry knows of the tenant.
  [[nodiscard]] size_t count(const std::string& tenant) const;
  // Errors: kNotFound "unknown_model".
  [[nodiscard]] Result<ModelHold> Find(const std::string& tenant, wire::ModelId id) const;
  // A group of a registered model, valid until the next call of Register or Forget.
  struct Group {
    const RegisteredModel* model = nullptr;
    uint32_t index = 0;  // of the model's groups
  };
  // Nothing if no known model of the tenant has a group of this fingerprint.
  [[nodiscard]] std::optional<Group> FindGroup(const std::string& tenant,
                                               const ModelFingerprint& fingerprint) const;
  // The name of the known model that has a group with this fingerprint, or an empty text.
  [[nodiscard]] std::string NameOf(const std::string& tenant,
                                   const std::string& fingerprint_hex) const;
  // Whether a session holds the model.
  [[nodiscard]] bool IsHeld(const RegisteredModel& model, const std::string& tenant) const;
  // Forgets the model unless a session holds it.
  void Forget(const std::string& tenant, wire::ModelId id);
  // The cache counts the model's blocks under this number, from now on and after the model has been
  // forgotten: counters under a label never fall.
  void NoteNamespace(NamespaceId id, const RegisteredModel& model);
  // The label of the models whose blocks have this number; nothing if none was noted.
  [[nodiscard]] std::optional<uint32_t> LabelOf(NamespaceId id) const;
  [[nodiscard]] const std::vector<ModelLabel>& labels() const { return labels_.all(); }

 private:
  struct TenantModels {
    std::list<ModelHold> models;  // those that were registered last at the end
    std::unordered_map<wire::ModelId, std::list<ModelHold>::iterator> by_id;
    std::map<ModelFingerprint, wire::ModelId> ids;  // no hash: clients choose fingerprints
    // Several models may have a group, as ranks do a replicated one.
    std::map<std::pair<ModelFingerprint, wire::ModelId>, Group> groups;
    uint32_t last_id = 0;
  };

  // The registry's own hold is the only one.
  [[nodiscard]] static bool IsIdle(const ModelHold& model) { return model.use_count() == 1; }
  static void Erase(TenantModels* own, std::list<ModelHold>::iterator model);

  const uint32_t max_held_per_tenant_;
  ModelLabels labels_;
  std::vector<std::optional<uint32_t>> namespace_labels_;  // by NamespaceId
  std::unordered_map<std::string, TenantModels> tenants_;
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "tiers/index/encrypted_index.h"

#include <utility>

namespace kvtier {
namespace {

using Tenants = std::unordered_map<NamespaceId, std::string>;

Tenants TenantsOf(const IndexSnapshot& snapshot) {
  Tenants tenants;
  for (const auto& [id, identity] : snapshot.namespaces) tenants[id] = identity.tenant;
  return tenants;
}

constexpr uint32_t kSecondsPerHour = 3600;

BlockHash* ParentOf(IndexRecord* record) { return record->parent ? &*record->parent : nullptr; }

tl::unexpected<Error> NoTenant() {
  return MakeError(ErrorCode::kWrongState, "index_namespace", "a record of no known namespace");
}

}  // namespace

Status EncryptSnapshot(const SlotCipher& cipher, IndexSnapshot* snapshot) {
  const Tenants tenants = TenantsOf(*snapshot);
  for (IndexRecord& record : snapshot->records) {
    const auto tenant = tenants.find(record.key.namespace_id);
    if (tenant == tenants.end()) return NoTenant();
    KVT_RETURN_IF_ERROR(cipher.EncryptHashes(tenant->second, &record.key.hash, ParentOf(&record)));
  }
  // A rebuild, which is what needs this, knows of none.
  snapshot->tokens.clear();
  return {};
}

bool DecryptSnapshot(const SlotCipher& cipher, IndexSnapshot* snapshot) {
  const Tenants tenants = TenantsOf(*snapshot);
  for (IndexRecord& record : snapshot->records) {
    const auto tenant = tenants.find(record.key.namespace_id);
    if (tenant == tenants.end()) return false;
    if (!cipher.DecryptHashes(tenant->second, &record.key.hash, ParentOf(&record))) return false;
  }
  for (TokensRecord& tokens : snapshot->tokens) {
    const auto tenant = tenants.find(tokens.key.namespace_id);
    if (tenant == tenants.end()) return false;
    if (!cipher.DecryptHashes(tenant->second, &tokens.key.hash, nullptr)) return false;
    // Without its key a block's ids are as good as none, and the cache has them deleted.
    tokens.ids = cipher.DecryptIds(tenant->second, tokens.key.hash, tokens.ids);
  }
  return true;
}

EncryptedIndex::EncryptedIndex(std::unique_ptr<Index> index,
                               std::shared_ptr<const SlotCipher> cipher,
                               const IndexSnapshot& snapshot, EventQueue* loop)
    : index_(std::move(index)),
      cipher_(std::move(cipher)),
      loop_(loop),
      tenants_(TenantsOf(snapshot)) {}

void EncryptedIndex::Apply(IndexBatch batch, std::function<void(Status)> done) {
  Status encrypted = Encrypt(&batch);
  if (encrypted) {
    // No record may outlive the key without which its block cannot be read. Batches that change
    // the same record keep their order, since the caller waits for one before it makes the next.
    const auto stored = std::make_shared<IndexBatch>(std::move(batch));
    cipher_->keys().WhenStored(
        gate_.WhileOpen([this, stored, done = std::move(done)](const Status& status) {
          if (!status) return done(status);
          index_->Apply(std::move(*stored), done);
        }));
    return;
  }
  loop_->Post([status = std::move(encrypted), done = std::move(done)] { done(status); });
}

Status EncryptedIndex::Encrypt(IndexBatch* batch) {
  for (const auto& [id, identity] : batch->namespaces) tenants_[id] = identity.tenant;
  for (IndexRecord& record : batch->puts) {
    const auto tenant = tenants_.find(record.key.namespace_id);
    if (tenant == tenants_.end()) return NoTenant();
    KVT_RETURN_IF_ERROR(
        cipher_->EncryptHashes(tenant->second, &record.key.hash, ParentOf(&record)));
  }
  for (TokensRecord& tokens : batch->token_puts) {
    const auto tenant = tenants_.find(tokens.key.namespace_id);
    if (tenant == tenants_.end()) return NoTenant();
    KVT_ASSIGN_OR_RETURN(tokens.ids,
                         cipher_->EncryptIds(tenant->second, tokens.created_s / kSecondsPerHour,
                                             tokens.key.hash, tokens.ids));
    KVT_RETURN_IF_ERROR(cipher_->EncryptHashes(tenant->second, &tokens.key.hash, nullptr));
  }
  for (std::vector<BlockKey>* const deletes : {&batch->deletes, &batch->token_deletes}) {
    // A namespace that was never written has nothing to delete.
    std::erase_if(*deletes,
                  [&](const BlockKey& key) { return !tenants_.contains(key.namespace_id); });
    for (BlockKey& key : *deletes) {
      KVT_RETURN_IF_ERROR(
          cipher_->EncryptHashes(tenants_.at(key.namespace_id), &key.hash, nullptr));
    }
  }
  return {};
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// An index whose hashes, and token ids, are encrypted on their way to another index: what lies on
// disk does not tell which prefixes are cached. Everything else of a record is as it was: places,
// times and lengths.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/executor.h"
#include "base/gate.h"
#include "base/result.h"
#include "tiers/index/index.h"
#include "tiers/storage/slot_cipher.h"

namespace kvtier {

// Makes the hashes of a snapshot what they are in the index. Errors: SlotCipher::EncryptHashes's.
[[nodiscard]] Status EncryptSnapshot(const SlotCipher& cipher, IndexSnapshot* snapshot);
// And back. False if a key is missing or a record is of no tenant that is known: the snapshot is
// then of no use.
[[nodiscard]] bool DecryptSnapshot(const SlotCipher& cipher, IndexSnapshot* snapshot);

// Event loop only.
class EncryptedIndex final : public Index {
 public:
  // `snapshot` names the tenants of the index's records. `loop` is borrowed and outlives this.
  EncryptedIndex(std::unique_ptr<Index> index, std::shared_ptr<const SlotCipher> cipher,
                 const IndexSnapshot& snapshot, EventQueue* loop);

  // The keys of new records are stored first, if they are to be. Errors besides the index's:
  // SlotCipher::EncryptHashes's and KeyRing::WhenStored's.
  void Apply(IndexBatch batch, std::function<void(Status)> done) override;

 private:
  [[nodiscard]] Status Encrypt(IndexBatch* batch);

  const std::unique_ptr<Index> index_;
  const std::shared_ptr<const SlotCipher> cipher_;
  EventQueue* const loop_;
  std::unordered_map<NamespaceId, std::string> tenants_;
  Gate gate_;
};

}  // namespace kvtier

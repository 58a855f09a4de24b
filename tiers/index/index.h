// SPDX-License-Identifier: Apache-2.0
// The persistent index: which block lies where on disk. A cache of the headers, never more trusted
// than they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tiers/policy/write_budget.h"
#include "tiers/types/block_key.h"

namespace kvtier {

// The record of one block on disk. Times are Unix time in seconds.
struct IndexRecord {
  BlockKey key;
  DiskLocation location;
  uint32_t generation = 0;  // the slot's write counter, equal to the header's
  uint32_t depth = 0;       // blocks before this one in its sequence
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint16_t tokens = 0;
  RetentionClass retention = RetentionClass::kExtended;
  // The payload is known to be whole: it was synced before the record was made, or has been read
  // back since. False for what a rebuild found by its header alone.
  bool verified = true;
  // The block before it in its sequence; nothing if that is not known, or there is none.
  std::optional<BlockHash> parent = {};
  uint32_t pinned_until_s = 0;  // 0: not pinned, or so briefly that a restart may forget it
};

// Which tokens a block holds that has a record.
struct TokensRecord {
  BlockKey key;
  uint32_t created_s = 0;  // as IndexRecord's; not stored
  // Their ids, four bytes each; in an encrypted index what only its keys can read.
  std::vector<std::byte> ids;
};

// An erasure of a tenant's blocks that has begun: a start that finds it finishes it.
struct ErasureRecord {
  uint32_t number = 0;  // tells it from others
  std::string tenant;
  uint32_t end_hour = 0;  // of the blocks that were made in earlier hours, which count from 1970
  uint32_t begun_s = 0;   // blocks that were made later stay
  friend bool operator==(const ErasureRecord&, const ErasureRecord&) = default;
};

// Applied atomically: the deletes first, then the puts.
struct IndexBatch {
  std::vector<std::pair<NamespaceId, NamespaceIdentity>> namespaces;  // new ones
  std::vector<IndexRecord> puts;
  std::vector<BlockKey> deletes;
  std::optional<WriteBudgetState> budget;  // if given, remembered for the next start
  std::vector<ErasureRecord> erasures;     // that begin
  std::vector<uint32_t> ended_erasures;    // their numbers
  std::vector<TokensRecord> token_puts;
  std::vector<BlockKey> token_deletes;
  std::vector<NamespaceId> distrusted;  // from now on
  std::vector<NamespaceId> trusted;     // again
  // The bytes of deleted ids are to be gone from the index's files, too, when it is durable.
  bool purge_tokens = false;
};

// Everything the disk holds, as read at start-up from the index or from the headers.
struct IndexSnapshot {
  std::vector<std::pair<NamespaceId, NamespaceIdentity>> namespaces;
  std::vector<IndexRecord> records;
  WriteBudgetState budget;              // nothing spent when the headers had to be read
  std::vector<ErasureRecord> erasures;  // that have not ended
  std::vector<TokensRecord> tokens;     // none when the headers had to be read
  std::vector<NamespaceId> distrusted;  // likewise
};

class Index {
 public:
  virtual ~Index() = default;
  // Never blocks; `done` is called on the event loop once the batch is durable (or with kIoError,
  // after which the batch may or may not have been applied). Batches are applied in call order.
  virtual void Apply(IndexBatch batch, std::function<void(Status)> done) = 0;
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// Reads a whole index, as a start does.
#pragma once

#include <cstdint>

#include "tiers/index/index_codec.h"
#include "tiers/index/rocksdb_index.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace kvtier {

// Blocks. The contents, if the index is of the files of `start`, and neither older than their mark
// nor newer than they are; else why not.
[[nodiscard]] IndexContents ReadIndex(rocksdb::DB* db, const IndexMeta& start, uint64_t mark);

}  // namespace kvtier

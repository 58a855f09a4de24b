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

// Blocks. The contents, if the index is of the files of `start`, neither older than their mark nor
// newer than they are, and knows all that is on the drives of `place`; else why not.
[[nodiscard]] IndexContents ReadIndex(rocksdb::DB* db, const IndexPlace& place,
                                      const IndexMeta& start);

}  // namespace kvtier

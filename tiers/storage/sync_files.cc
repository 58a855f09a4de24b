// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/sync_files.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace kvtier {

void SyncFiles(const std::vector<BlockFile*>& files, std::function<void(const Status&)> done) {
  struct Syncs {
    size_t left = 0;
    Status status;
    std::function<void(const Status&)> done;
  };
  const auto syncs = std::make_shared<Syncs>();
  syncs->left = files.size();
  syncs->done = std::move(done);
  for (BlockFile* file : files) {
    file->Sync([syncs](const Status& status) {
      if (!status && syncs->status) syncs->status = status;
      if (--syncs->left == 0) syncs->done(syncs->status);
    });
  }
}

}  // namespace kvtier

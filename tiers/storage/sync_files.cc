// SPDX-License-Identifier: Apache-2.0
#include "tiers/storage/sync_files.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace kvtier {

void SyncFiles(const std::vector<BlockFile*>& files,
               std::function<void(const std::vector<Status>&)> done) {
  struct Syncs {
    size_t left = 0;
    std::vector<Status> said;
    std::function<void(const std::vector<Status>&)> done;
  };
  const auto syncs = std::make_shared<Syncs>();
  syncs->left = files.size();
  syncs->said.resize(files.size());
  syncs->done = std::move(done);
  for (size_t i = 0; i < files.size(); ++i) {
    files[i]->Sync([syncs, i](const Status& status) {
      syncs->said[i] = status;
      if (--syncs->left == 0) syncs->done(syncs->said);
    });
  }
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// The daemon's look at the table beside an engine's kept memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/net/sender_threads.h"
#include "daemon/session/kept_memories.h"
#include "tiers/types/published_blocks.h"

namespace kvtier {

// Every byte of the table is the engine's, which may change or cut it meanwhile, and hold up a
// reader. So each look is a read of the file on a thread of the tenant: a mapping could end the
// daemon. The table can agree with a store or not, and is used for nothing else.
class KeptTableReader final : public PublishedBlocks {
 public:
  // `group`: of the region's blocks. The answers come by `mail`.
  KeptTableReader(std::shared_ptr<const KeptMemories::Descriptors> kept, uint32_t group,
                  std::string tenant, SenderThreads threads, LoopMail mail)
      : kept_(std::move(kept)),
        group_(group),
        lane_(SenderThreads::Use::kReadTable, std::move(tenant)),
        threads_(std::move(threads)),
        mail_(std::move(mail)) {}

  void Look(std::vector<Asked> blocks, Answer answer) const override;

 private:
  const std::shared_ptr<const KeptMemories::Descriptors> kept_;
  const uint32_t group_;
  const SenderThreads::Lane lane_;
  const SenderThreads threads_;
  const LoopMail mail_;
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// The daemon's look at the table beside an engine's kept memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "daemon/net/sender_threads.h"
#include "tiers/types/published_blocks.h"

namespace kvtier {

// Every byte of the table is the engine's, which may change or cut it meanwhile, and hold up a
// reader. So each look is a read of the file on a thread of the tenant: a mapping could end the
// daemon. The table can agree with a store or not, and is used for nothing else.
class KeptTableReader final : public PublishedBlocks {
 public:
  // `group`: of the region's blocks. `reader`: what reads of one name wait for each other. The
  // answers come by `mail`. The table is closed by `close`, which may be called when all else of
  // the daemon has gone.
  KeptTableReader(UniqueFd table, std::function<void(UniqueFd)> close, uint32_t group,
                  std::string reader, SenderThreads threads, LoopMail mail)
      : table_(std::make_shared<const Table>(std::move(table), std::move(close))),
        group_(group),
        lane_(SenderThreads::Use::kReadTable, std::move(reader)),
        threads_(std::move(threads)),
        mail_(std::move(mail)) {}

  void Look(std::vector<Asked> blocks, Answer answer) const override;

 private:
  struct Table {
    Table(UniqueFd file, std::function<void(UniqueFd)> close_call)
        : fd(std::move(file)), close(std::move(close_call)) {}
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;
    ~Table() { close(std::move(fd)); }

    UniqueFd fd;
    const std::function<void(UniqueFd)> close;
  };

  const std::shared_ptr<const Table> table_;
  const uint32_t group_;
  const SenderThreads::Lane lane_;
  const SenderThreads threads_;
  const LoopMail mail_;
};

}  // namespace kvtier

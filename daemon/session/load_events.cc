// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/load_events.h"

#include "protocol/block_messages.h"

namespace kvtier {

void LoadEvents::Announce(LoadId load) {
  const auto withheld = withheld_.extract(load);
  if (!withheld.empty() && withheld.mapped()) Report(*withheld.mapped());
}

// If the load has ended already, no further report will come, and an entry for it would stay for
// ever.
void LoadEvents::Drop(LoadId load) {
  const auto withheld = withheld_.extract(load);
  const bool ended = !withheld.empty() && withheld.mapped() && withheld.mapped()->finished;
  if (!ended) dropped_.insert(load);
}

void LoadEvents::Report(const LoadProgress& progress) {
  if (dropped_.contains(progress.load)) {
    if (progress.finished) dropped_.erase(progress.load);
    return;
  }
  if (const auto withheld = withheld_.find(progress.load); withheld != withheld_.end()) {
    withheld->second = progress;
    return;
  }
  // The first report of a load and its end are never delayed by the pace: the first lets the engine
  // begin, the end lets it go on.
  const bool may_wait = pace_.running() && announced_.contains(progress.load) && !progress.finished;
  if (connection_->congested()) {
    pending_[progress.load] = progress;
    connection_->OnceUncongested([this] { SendPending(); });
  } else if (may_wait) {
    pending_[progress.load] = progress;
  } else {
    pending_.erase(progress.load);
    Send(progress);
  }
}

void LoadEvents::Send(const LoadProgress& progress) {
  if (progress.finished) {
    announced_.erase(progress.load);
  } else {
    announced_.insert(progress.load);
  }
  connection_->Send(0, wire::LoadProgress{progress});
  if (!pace_.running()) pace_.Start(kLoadEventIntervalMs, [this] { SendPending(); });
}

void LoadEvents::SendPending() {
  while (!pending_.empty()) {
    if (connection_->congested()) {
      return connection_->OnceUncongested([this] { SendPending(); });
    }
    Send(pending_.extract(pending_.begin()).mapped());
  }
}

}  // namespace kvtier

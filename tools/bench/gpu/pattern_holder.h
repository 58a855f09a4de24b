// SPDX-License-Identifier: Apache-2.0
// A client that holds blocks of known bytes while others come and go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tools/replay/replay_client.h"

namespace kvtier {

// One thread. Holds its blocks until it goes.
class PatternHolder {
 public:
  // Fills some blocks of the players' pool and commits them. Errors: those of the client.
  [[nodiscard]] static Result<PatternHolder> Open(const std::string& socket);

  [[nodiscard]] uint64_t blocks() const { return held_.size(); }
  // How many of its blocks have other bytes than were written.
  [[nodiscard]] Result<uint64_t> CountWrong();

 private:
  explicit PatternHolder(ReplayClient client) : client_(std::move(client)) {}

  ReplayClient client_;
  kvt::BlockSpan held_;  // after the client: released before it
  std::vector<PayloadChecksum> written_;
};

}  // namespace kvtier

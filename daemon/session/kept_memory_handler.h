// SPDX-License-Identifier: Apache-2.0
// One session's requests about memory that outlives its client: KEEP_MEMORY, TAKE_MEMORY and
// RELEASE_MEMORY.
#pragma once

#include "base/result.h"
#include "daemon/net/descriptor_closer.h"
#include "daemon/session/kept_memories.h"
#include "daemon/session/replies.h"
#include "daemon/session/session_client.h"
#include "protocol/kept_memory_messages.h"

namespace kvtier {

// Event loop only. The table of kept memories is the daemon's, since it outlives every session;
// BlockHandler says how requests are answered.
class KeptMemoryHandler {
 public:
  // Everything is borrowed and outlives the handler.
  KeptMemoryHandler(const SessionClient* client, Replies* replies, KeptMemories* memories,
                    DescriptorCloser* closer)
      : client_(*client), replies_(*replies), memories_(*memories), closer_(*closer) {}

  Status OnKeepMemory(const Call& call, const wire::KeepMemory& request);
  Status OnTakeMemory(const Call& call, const wire::TakeMemory& request);
  Status OnReleaseMemory(const Call& call, const wire::ReleaseMemory& request);

 private:
  [[nodiscard]] KeptMemoryClient Asking() const {
    return {client_.session, client_.process, client_.tenant};
  }

  const SessionClient& client_;
  Replies& replies_;
  KeptMemories& memories_;
  DescriptorCloser& closer_;
};

}  // namespace kvtier

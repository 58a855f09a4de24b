// SPDX-License-Identifier: Apache-2.0
// A client that says anything at any time: what its process once heard of it keeps for ever and
// names again, in time or not, its own or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/posix.h"
#include "protocol/frame.h"
#include "protocol/messages.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/hostile_world.h"

namespace kvtier {

// Sequences that clients work on; those of equal number share their prefix.
inline constexpr uint32_t kHostileStreams = 3;
inline constexpr uint32_t kHostileDepth = 24;
[[nodiscard]] BlockHash HostileHash(uint32_t stream, uint32_t depth);

class HostileClient {
 public:
  // The daemon's answers about one pool or region.
  struct Pool {
    PoolId id;
    uint32_t blocks = 0;
  };

  // Connects and says hello, registers every model, attaches a pool of one of them.
  HostileClient(HostileWorld* world, const HostileProcess& process, FuzzInput* input);

  // One request each, as the input says. Another client's blocks may be named, if there is one.
  void Acquire();
  void Commit(const HostileClient* other);
  // Its last new blocks, one after the other, as a good client would.
  void CommitInOrder();
  void Release(const HostileClient* other);
  // Releases a stretch of the blocks that it knows, one of them several times.
  void ReleaseStretch();
  void Prefetch();
  // A pin, a hint or token ids.
  void Tell();
  void Ask();
  void Attach();
  // A few requests about regions: mostly of memory that fits the model, and blocks that it has.
  void UseRegions();
  void OpenRegion();
  // Mostly with transfers under way.
  void CloseRegion();
  void Store();
  void Load();
  // A frame of any type and content.
  void SendRaw();
  // One bit of the next request is flipped on its way.
  void CorruptNext() { corrupt_next_ = true; }

  // Takes the frames that the daemon has sent; false once it has closed the connection.
  bool Receive();

  [[nodiscard]] const std::vector<BlockHandle>& blocks() const { return blocks_; }

 private:
  template <typename Message>
  void Send(const Message& message) {
    std::vector<std::byte> frame;
    wire::Encode(message, ++last_request_, &frame);
    SendBytes(std::move(frame));
  }
  void SendBytes(std::vector<std::byte> frame, int descriptor = -1);
  void OnFrame(const wire::Frame& frame);
  void OnAcquired(const wire::AcquireReply& reply);
  [[nodiscard]] PoolId PickPool();
  [[nodiscard]] Pool PickRegion();
  void Pin();
  void Hint();
  void Tokens();
  void UseKeptMemory();
  [[nodiscard]] std::vector<BlockHash> PickHashes();
  [[nodiscard]] BlockHandle PickBlock(const HostileClient* other);
  [[nodiscard]] std::optional<PayloadChecksum> PickChecksum();

  HostileWorld& world_;
  FuzzInput& input_;
  UniqueFd socket_;
  wire::FrameDecoder decoder_;
  uint64_t last_request_ = 0;
  bool corrupt_next_ = false;
  bool loads_in_layers_ = false;
  std::vector<Pool> pools_;
  std::vector<Pool> regions_;            // that were ever opened
  std::map<uint64_t, uint32_t> asked_;   // blocks of a region, by the request that opens it
  std::vector<BlockHandle> blocks_;      // all that were ever given, the last at the end
  std::vector<BlockHandle> new_blocks_;  // of the last acquire
};

}  // namespace kvtier

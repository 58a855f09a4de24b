// SPDX-License-Identifier: Apache-2.0
// The traces of requests as they happen: events for the tracer, and the counters of requests and
// refusals.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "protocol/block_messages.h"
#include "tiers/types/tracer.h"

namespace kvtier {

// Event loop only. One object per session. Recording never fails and never allocates, so that it
// may stay on in production.
class RequestTrace {
 public:
  // `tracer` is borrowed; null: nothing is recorded.
  RequestTrace(Tracer* tracer, SessionId session) : tracer_(tracer), session_(session) {}

  void SessionBegin();
  void SessionEnd();

  // The things that a request names.
  struct Asked {
    uint32_t blocks = 0;
    uint32_t new_blocks = 0;
    uint64_t hash_prefix = 0;  // of its last block
  };
  template <typename Message>
  [[nodiscard]] static Asked AskedBy(const Message& message) {
    if constexpr (requires { message.parts; }) {
      Asked asked;
      for (const auto& part : message.parts) {
        const Asked of_part = AskedBy(part);
        asked.blocks += of_part.blocks;
        asked.new_blocks += of_part.new_blocks;
        if (asked.hash_prefix == 0) asked.hash_prefix = of_part.hash_prefix;
      }
      return asked;
    } else if constexpr (requires { message.hashes; }) {
      Asked asked = OfHashes(message.hashes);
      if constexpr (requires { message.new_blocks; }) asked.new_blocks = message.new_blocks;
      return asked;
    } else if constexpr (requires { message.items; }) {
      if (message.items.empty()) return {};
      return {static_cast<uint32_t>(message.items.size()), 0, message.items.back().hash.Prefix64()};
    } else if constexpr (requires { message.claims.size(); }) {
      return {static_cast<uint32_t>(message.claims.size())};
    } else if constexpr (requires { message.blocks.size(); }) {
      return {static_cast<uint32_t>(message.blocks.size())};
    } else {
      return {};
    }
  }

  void Begin(wire::MessageType message, uint64_t request, const Asked& asked);
  // Ends the span of any request but an acquire that is served.
  void End(wire::MessageType message, uint64_t request, bool failed);
  void EndAcquire(uint64_t request, const wire::AcquireReply& reply);

 private:
  [[nodiscard]] static Asked OfHashes(std::span<const BlockHash> hashes) {
    if (hashes.empty()) return {};
    return {static_cast<uint32_t>(hashes.size()), 0, hashes.back().Prefix64()};
  }
  void Record(const TraceEvent& event) {
    if (tracer_ != nullptr) tracer_->Record(event);
  }

  Tracer* const tracer_;
  const SessionId session_;
};

// Event loop only. They count since the start of the process and never go down.
struct ServerCounters {
  uint64_t connections = 0;
  uint64_t sessions = 0;  // those that were greeted
  uint64_t requests = 0;
  // By Error::reason: a finite list, since reasons are constants of the program.
  std::map<std::string, uint64_t> refusals;
  // The same by Error::code less 1: all of them from the start, for the metrics.
  std::array<uint64_t, kErrorCodeCount> refusals_by_code{};

  void CountRefusal(const Error& error) {
    ++refusals[error.reason];
    ++refusals_by_code.at(static_cast<size_t>(error.code) - 1);
  }
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// Messages that open a connection, register models and attach pools, that ask how the daemon is,
// and those of the admin socket; messages.h has the rules common to all.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/model_record.h"

namespace kvtier::wire {

// A model as one connection calls it.
using ModelId = Strong<struct ModelIdTag, uint32_t>;

// The first message of a connection; its form is the same in all versions of the protocol. Decode
// checks the magic: kInvalidArgument "bad_magic".
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  // The version the client speaks.
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  // For logs and `kvtierctl status` only; grants nothing.
  std::string client_name;
};

// The minor version that both sides speak: the lower of the two. Errors: kUnsupported
// "version_mismatch" if the major versions differ, naming both.
[[nodiscard]] Result<uint16_t> NegotiateMinor(uint16_t peer_major, uint16_t peer_minor);

// The descriptor of the session's counter page travels with this frame's first byte (SCM_RIGHTS);
// see socket_io.h.
struct HelloReply {
  static constexpr MessageType kType = MessageType::kHelloReply;
  // The version that both sides speak from here on.
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  SessionId session;
  // Differs between any two starts of the daemon: after a reconnect, a changed one means that pool
  // and handles are gone.
  uint64_t daemon_generation = 0;
  // The limits that the daemon accepts of this session, at most the numbers of limits.h.
  uint32_t max_frame_bytes = kMaxFrameBytes;
  uint32_t max_hashes = kMaxHashesPerCall;
  uint32_t max_blocks = kMaxBlocksPerCall;
  uint32_t max_references = 0;
  // Which tenant's cache this is, as the daemon derived it from the peer's credentials.
  std::string tenant;
  // With it the client can resume this session in the daemon's next life (Resume). Zeros: it
  // cannot, since the daemon's pools end with it.
  Digest128 secret;
};

// Decode's errors include those of ModelRecord::Decode.
struct RegisterModel {
  static constexpr MessageType kType = MessageType::kRegisterModel;
  ModelRecord record;
};

struct RegisterModelReply {
  static constexpr MessageType kType = MessageType::kRegisterModelReply;
  struct Group {
    ModelFingerprint fingerprint;  // ModelRecord::GroupFingerprint
    uint64_t block_bytes = 0;
    friend bool operator==(const Group&, const Group&) = default;
  };
  ModelId model;
  std::vector<Group> groups;  // as the record's
};

// Which devices have pools.
struct Devices {
  static constexpr MessageType kType = MessageType::kDevices;
};

enum class DeviceKind : uint8_t { kHost = 0, kCuda = 1 };

struct DevicesReply {
  static constexpr MessageType kType = MessageType::kDevicesReply;
  struct Device {
    DeviceKind kind = DeviceKind::kHost;
    // Names a GPU to every process, however it numbers them; zeros for host memory.
    std::array<uint8_t, 16> uuid{};
    uint64_t pool_bytes = 0;  // at most, for all its pools
    std::string name;         // for people
  };
  // At least one; the position is what Attach calls it.
  std::vector<Device> devices;
};

struct Attach {
  static constexpr MessageType kType = MessageType::kAttach;
  ModelId model;
  uint32_t group = 0;   // of the model's groups
  uint32_t device = 0;  // its position in DevicesReply
  // Size if the pool is created by this call; 0 leaves it to the daemon.
  uint64_t pool_bytes = 0;
};

// The pool's descriptor travels with this frame's first byte, as HelloReply's does.
struct AttachReply {
  static constexpr MessageType kType = MessageType::kAttachReply;
  PoolId pool;
  // Differs between any two pools ever created on this host.
  uint64_t generation = 0;
  uint64_t pool_bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t blocks = 0;
  DeviceKind device_kind = DeviceKind::kHost;
};

// Takes one Attach back, and with the last one all that the session holds in the pool. Nothing of
// the client's process uses the pool's memory any more. Answered only if it is refused.
struct Detach {
  static constexpr MessageType kType = MessageType::kDetach;
  PoolId pool;
};

struct Stats {
  static constexpr MessageType kType = MessageType::kStats;
};

struct StatsReply {
  static constexpr MessageType kType = MessageType::kStatsReply;
  // Counted over all acquires since the daemon started: asked = pool + host + disk + miss, and the
  // declined blocks.
  uint64_t blocks_asked = 0;
  uint64_t blocks_pool = 0;
  uint64_t blocks_host = 0;
  uint64_t blocks_disk = 0;
  uint64_t blocks_miss = 0;
  // Now, over the pools this session has attached.
  uint64_t pool_blocks_total = 0;
  uint64_t pool_blocks_free = 0;
  uint64_t pool_blocks_private = 0;
  uint64_t pool_blocks_cached = 0;
  uint64_t session_references = 0;
};

struct Ping {
  static constexpr MessageType kType = MessageType::kPing;
};

struct Pong {
  static constexpr MessageType kType = MessageType::kPong;
};

// Answers the request whose id it carries; with request id 0 it concerns the connection, which the
// sender then closes.
struct ErrorReply {
  static constexpr MessageType kType = MessageType::kError;
  Error error;
};

// Messages of the admin socket are JSON texts. Decode checks the length only: whether the text is
// JSON is for the JSON parser.
struct AdminRequest {
  static constexpr MessageType kType = MessageType::kAdminRequest;
  std::string json;  // at most kMaxAdminRequestTextBytes
};

// Any number of them may come before the reply.
struct AdminProgress {
  static constexpr MessageType kType = MessageType::kAdminProgress;
  std::string json;  // at most kMaxAdminReplyTextBytes
};

struct AdminReply {
  static constexpr MessageType kType = MessageType::kAdminReply;
  std::string json;  // at most kMaxAdminReplyTextBytes
};

}  // namespace kvtier::wire

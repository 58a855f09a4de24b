// SPDX-License-Identifier: Apache-2.0
// Messages that open a connection, register models and attach pools; see messages.h for the rules
// common to all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/strong.h"
#include "protocol/limits.h"
#include "protocol/message_type.h"
#include "protocol/model_record.h"

namespace kvtier::wire {

// A model as one connection calls it.
using ModelId = Strong<struct ModelIdTag, uint32_t>;

// Optional features, as bits of HELLO and HELLO_REPLY. Loads are counted in memory that the session
// shares with the daemon; ACQUIRE_COUNTED may be used.
inline constexpr uint64_t kFeatureLoadCounters = 1 << 0;
inline constexpr uint64_t kKnownFeatures = kFeatureLoadCounters;

// The first message of a connection. `magic` is checked by Decode: kInvalidArgument "bad_magic".
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  // The range of versions the client speaks; version_min <= version_max is checked by Decode.
  uint16_t version_min = kProtocolVersionMin;
  uint16_t version_max = kProtocolVersionMax;
  // Optional features the client would like; bits that the daemon does not know are ignored.
  uint64_t features = 0;
  // For logs and `kvtierctl status` only; grants nothing.
  std::string client_name;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Hello> Decode(std::span<const std::byte> payload);
};

// The highest version that both a client's range and this build speak. Errors: kUnsupported
// "version_mismatch" naming both ranges.
[[nodiscard]] Result<uint16_t> NegotiateVersion(const Hello& hello);

// With kFeatureLoadCounters granted, the descriptor of the session's counter page travels with this
// frame's first byte (SCM_RIGHTS); see socket_io.h.
struct HelloReply {
  static constexpr MessageType kType = MessageType::kHelloReply;
  uint16_t version = kProtocolVersionMax;
  // Those asked for that the daemon grants.
  uint64_t features = 0;
  SessionId session;
  // Differs between any two starts of the daemon: after a reconnect, a changed one means that pool
  // and handles are gone.
  uint64_t daemon_generation = 0;
  // What the daemon accepts of this session, at most the numbers of limits.h.
  uint32_t max_frame_bytes = kMaxFrameBytes;
  uint32_t max_hashes = kMaxHashesPerCall;
  uint32_t max_blocks = kMaxBlocksPerCall;
  uint32_t max_references = 0;
  // Whose cache this is, as the daemon derived it from the peer's credentials.
  std::string tenant;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<HelloReply> Decode(std::span<const std::byte> payload);
};

// Decode's errors include those of ModelRecord::Decode.
struct RegisterModel {
  static constexpr MessageType kType = MessageType::kRegisterModel;
  ModelRecord record;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<RegisterModel> Decode(std::span<const std::byte> payload);
};

struct RegisterModelReply {
  static constexpr MessageType kType = MessageType::kRegisterModelReply;
  ModelId model;
  ModelFingerprint fingerprint;
  uint64_t block_bytes = 0;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<RegisterModelReply> Decode(std::span<const std::byte> payload);
};

// Which devices have pools.
struct Devices {
  static constexpr MessageType kType = MessageType::kDevices;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Devices> Decode(std::span<const std::byte> payload);
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

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<DevicesReply> Decode(std::span<const std::byte> payload);
};

struct Attach {
  static constexpr MessageType kType = MessageType::kAttach;
  ModelId model;
  uint32_t device = 0;  // its position in DevicesReply
  // Size if the pool is created by this call; 0 leaves it to the daemon.
  uint64_t pool_bytes = 0;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Attach> Decode(std::span<const std::byte> payload);
};

// The pool's descriptor travels with this frame's first byte (SCM_RIGHTS); see socket_io.h.
struct AttachReply {
  static constexpr MessageType kType = MessageType::kAttachReply;
  PoolId pool;
  // Differs between any two pools ever created on this host.
  uint64_t generation = 0;
  uint64_t pool_bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t blocks = 0;
  DeviceKind device_kind = DeviceKind::kHost;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<AttachReply> Decode(std::span<const std::byte> payload);
};

struct Stats {
  static constexpr MessageType kType = MessageType::kStats;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Stats> Decode(std::span<const std::byte> payload);
};

struct StatsReply {
  static constexpr MessageType kType = MessageType::kStatsReply;
  // By all acquires since the daemon started: asked = pool + host + disk + miss.
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

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<StatsReply> Decode(std::span<const std::byte> payload);
};

struct Ping {
  static constexpr MessageType kType = MessageType::kPing;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Ping> Decode(std::span<const std::byte> payload);
};

struct Pong {
  static constexpr MessageType kType = MessageType::kPong;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<Pong> Decode(std::span<const std::byte> payload);
};

// Answers the request whose id it carries; with request id 0 it concerns the connection, which the
// sender then closes.
struct ErrorReply {
  static constexpr MessageType kType = MessageType::kError;
  Error error;

  void Encode(uint64_t request_id, std::vector<std::byte>* out) const;
  [[nodiscard]] static Result<ErrorReply> Decode(std::span<const std::byte> payload);
};

}  // namespace kvtier::wire

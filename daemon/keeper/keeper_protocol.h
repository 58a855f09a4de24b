// SPDX-License-Identifier: Apache-2.0
// The messages between a daemon and its keeper: packets of one fixed size on a Unix socket that
// keeps packets apart (SOCK_SEQPACKET), each with at most one descriptor.
//
// The daemon asks and the keeper answers every packet with one of the same kind. Both run on one
// machine from one build, or from two builds beside each other during an upgrade: therefore the
// first four fields and the kinds kHello and kEnd stay as they are in all versions, and a keeper of
// another version can always be asked to end. Nothing here allocates, throws or keeps state, so
// that the keeper stays small.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/posix.h"

namespace kvtier {

inline constexpr uint32_t kKeeperMagic = 0x504b564b;  // "KVKP"
inline constexpr uint32_t kKeeperVersion = 1;
inline constexpr size_t kMaxKeptNameBytes = 31;
// More than a daemon keeps; it bounds what a client can make the keeper hold.
inline constexpr size_t kMaxKeptDescriptors = 128;

enum class KeeperRequest : uint32_t {
  kHello = 1,             // number: keep_for in ms; answered with the keeper's pid
  kEnd = 2,               // closes everything and ends, once it has answered
  kKeep = 3,              // the descriptor under the name, in place of the present one
  kTake = 4,              // answered with a duplicate of the descriptor, which stays kept
  kRelease = 5,           // closes the descriptor of the name
  kReleaseUnclaimed = 6,  // closes all that were neither taken nor kept over this connection
};

enum class KeeperStatus : uint32_t {
  kOk = 0,
  kNotFound = 1,
  kFull = 2,          // kMaxKeptDescriptors are kept
  kBadRequest = 3,    // the connection is closed
  kBusy = 4,          // another daemon is connected; the connection is closed
  kOtherVersion = 5,  // `version` tells the keeper's; only kEnd is understood
};

struct KeeperPacket {
  uint32_t magic = kKeeperMagic;
  uint32_t version = kKeeperVersion;
  KeeperRequest request = KeeperRequest::kHello;
  KeeperStatus status = KeeperStatus::kOk;
  int64_t number = 0;
  char name[kMaxKeptNameBytes + 1] = {};  // ends with a zero

  // REQUIRES: at most kMaxKeptNameBytes.
  void SetName(std::string_view text) { text.copy(name, kMaxKeptNameBytes); }
  // Empty if the name does not end.
  [[nodiscard]] std::string_view Name() const;
};
static_assert(sizeof(KeeperPacket) == 56);

// False: it could not be sent, within the socket's time-out if that has one. `descriptor` may be
// -1, and stays the caller's.
[[nodiscard]] bool SendPacket(int socket, const KeeperPacket& packet, int descriptor);

enum class Received : uint8_t {
  kPacket,   // well-formed, and of this version
  kForeign,  // only the first four fields are filled in
  kBad,      // anything else that came
  kNothing,  // none is there
  kClosed,   // the other end has gone
};
// `*descriptor` gets what came with the packet, close-on-exec. More than one is kBad, and all of
// them are closed.
[[nodiscard]] Received ReceivePacket(int socket, KeeperPacket* packet, UniqueFd* descriptor);

// Whether the process at the other end runs as this process's user or as root.
[[nodiscard]] bool IsTrustedPeer(int socket);

// The keeper's socket and its lock stand in the directory of the daemon's socket.
inline constexpr std::string_view kKeeperSocketName = "keeper.sock";
inline constexpr std::string_view kKeeperLockName = "keeper.lock";

// With which the program ends if a keeper listens there already.
inline constexpr int kKeeperExitAnotherRuns = 3;

// How long a daemon waits for each answer: a keeper that is stopped must not stop the daemon.
inline constexpr int64_t kKeeperPatienceMs = 2000;

// A socket for packets that is bound to the path or, without `listening`, connected to it and with
// a time-out of kKeeperPatienceMs for sending. Invalid if that failed; errno says why.
[[nodiscard]] UniqueFd OpenKeeperSocket(std::string_view path, bool listening);

}  // namespace kvtier

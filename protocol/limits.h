// SPDX-License-Identifier: Apache-2.0
// The protocol's numbers. Both sides refuse what passes them, before allocating for it; the daemon
// may be configured to lower ones and says so in HELLO_REPLY.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::wire {

// "KVT1" as it lies on the wire.
inline constexpr uint32_t kMagic = 0x3154564b;
// Both sides must have the same major version, and speak the lower of their minor versions.
// Additions that a minor version may make: "Versions" in docs/PROTOCOL.md.
inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 0;

// A frame is its 16-byte header and its payload; these bound the two together.
inline constexpr uint32_t kFrameHeaderBytes = 16;
inline constexpr uint32_t kMaxFrameBytes = 1u << 20;  // data socket, both directions
inline constexpr uint32_t kMaxAdminRequestTextBytes = 64u << 10;
inline constexpr uint32_t kMaxAdminReplyTextBytes = 8u << 20;
inline constexpr uint32_t kMaxAdminRequestFrameBytes =
    kFrameHeaderBytes + sizeof(uint32_t) + kMaxAdminRequestTextBytes;
inline constexpr uint32_t kMaxAdminReplyFrameBytes =
    kFrameHeaderBytes + sizeof(uint32_t) + kMaxAdminReplyTextBytes;

// 16,384 blocks of 16 tokens are a context of 262,144 tokens: one call names a whole sequence.
inline constexpr uint32_t kMaxHashesPerCall = 16384;
inline constexpr uint32_t kMaxBlocksPerCall = 16384;
// As many as a block has tokens, since each candidate is one of its lengths.
inline constexpr uint32_t kMaxPartialBlocksPerCall = 1024;
// So that a COMMIT with every optional field still fits a frame.
inline constexpr uint32_t kMaxCommitsPerCall = 8192;
// The limit of one RESUME; a client that holds more sends several.
inline constexpr uint32_t kMaxClaimsPerResume = 4096;
// Likewise of a STORE.
inline constexpr uint32_t kMaxStoresPerCall = 8192;
// Blocks of one TOKENS, and the ids of all of them: few enough to be taken in within one event.
inline constexpr uint32_t kMaxTokenBlocksPerCall = 4096;
inline constexpr uint32_t kMaxTokenIdsPerCall = 131072;

// Blocks of all regions of a session, and the parts of which each is made: more than layers times K
// and V of any model.
inline constexpr uint32_t kMaxRegionBlocks = 1u << 20;
inline constexpr uint32_t kMaxRegionPieces = 4096;
// While so many blocks of a session's transfers are under way, each STORE and LOAD counting as
// kTransferPrice more, the daemon does not read the session's next request: they take memory there
// until they are reported.
inline constexpr uint64_t kTransfersPauseAt = 1u << 16;
inline constexpr uint64_t kTransferPrice = 64;
// Names of kept memory of one tenant: more than any machine has GPUs and engines together.
inline constexpr uint32_t kMaxKeptMemories = 64;
// The limit of one memory, or of its table: sums of them stay far from overflow.
inline constexpr uint64_t kMaxKeptMemoryBytes = uint64_t{1} << 48;

// Sequences of one ATTEND, and the query tokens of all of them.
inline constexpr uint32_t kMaxAttendSequences = 4096;
inline constexpr uint32_t kMaxAttendQueryTokens = 65536;
// The limit of an ATTEND's keys, and of its values: one for each KV head.
inline constexpr uint32_t kMaxAttendScales = 1024;
// How many a session may have at once, and the bytes of one.
inline constexpr uint32_t kMaxWorkspaces = 16;
inline constexpr uint64_t kMaxWorkspaceBytes = uint64_t{1} << 30;

inline constexpr size_t kMaxClientNameBytes = 128;
inline constexpr size_t kMaxTenantBytes = 64;
// Longer ones are cut by the sender.
inline constexpr size_t kMaxReasonBytes = 40;
inline constexpr size_t kMaxContextBytes = 512;

inline constexpr size_t kMaxModelRecordBytes = 16384;

inline constexpr uint32_t kMaxDevices = 16;
inline constexpr size_t kMaxDeviceNameBytes = 64;

}  // namespace kvtier::wire

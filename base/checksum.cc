// SPDX-License-Identifier: Apache-2.0
// xxh3, apart from SHA-256: the client library needs the latter alone, and must not depend on
// libxxhash. CMake therefore makes kvtier_checksum of this source, which libkvtier does not link.
#define XXH_STATIC_LINKING_ONLY  // for a state on the stack
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cstring>

#include "base/digest.h"

namespace kvtier {
namespace {

// The hardware's own prefetcher stops at page boundaries, and what a device has just written is in
// no cache: fetching ahead gives several threads at work a fifth more. Into the second level: the
// first is too small to be filled a page ahead, which costs a tenth.
constexpr size_t kAheadBytes = 4096;
constexpr int kSecondLevel = 2;  // as __builtin_prefetch counts: 3 is the first
constexpr size_t kStepBytes = 1024;
constexpr size_t kCacheLineBytes = 64;

XXH128_hash_t Hash(std::span<const std::byte> payload) {
  if (payload.size() < 16 * kAheadBytes) return XXH3_128bits(payload.data(), payload.size());
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (size_t at = 0; at < payload.size(); at += kStepBytes) {
    const auto step = payload.subspan(at, std::min(kStepBytes, payload.size() - at));
    const size_t end = std::min(at + kAheadBytes + kStepBytes, payload.size());
    for (size_t i = at + kAheadBytes; i < end; i += kCacheLineBytes) {
      __builtin_prefetch(&payload[i], 0, kSecondLevel);
    }
    XXH3_128bits_update(&state, step.data(), step.size());
  }
  return XXH3_128bits_digest(&state);
}

}  // namespace

PayloadChecksum ChecksumPayload(std::span<const std::byte> payload) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, Hash(payload));
  PayloadChecksum checksum;
  static_assert(sizeof(canonical.digest) == sizeof(checksum.bytes));
  std::memcpy(checksum.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return checksum;
}

uint64_t ChecksumHeader(std::span<const std::byte> header) {
  return XXH3_64bits(header.data(), header.size());
}

}  // namespace kvtier

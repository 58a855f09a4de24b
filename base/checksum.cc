#include "base/checksum.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include <cstring>

namespace kvtier {

PayloadChecksum ChecksumPayload(std::span<const std::byte> payload) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(payload.data(), payload.size()));
  PayloadChecksum checksum;
  static_assert(sizeof(canonical.digest) == sizeof(checksum.bytes));
  std::memcpy(checksum.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return checksum;
}

uint64_t ChecksumHeader(std::span<const std::byte> header) {
  return XXH3_64bits(header.data(), header.size());
}

}  // namespace kvtier

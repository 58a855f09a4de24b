// SPDX-License-Identifier: Apache-2.0
#include "gpu/fast_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier {
namespace {

#if defined(__x86_64__)

// Below this, what is copied is likely to be used from the cache.
constexpr size_t kMinStreamBytes = 32 * 1024;
constexpr size_t kVectorBytes = 32;
constexpr size_t kStepBytes = 4 * kVectorBytes;
// How far ahead the source is fetched; the hardware's own prefetcher stops at page boundaries.
constexpr size_t kPrefetchBytes = 1024;

// Returns the bytes copied: all whole steps. REQUIRES: `to` aligned to a vector.
__attribute__((target("avx2"))) size_t StreamSteps(std::byte* to, const std::byte* from,
                                                   size_t bytes) {
  size_t i = 0;
  for (; i + kStepBytes <= bytes; i += kStepBytes) {
    _mm_prefetch(from + i + kPrefetchBytes, _MM_HINT_NTA);
    _mm_prefetch(from + i + kPrefetchBytes + 64, _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* destination = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(destination, a);
    _mm256_stream_si256(destination + 1, b);
    _mm256_stream_si256(destination + 2, c);
    _mm256_stream_si256(destination + 3, d);
  }
  // Streamed stores are ordered with no other until fenced.
  _mm_sfence();
  return i;
}

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t head =
      (kVectorBytes - reinterpret_cast<uintptr_t>(to) % kVectorBytes) % kVectorBytes;
  std::memcpy(to, from, head);
  const size_t copied = head + StreamSteps(to + head, from + head, bytes - head);
  std::memcpy(to + copied, from + copied, bytes - copied);
}

bool CanStream() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

#endif

}  // namespace

void FastCopy(void* destination, const void* source, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kMinStreamBytes && CanStream()) {
    StreamCopy(static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes);
    return;
  }
#endif
  std::memcpy(destination, source, bytes);
}

}  // namespace kvtier

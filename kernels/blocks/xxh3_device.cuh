// SPDX-License-Identifier: Apache-2.0
// The arithmetic of xxh3-128 for inputs above 240 bytes (https://github.com/Cyan4973/xxHash,
// doc/xxhash_spec.md), seed 0 and the default secret, cut so that the sums over a KiB can be formed
// by different threads: within a KiB the eight accumulators are plain sums, and only the scrambling
// between two KiB is a chain.
#pragma once

#include <cstdint>

namespace kvtier::kernels::xxh3 {

constexpr int kLanes = 8;           // 64-bit accumulators
constexpr int kStripeBytes = 64;    // one word for each of them
constexpr int kStripesPerKib = 16;  // between two scrambles
constexpr int kKib = kStripeBytes * kStripesPerKib;
constexpr int kSecretBytes = 192;

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                   kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                   kPrime64_5 = 0x27D4EB2F165667C5;

// The default secret as little-endian words.
__constant__ const uint64_t kSecret[kSecretBytes / 8] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

__device__ __forceinline__ uint64_t SecretAt(int byte) {
  const int word = byte / 8, shift = byte % 8 * 8;
  return shift == 0 ? kSecret[word] : kSecret[word] >> shift | kSecret[word + 1] << (64 - shift);
}

__device__ __forceinline__ uint64_t InitialLane(int lane) {
  constexpr uint64_t kInitial[kLanes] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                         kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  uint64_t value = 0;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) value = lane == i ? kInitial[i] : value;
  return value;
}

// What a word adds to its own lane; its neighbour (lane ^ 1) gets the word itself.
__device__ __forceinline__ uint64_t Product(uint64_t word, uint64_t secret) {
  const uint64_t keyed = word ^ secret;
  return (keyed & 0xffffffff) * (keyed >> 32);
}

__device__ __forceinline__ uint64_t Scramble(uint64_t lane_sum, uint64_t secret) {
  lane_sum ^= lane_sum >> 47;
  return (lane_sum ^ secret) * kPrime32_1;
}

__device__ __forceinline__ uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  return a * b ^ __umul64hi(a, b);
}

__device__ __forceinline__ uint64_t Merge(const uint64_t* lanes, int secret_byte, uint64_t start) {
  uint64_t sum = start;
  for (int i = 0; i < kLanes / 2; ++i) {
    sum += FoldedProduct(lanes[2 * i] ^ SecretAt(secret_byte + 16 * i),
                         lanes[2 * i + 1] ^ SecretAt(secret_byte + 16 * i + 8));
  }
  sum ^= sum >> 37;
  sum *= 0x165667919E3779F9;
  return sum ^ sum >> 32;
}

__device__ __forceinline__ uint64_t LowHalf(const uint64_t* lanes, uint64_t length) {
  return Merge(lanes, 11, length * kPrime64_1);
}

__device__ __forceinline__ uint64_t HighHalf(const uint64_t* lanes, uint64_t length) {
  return Merge(lanes, kSecretBytes - kStripeBytes - 11, ~(length * kPrime64_2));
}

}  // namespace kvtier::kernels::xxh3

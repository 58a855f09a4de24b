// SPDX-License-Identifier: Apache-2.0
// xxh3-128 of blocks, one CTA for each block: eight warps sum the KiB of a 32 KiB chunk in
// parallel, a ninth runs the scrambling chain over the sums of the chunk before.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/refusal.h"
#include "kernels/hopper/launch.cuh"
#include "kvtier/block_ops.h"

namespace kvtier::kernels {

namespace xxh3 {

constexpr int kLanes = 8;           // 64-bit accumulators
constexpr int kStripeBytes = 64;    // one word for each of them
constexpr int kStripesPerKib = 16;  // between two scrambles
constexpr int kKib = kStripeBytes * kStripesPerKib;
constexpr int kSecretBytes = 192;

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                   kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
                   kPrime64_5 = 0x27D4EB2F165667C5;

// The default secret as little-endian words. Not const, and so external: CMakeLists.txt says why.
__constant__ uint64_t kSecret[kSecretBytes / 8] = {
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

// The term that a word adds to its own lane; its neighbour (lane ^ 1) gets the word itself.
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

}  // namespace xxh3

// Named: CMakeLists.txt says why.
inline namespace checksum_blocks {

constexpr int kSumWarps = 8;
constexpr int kThreads = 32 * (kSumWarps + 1);
constexpr int kKibPerWarp = 4;
constexpr int kKibPerChunk = kSumWarps * kKibPerWarp;
constexpr int kMinBlockBytes = 256;  // xxh3 hashes inputs of 240 bytes and less in another way

using Sums = uint64_t[kKibPerChunk][xxh3::kLanes];

__device__ __forceinline__ uint64_t Word(uint32_t low, uint32_t high) {
  return uint64_t{high} << 32 | low;
}

// Lane l of the warp owns words 2 * (l % 4) and the next of stripes l / 4 and l / 4 + 8.
class KibSummer {
 public:
  __device__ explicit KibSummer(int lane) : lane_(lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int word = 8 * half + lane / 4 + 2 * (lane % 4);
      secret_[half][0] = xxh3::kSecret[word];
      secret_[half][1] = xxh3::kSecret[word + 1];
    }
  }

  __device__ void Sum(const uint4 (&held)[2], uint64_t* sums) const {
    uint64_t even = 0, odd = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t first = Word(held[half].x, held[half].y);
      const uint64_t second = Word(held[half].z, held[half].w);
      even += second + xxh3::Product(first, secret_[half][0]);
      odd += first + xxh3::Product(second, secret_[half][1]);
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      even += __shfl_xor_sync(0xffffffff, even, distance);
      odd += __shfl_xor_sync(0xffffffff, odd, distance);
    }
    if (lane_ < 4) {
      sums[2 * lane_] = even;
      sums[2 * lane_ + 1] = odd;
    }
  }

 private:
  int lane_;
  uint64_t secret_[2][2];
};

__device__ void SumChunk(const KibSummer& summer, const char* block, int64_t first_kib,
                         int64_t kibs, int warp, int lane, Sums& sums) {
  uint4 held[kKibPerWarp][2];
#pragma unroll
  for (int i = 0; i < kKibPerWarp; ++i) {
    const int64_t kib = first_kib + warp * kKibPerWarp + i;
    if (kib >= kibs) break;
    const auto* words = reinterpret_cast<const uint4*>(block + kib * xxh3::kKib);
    held[i][0] = __ldcs(words + lane);
    held[i][1] = __ldcs(words + 32 + lane);
  }
#pragma unroll
  for (int i = 0; i < kKibPerWarp; ++i) {
    const int row = warp * kKibPerWarp + i;
    if (first_kib + row < kibs) summer.Sum(held[i], sums[row]);
  }
}

// The stripes behind the last full KiB; the very last one is keyed differently.
__device__ uint64_t AddPartialBlock(uint64_t sum, const char* block, int64_t from, int64_t bytes,
                                    int lane) {
  const auto word = [&](int64_t stripe_at, int index) {
    return reinterpret_cast<const uint64_t*>(block + stripe_at)[index];
  };
  const int64_t last = bytes - xxh3::kStripeBytes;
  int stripe = 0;
  for (int64_t at = from; at < last; at += xxh3::kStripeBytes, ++stripe) {
    sum += word(at, lane ^ 1) + xxh3::Product(word(at, lane), xxh3::kSecret[stripe + lane]);
  }
  const int last_secret = xxh3::kSecretBytes - xxh3::kStripeBytes - 7;
  return sum + word(last, lane ^ 1) +
         xxh3::Product(word(last, lane), xxh3::SecretAt(last_secret + 8 * lane));
}

__device__ void StoreBigEndian(uint8_t* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(value >> (56 - 8 * i));
}

__global__ void __launch_bounds__(kThreads)
    ChecksumBlocksKernel(const __grid_constant__ kvt_block_list list, uint8_t* checksums) {
  __shared__ Sums sums[2];
  __shared__ uint64_t lanes[xxh3::kLanes];
  const int64_t id = list.block_ids != nullptr ? list.block_ids[blockIdx.x] : int64_t{blockIdx.x};
  if (id < 0) return;
  const char* block = static_cast<const char*>(list.base) + id * list.block_stride;
  const int64_t kibs = (list.block_bytes - 1) / xxh3::kKib;  // the last one, full or not, is tail
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool chains = warp == kSumWarps && lane < xxh3::kLanes;
  const KibSummer summer(lane);
  const uint64_t scramble_secret =
      xxh3::kSecret[(xxh3::kSecretBytes - xxh3::kStripeBytes) / 8 + lane % xxh3::kLanes];
  uint64_t sum = xxh3::InitialLane(lane);

  const int64_t chunks = (kibs + kKibPerChunk - 1) / kKibPerChunk;
  for (int64_t chunk = 0; chunk <= chunks; ++chunk) {
    if (warp < kSumWarps && chunk < chunks) {
      SumChunk(summer, block, chunk * kKibPerChunk, kibs, warp, lane, sums[chunk % 2]);
    }
    if (chains && chunk > 0) {
      const int64_t left = kibs - (chunk - 1) * kKibPerChunk;
      for (int i = 0; i < kKibPerChunk && i < left; ++i) {
        sum = xxh3::Scramble(sum + sums[(chunk - 1) % 2][i][lane], scramble_secret);
      }
    }
    __syncthreads();
  }
  if (warp != kSumWarps) return;
  if (chains) lanes[lane] = AddPartialBlock(sum, block, kibs * xxh3::kKib, list.block_bytes, lane);
  __syncwarp();
  uint8_t* out = checksums + int64_t{blockIdx.x} * 16;
  if (lane == 0) StoreBigEndian(out, xxh3::HighHalf(lanes, list.block_bytes));
  if (lane == 1) StoreBigEndian(out + 8, xxh3::LowHalf(lanes, list.block_bytes));
}

}  // namespace checksum_blocks
}  // namespace kvtier::kernels

extern "C" kvt_kernel_status kvt_checksum_blocks(const kvt_block_list* list, uint8_t* checksums,
                                                 void* stream) {
  using namespace kvtier::kernels;
  const auto given = CheckRules({{list != nullptr, "list must be given"}});
  if (given != KVT_KERNEL_OK) return given;
  const int64_t bits = reinterpret_cast<int64_t>(list->base) |
                       reinterpret_cast<int64_t>(checksums) | list->block_stride;
  const auto valid = CheckRules(
      {{list->base != nullptr, "base must be given"},
       {checksums != nullptr, "checksums must be given"},
       {list->blocks >= 0, "blocks must not be negative"},
       {bits % 16 == 0, "base, block_stride and checksums must be multiples of 16"},
       {list->block_bytes >= kMinBlockBytes && list->block_bytes % xxh3::kStripeBytes == 0,
        "block_bytes must be a multiple of 64, from 256 on"}});
  if (valid != KVT_KERNEL_OK) return valid;
  if (list->blocks == 0) return KVT_KERNEL_OK;
  Device device;
  if (const auto status = CheckDevice(&device); status != KVT_KERNEL_OK) return status;
  const cudaError_t error = LaunchKernel(ChecksumBlocksKernel, dim3(list->blocks), kThreads,
                                         static_cast<cudaStream_t>(stream), *list, checksums);
  return error == cudaSuccess ? KVT_KERNEL_OK : KVT_KERNEL_LAUNCH_FAILED;
}

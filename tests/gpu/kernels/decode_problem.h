// SPDX-License-Identifier: Apache-2.0
// A decode step with random contents, on the host and on the GPU, for tests.
//
// The cache has the pool's layout, [block][layer][K, V][token][head][dim], of which one layer is
// used. All memory that the step must not read holds NaN, and block tables point far outside where
// no entry may be read. Rows of queries and of output lie apart by more than they are long.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kvtier/kernels.h"
#include "tests/gpu/kernels/row_order.h"

namespace kvtier::kernels {

// Device memory, freed by the destructor.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <typename T = void>
  [[nodiscard]] T* get() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void Fill(int byte);
  void CopyFrom(const void* host, size_t bytes);
  void CopyTo(void* host, size_t bytes) const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

enum class ScaleKind : uint8_t { kNone, kPerTensor, kPerHead, kPerToken };

struct DecodeSetup {
  std::vector<int32_t> lengths;
  kvt_dtype query_dtype = KVT_BF16;
  kvt_dtype kv_dtype = KVT_BF16;
  int q_heads = 8;
  int kv_heads = 2;
  int head_dim = 128;
  int page = 16;
  int split_tokens = 0;
  int window_tokens = 0;
  float soft_cap = 0;
  bool sinks = false;
  ScaleKind scales = ScaleKind::kNone;
  // Elements from block to block on the GPU; 0: as on the host.
  int64_t device_block_stride = 0;
  int shared_tokens = 0;  // so many tokens of all sequences lie in the first one's blocks
  int shared_by = 0;      // not of all, but of so many sequences side by side; 0: all
  int max_length = 0;     // 0: the longest
  RowOrder rows = RowOrder::kTokenHead;
  bool repeated_blocks = false;  // every table entry of a sequence is one block
  uint64_t seed = 1;
};

struct DecodeResult {
  std::vector<uint16_t> bits;  // [sequences, q_heads, head_dim]
  std::vector<float> lse;      // [sequences, q_heads]
};

class DecodeProblem {
 public:
  explicit DecodeProblem(const DecodeSetup& setup);

  // On the GPU: parameters whose pointers live as long as this.
  [[nodiscard]] const kvt_decode_params& params() const { return params_; }
  [[nodiscard]] kvt_decode_params& params() { return params_; }
  [[nodiscard]] DeviceBuffer& workspace() { return *workspace_; }

  // Runs the kernel and waits; output is poisoned before.
  [[nodiscard]] DecodeResult Run();
  void PoisonOutput();
  [[nodiscard]] DecodeResult ReadResult() const;

  // Other lengths, none longer than max_length, for the host and the GPU.
  void SetLengths(const std::vector<int32_t>& lengths);

  // Fails the test unless every row is at most twice as far from the exact result as a plain 16-bit
  // implementation.
  void ExpectRight(const DecodeResult& result) const;

  // All rows' errors together, divided by those of a plain 16-bit implementation.
  [[nodiscard]] double ErrorBesidePlain(const DecodeResult& result) const;

 private:
  [[nodiscard]] int MaxLength() const;
  [[nodiscard]] int64_t LayerElements() const;
  [[nodiscard]] RowLayout Rows() const;
  [[nodiscard]] int64_t HostBlockStride() const;
  [[nodiscard]] int64_t DeviceBlockStride() const;
  // The stride of queries and output, from sequence to sequence.
  [[nodiscard]] int64_t RowStride() const;
  void MakeTable();
  void MakeCache();
  void FillToken(int block, int in_page);
  void MakeScales();
  void Upload();
  void FillParams();
  [[nodiscard]] kvt_paged_kv Cache(uint8_t* base, int64_t block_stride, const float* scales) const;
  [[nodiscard]] ReferenceAttention Reference() const;

  DecodeSetup setup_;
  std::mt19937_64 generator_;
  int pages_ = 0;  // of a table row
  int blocks_ = 0;
  std::vector<uint8_t> query_;
  std::vector<uint8_t> cache_;
  std::vector<int32_t> table_;
  std::vector<float> sinks_;
  std::vector<float> scales_;
  // Made one after another by the constructor.
  std::optional<DeviceBuffer> device_query_;
  std::optional<DeviceBuffer> device_output_;
  std::optional<DeviceBuffer> device_lse_;
  std::optional<DeviceBuffer> device_lengths_;
  std::optional<DeviceBuffer> device_table_;
  std::optional<DeviceBuffer> device_sinks_;
  std::optional<DeviceBuffer> device_scales_;
  std::optional<DeviceBuffer> device_cache_;
  std::optional<DeviceBuffer> workspace_;
  kvt_decode_params params_ = {};
};

}  // namespace kvtier::kernels

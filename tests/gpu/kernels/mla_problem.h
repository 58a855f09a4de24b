// SPDX-License-Identifier: Apache-2.0
// An MLA decode step with random contents, on the host and on the GPU, for tests.
//
// The cache has two layers in a block, [block][layer][token][576], of which the second is used.
// Everything the step must not use holds NaN; table entries behind a sequence's pages point
// nowhere.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kvtier/mla.h"
#include "tests/gpu/kernels/device_array.h"

namespace kvtier::kernels {

enum class LatentScales { kNone, kPerTensor, kPerToken };

struct MlaSetup {
  std::vector<int32_t> lengths;
  kvt_dtype dtype = KVT_BF16;
  bool fp8 = false;  // the latent cache
  LatentScales scales = LatentScales::kNone;
  int32_t q_heads = 16;
  int32_t page = 64;
  int32_t split_tokens = 0;
  int32_t max_length = 0;           // 0: the longest; else every sequence has so many tokens' pages
  int64_t device_block_stride = 0;  // elements from block to block on the GPU; 0: as on the host
};

struct MlaResult {
  std::vector<uint16_t>
      output;              // [sequences, q_heads + 1, 512]; a sequence's last row is no head's
  std::vector<float> lse;  // [sequences, q_heads]
};

class MlaProblem {
 public:
  explicit MlaProblem(const MlaSetup& setup);

  // Parameters on the GPU; their pointers live as long as this.
  [[nodiscard]] kvt_mla_decode_params& params() { return params_; }
  // Queues the step on the stream.
  void Queue(cudaStream_t stream);
  // Runs the step on poisoned output and waits.
  [[nodiscard]] MlaResult Run();
  [[nodiscard]] MlaResult Read() const;
  void PoisonOutput();
  // Other lengths, none longer than max_length, for the host and the GPU.
  void SetLengths(const std::vector<int32_t>& lengths);
  [[nodiscard]] size_t workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] void* workspace() const { return workspace_->get(); }

  // Fails the test unless every row is at most twice as far from the exact result as a plain 16-bit
  // implementation, and nothing outside of the rows was written.
  void ExpectRight(const MlaResult& result) const;

 private:
  [[nodiscard]] kvt_dtype LatentType() const { return setup_.fp8 ? KVT_FP8_E4M3 : setup_.dtype; }
  [[nodiscard]] kvt_scales ScalesAt(const float* values) const;
  [[nodiscard]] int32_t MaxLength() const;
  [[nodiscard]] int64_t LayerElements() const;
  [[nodiscard]] int64_t BlockElements() const { return 2 * LayerElements(); }
  void MakeTable();
  void MakeContents();
  void MakeScales(std::mt19937_64& generator);
  void Upload();
  [[nodiscard]] ReferenceAttention Reference() const;

  MlaSetup setup_;
  int32_t pages_ = 0;  // of a table row
  int32_t blocks_ = 0;
  std::vector<int32_t> table_;
  std::vector<uint8_t> cache_;
  std::vector<float> scales_;  // [blocks, page], or one
  std::vector<uint16_t> query_;
  std::unique_ptr<DeviceArray<int32_t>> device_table_, device_lengths_;
  std::unique_ptr<DeviceArray<uint16_t>> device_query_, device_output_;
  std::unique_ptr<DeviceArray<uint8_t>> device_cache_;
  std::unique_ptr<DeviceArray<float>> device_lse_, device_scales_;
  std::unique_ptr<DeviceArray<uint8_t>> workspace_;
  size_t workspace_bytes_ = 0;
  kvt_mla_decode_params params_ = {};
};

}  // namespace kvtier::kernels

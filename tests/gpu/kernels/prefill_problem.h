// SPDX-License-Identifier: Apache-2.0
// A prefill step with random contents, on the host and on the GPU, for tests.
//
// The cache has the pool's layout, [block][layer][K, V][token][head][dim], of which the second of
// two layers is used. Everything the step must not use holds NaN: unwritten tokens, other layers,
// blocks of no sequence, scales of those; table entries behind a sequence's pages point nowhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/reference/attention_reference.h"
#include "kvtier/prefill.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/kernels/row_order.h"

namespace kvtier::kernels {

enum class PrefillScales : uint8_t {
  kNone,
  kPerTensor,
  kPerHead,
  kPerToken,      // and head
  kOnlyOfValues,  // likewise; keys have none
};

struct PrefillSequence {
  int32_t query_tokens;
  int32_t kv_length;
};

struct PrefillSetup {
  std::vector<PrefillSequence> sequences;
  int32_t first_query_start = 0;
  kvt_dtype query_dtype = KVT_BF16;
  kvt_dtype kv_dtype = KVT_BF16;
  int32_t q_heads = 8;
  int32_t kv_heads = 2;
  int32_t head_dim = 128;
  int32_t page = 16;
  int32_t splits = 0;
  int32_t window_tokens = 0;
  float soft_cap = 0;
  bool sinks = false;
  bool causal = true;
  RowOrder rows = RowOrder::kTokenHead;
  bool repeated_blocks = false;  // every table entry of a sequence is one block
  float last_key_size = 1;       // of a sequence, the first one's being 1 and those between between
  PrefillScales scales = PrefillScales::kNone;
  int64_t device_block_stride = 0;  // elements from block to block on the GPU; 0: as on the host
};

struct PrefillResult {
  std::vector<uint16_t> output;  // as on the device, rows apart by output_token_stride
  std::vector<float> lse;
};

class PrefillProblem {
 public:
  explicit PrefillProblem(const PrefillSetup& setup, uint32_t seed = 1);

  // Parameters on the GPU; their pointers live as long as this.
  [[nodiscard]] kvt_prefill_params& params() { return params_; }
  // Queues the step on the stream.
  void Queue(cudaStream_t stream);
  // Runs the step on poisoned output and waits.
  [[nodiscard]] PrefillResult Run();
  [[nodiscard]] PrefillResult Read() const;
  void PoisonOutput();
  // Other lengths than those of the setup, none longer and no more query tokens.
  void SetSequences(const std::vector<PrefillSequence>& sequences);
  // Fails the test unless the result is at most twice as far from the exact one as a plain 16-bit
  // implementation, and nothing outside of the rows was written.
  void ExpectRight(const PrefillResult& result) const;

 private:
  void MakeTable();
  void MakeCache();
  void MakeScales();
  void Upload();
  [[nodiscard]] ReferenceAttention Reference() const;
  [[nodiscard]] int64_t SliceElements() const;
  [[nodiscard]] int64_t BlockElements() const { return 4 * SliceElements(); }
  [[nodiscard]] int64_t OutputStride() const;
  [[nodiscard]] RowLayout Rows() const;
  [[nodiscard]] int64_t ElementAt(int32_t block, int value, int32_t token, int32_t head) const;

  PrefillSetup setup_;
  uint32_t seed_;
  int32_t query_tokens_ = 0;  // of the setup
  int32_t pages_ = 1;         // of a table row
  int32_t blocks_ = 0;
  std::vector<int32_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> table_;
  std::vector<uint8_t> cache_;
  std::vector<uint16_t> query_;
  std::vector<float> scales_;  // of keys, then of values
  std::vector<float> sinks_;
  std::unique_ptr<DeviceArray<int32_t>> device_starts_, device_lengths_, device_table_;
  std::unique_ptr<DeviceArray<uint8_t>> device_cache_, workspace_;
  std::unique_ptr<DeviceArray<uint16_t>> device_query_, device_output_;
  std::unique_ptr<DeviceArray<float>> device_scales_, device_sinks_, device_lse_;
  size_t workspace_bytes_ = 0;
  kvt_prefill_params params_ = {};
};

}  // namespace kvtier::kernels

// SPDX-License-Identifier: Apache-2.0
// Decode of sequences that share a prefix: the kernel for it against the plain one, which reads the
// prefix once for each sequence.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/bench/bench_harness.h"

namespace kvtier::kernels::bench {
namespace {

struct SharedCase {
  int batch = 64;
  int prefix = 8192;
  int own = 512;
  int q_heads = 64;
  int kv_heads = 8;
  int head_dim = 128;
  int page = 16;
};

class SharedWork {
 public:
  explicit SharedWork(const SharedCase& c)
      : case_(c),
        row_pages_((c.prefix + c.own) / c.page),
        whole_lengths_(ToDevice(std::vector<int32_t>(c.batch, c.prefix + c.own))),
        own_lengths_(ToDevice(std::vector<int32_t>(c.batch, c.own))),
        prefix_length_(ToDevice(std::vector<int32_t>{c.prefix})),
        members_(ToDevice(std::vector<int32_t>{0, c.batch})) {
    const int64_t token_elements = int64_t{c.kv_heads} * c.head_dim;
    const int64_t tokens = c.prefix + int64_t{c.batch} * c.own;
    rotations_ = RotationCount(static_cast<size_t>(4 * tokens * token_elements));
    MakeTables();
    const size_t elements = static_cast<size_t>(rotations_ * tokens * token_elements);
    keys_ = DeviceMemory(elements * 2);
    values_ = DeviceMemory(elements * 2);
    FillRandom(keys_.get(), KVT_BF16, elements, 1);
    FillRandom(values_.get(), KVT_BF16, elements, 2);
    const size_t query_elements = static_cast<size_t>(c.batch) * c.q_heads * c.head_dim;
    query_ = DeviceMemory(query_elements * 2);
    output_ = DeviceMemory(query_elements * 2);
    FillRandom(query_.get(), KVT_BF16, query_elements, 3);
    const kvt_decode_shared_params shared = SharedParams(0);
    const kvt_decode_params plain = PlainParams(0);
    shared_workspace_ = DeviceMemory(kvt_decode_shared_workspace_bytes(&shared));
    plain_workspace_ = DeviceMemory(kvt_decode_workspace_bytes(&plain));
    shared_workspace_.Zero();
    plain_workspace_.Zero();
  }

  [[nodiscard]] int rotations() const { return rotations_; }

  void LaunchShared(int rotation, cudaStream_t stream) const {
    const kvt_decode_shared_params params = SharedParams(rotation);
    CheckStatus(
        kvt_decode_shared(&params, shared_workspace_.get(), shared_workspace_.bytes(), stream),
        "shared decode");
  }
  void LaunchPlain(int rotation, cudaStream_t stream) const {
    const kvt_decode_params params = PlainParams(rotation);
    CheckStatus(kvt_decode(&params, plain_workspace_.get(), plain_workspace_.bytes(), stream),
                "decode");
  }

 private:
  void MakeTables() {
    const int prefix_pages = case_.prefix / case_.page;
    const int own_pages = case_.own / case_.page;
    const int set_blocks = prefix_pages + case_.batch * own_pages;
    std::vector<int32_t> order(static_cast<size_t>(rotations_) * set_blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
    std::vector<int32_t> table;
    for (int r = 0; r < rotations_; ++r) {
      const int32_t* const set = &order[static_cast<size_t>(r) * set_blocks];
      for (int s = 0; s < case_.batch; ++s) {
        table.insert(table.end(), set, set + prefix_pages);
        const int32_t* const own = set + prefix_pages + s * own_pages;
        table.insert(table.end(), own, own + own_pages);
      }
    }
    table_ = ToDevice(table);
  }

  [[nodiscard]] kvt_decode_params PlainParams(int rotation) const {
    const SharedCase& c = case_;
    kvt_decode_params params = {};
    params.query = query_.get();
    params.output = output_.get();
    params.query_dtype = KVT_BF16;
    params.q_heads = c.q_heads;
    params.query_head_stride = params.output_head_stride = c.head_dim;
    params.query_sequence_stride = params.output_sequence_stride = int64_t{c.q_heads} * c.head_dim;
    params.kv = {.key = keys_.get(),
                 .value = values_.get(),
                 .dtype = KVT_BF16,
                 .kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .page_tokens = c.page,
                 .block_stride = int64_t{c.page} * c.kv_heads * c.head_dim,
                 .token_stride = int64_t{c.kv_heads} * c.head_dim,
                 .head_stride = c.head_dim};
    params.sequences = {
        .block_table = table_.get<int32_t>() + int64_t{rotation} * c.batch * row_pages_,
        .kv_lengths = whole_lengths_.get<int32_t>(),
        .table_stride = row_pages_,
        .sequences = c.batch,
        .max_kv_length = c.prefix + c.own};
    params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
    params.tables_settled = 1;  // as from a step's second layer on
    return params;
  }

  [[nodiscard]] kvt_decode_shared_params SharedParams(int rotation) const {
    kvt_decode_shared_params params = {.own = PlainParams(rotation)};
    params.prefixes = params.own.sequences;
    params.prefixes.kv_lengths = prefix_length_.get<int32_t>();
    params.prefixes.sequences = 1;
    params.prefixes.max_kv_length = case_.prefix;
    params.members = members_.get<int32_t>();
    params.own.sequences.block_table += case_.prefix / case_.page;
    params.own.sequences.kv_lengths = own_lengths_.get<int32_t>();
    params.own.sequences.max_kv_length = case_.own;
    return params;
  }

  SharedCase case_;
  int row_pages_;
  int rotations_ = 0;
  DeviceMemory whole_lengths_;
  DeviceMemory own_lengths_;
  DeviceMemory prefix_length_;
  DeviceMemory members_;
  DeviceMemory keys_;
  DeviceMemory values_;
  DeviceMemory query_;
  DeviceMemory output_;
  DeviceMemory table_;
  DeviceMemory shared_workspace_;
  DeviceMemory plain_workspace_;
};

// `tokens`: those read from memory.
void AddResult(const SharedCase& c, const char* kernel, double us, double tokens, BenchRun* run) {
  BenchResult result;
  result.kernel = kernel;
  result.variant = "prefix " + std::to_string(c.prefix);
  result.batch = c.batch;
  result.q_len = 1;
  result.context = c.prefix + c.own;
  result.q_heads = c.q_heads;
  result.kv_heads = c.kv_heads;
  result.head_dim = c.head_dim;
  result.page = c.page;
  result.us = us;
  result.gbps = tokens * c.kv_heads * c.head_dim * 4 / us / 1e3;
  result.tflops = 4.0 * c.batch * (c.prefix + c.own) * c.q_heads * c.head_dim / us / 1e6;
  result.ceiling_ratio = result.gbps / run->ceilings().read_gbps;
  run->Add(result);
}

}  // namespace

void BenchDecodeShared(BenchRun* run) {
  const SharedCase c;
  if (!run->Wants("decode_shared")) return;
  const SharedWork work(c);
  const double own_tokens = 1.0 * c.batch * c.own;
  AddResult(c, "decode",
            MedianMicroseconds(
                work.rotations(),
                [&](int rotation, cudaStream_t stream) { work.LaunchPlain(rotation, stream); }),
            own_tokens + 1.0 * c.batch * c.prefix, run);
  AddResult(c, "decode_shared",
            MedianMicroseconds(
                work.rotations(),
                [&](int rotation, cudaStream_t stream) { work.LaunchShared(rotation, stream); }),
            own_tokens + c.prefix, run);
}

}  // namespace kvtier::kernels::bench

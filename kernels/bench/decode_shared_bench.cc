// SPDX-License-Identifier: Apache-2.0
// Decode of sequences that share a prefix: the kernel for it against the plain one, which reads the
// prefix once for each sequence.

#include <cmath>

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
    // Two tensors: how the keys' and the values' places differ decides how long L2 keeps a prefix.
    const auto elements = static_cast<size_t>(rotations_ * tokens * token_elements);
    keys_ = RandomOnDevice(KVT_BF16, elements, 1);
    values_ = RandomOnDevice(KVT_BF16, elements, 2);
    const size_t query_elements = static_cast<size_t>(c.batch) * c.q_heads * c.head_dim;
    query_ = RandomOnDevice(KVT_BF16, query_elements, 3);
    output_ = DeviceMemory(query_elements * 2);
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
    const std::vector<int32_t> order = Shuffled(static_cast<size_t>(rotations_) * set_blocks, 5);
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
  DeviceMemory keys_, values_, whole_lengths_, own_lengths_, prefix_length_, members_, query_,
      output_, table_, shared_workspace_, plain_workspace_;
};

// `tokens`: those read from memory.
void AddResult(const SharedCase& c, const char* kernel, double us, double tokens, BenchRun* run) {
  const BenchResult shape{.kernel = kernel,
                          .variant = "prefix " + std::to_string(c.prefix),
                          .batch = c.batch,
                          .q_len = 1,
                          .context = c.prefix + c.own,
                          .q_heads = c.q_heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .page = c.page};
  run->Add(shape, us, tokens * c.kv_heads * c.head_dim * 4,
           4.0 * c.batch * (c.prefix + c.own) * c.q_heads * c.head_dim, Bound::kRead);
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

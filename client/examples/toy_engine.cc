// SPDX-License-Identifier: Apache-2.0
// kvtier-toy-engine SOCKET TEXT: the life of one prompt in an engine that uses kvtier from C++.
//
// Arithmetic takes the place of a model: the keys and values of a byte follow from those of the
// byte before it, and the answer from all of them, so that one wrong byte in the pool changes the
// answer. The text may be computed by one process and continued by another. Without a daemon, or
// when it is lost on the way, the engine computes in memory of its own: the answer is the same.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "kvtier/kvtier.hpp"

namespace {

constexpr uint32_t kLayers = 4;
constexpr uint32_t kDim = 32;
constexpr uint32_t kBlockTokens = 16;
// Other processes can use the beginning of a long prompt while its end is being computed.
constexpr size_t kCommitTokens = 256;

// The identity of the KV: only engines with an equal record share blocks. A real engine names the
// revision of its weights.
kvt_model_record MakeRecord() {
  kvt_model_record record;
  kvt_model_record_init(&record);
  record.name = "kvtier-toy-engine";
  record.revision = "1";
  record.groups[0].layers = kLayers;
  record.groups[0].kv_heads = 1;
  record.groups[0].k_head_dim = record.groups[0].v_head_dim = kDim;
  record.groups[0].block_tokens = kBlockTokens;
  record.groups[0].dtype = KVT_DTYPE_FLOAT32;
  return record;
}

// Where a sequence's keys and values are, in the pool or elsewhere: used in place.
struct KvMemory {
  std::byte* base;
  std::vector<int32_t> block_table;
  kvt_layout layout;

  [[nodiscard]] float* Key(size_t layer, size_t position) const {
    return reinterpret_cast<float*>(
        base + static_cast<size_t>(block_table[position / kBlockTokens]) * layout.block_stride +
        layer * layout.layer_stride + position % kBlockTokens * layout.k_token_stride);
  }
  [[nodiscard]] float* Value(size_t layer, size_t position) const {
    return Key(layer, position) + layout.v_offset / sizeof(float);
  }
};

// Computes the KV of tokens [first, end), which continues that of the tokens before.
void Compute(const KvMemory& kv, std::span<const uint32_t> tokens, size_t first, size_t end) {
  for (size_t position = first; position < end; ++position) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const float* previous = position == 0 ? nullptr : kv.Key(layer, position - 1);
      for (size_t i = 0; i < kDim; ++i) {
        const float before = previous == nullptr ? 1.0f : previous[(i + 1) % kDim];
        kv.Key(layer, position)[i] = before * 0.75f + static_cast<float>(tokens[position] + i);
        kv.Value(layer, position)[i] = kv.Key(layer, position)[i] - before;
      }
    }
  }
}

// Reads the keys and values of all `count` tokens.
double Answer(const KvMemory& kv, size_t count) {
  double answer = 0;
  for (size_t position = 0; position < count; ++position) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t i = 0; i < kDim; ++i) {
        answer = answer / 2 + kv.Key(layer, position)[i] * kv.Value(layer, position)[i];
      }
    }
  }
  return answer;
}

kvt::Result<double> AnswerFromPool(kvt::Pool& pool, const kvt_layout& layout,
                                   std::span<const uint32_t> tokens) {
  kvt::Result<kvt::Sequence> sequence = pool.OpenSequence(tokens);
  if (!sequence) return sequence.error();
  if (const kvt::Status arrived = sequence->Wait(); !arrived) return arrived.error();
  kvt::Result<std::vector<int32_t>> table = sequence->BlockTable();
  if (!table) return table.error();
  const kvt_sequence_info info = sequence->Info();
  const KvMemory kv{static_cast<std::byte*>(info.base), *std::move(table), layout};
  std::printf("cached %llu of %zu tokens: pool %llu, host %llu, disk %llu\n",
              static_cast<unsigned long long>(info.cached_tokens), tokens.size(),
              static_cast<unsigned long long>(info.pool_tokens),
              static_cast<unsigned long long>(info.host_tokens),
              static_cast<unsigned long long>(info.disk_tokens));
  for (size_t first = info.cached_tokens; first < tokens.size(); first += kCommitTokens) {
    const size_t end = std::min(first + kCommitTokens, tokens.size());
    Compute(kv, tokens, first, end);
    if (const kvt::Status marked = sequence->MarkComputed(end); !marked) return marked.error();
  }
  const double answer = Answer(kv, tokens.size());
  // Blocks whose references were lost with the daemon may have been overwritten meanwhile.
  if (const kvt::Status valid = sequence->Check(); !valid) return valid.error();
  // The answer stands; a failure from here on would only concern later prompts.
  (void)sequence->Finish();
  return answer;
}

kvt::Result<double> AnswerWithDaemon(const char* socket, const kvt_model_record& record,
                                     const kvt_layout& layout, std::span<const uint32_t> tokens) {
  kvt::Result<kvt::Connection> connection = kvt::Connection::Connect(socket);
  if (!connection) return connection.error();
  const kvt::Result<kvt_model_info> model = connection->RegisterModel(record);
  if (!model) return model.error();
  kvt::Result<kvt::Pool> pool = connection->Attach(model->model);
  if (!pool) return pool.error();
  if (pool->Info().device_kind != KVT_DEVICE_HOST) {
    return kvt::Error{KVT_UNSUPPORTED, "pool_not_host_memory", "this engine computes on the CPU"};
  }
  return AnswerFromPool(*pool, layout, tokens);
}

double AnswerAlone(const kvt_layout& layout, std::span<const uint32_t> tokens) {
  std::vector<int32_t> table((tokens.size() + kBlockTokens - 1) / kBlockTokens);
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::byte> memory(table.size() * layout.block_stride);
  const KvMemory kv{memory.data(), table, layout};
  Compute(kv, tokens, 0, tokens.size());
  return Answer(kv, tokens.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || *argv[2] == '\0') {
    std::fprintf(stderr, "usage: kvtier-toy-engine SOCKET TEXT\n");
    return 2;
  }
  std::vector<uint32_t> tokens;  // a byte is a token
  for (const char* c = argv[2]; *c != '\0'; ++c) tokens.push_back(static_cast<unsigned char>(*c));
  const kvt_model_record record = MakeRecord();
  kvt_layout layout{};
  layout.size = sizeof(layout);
  if (kvt_layout_of(&record, 0, &layout) != KVT_OK) return 1;
  kvt::Result<double> answer = AnswerWithDaemon(argv[1], record, layout, tokens);
  if (!answer) {
    std::fprintf(stderr, "without the cache: %s\n", answer.error().ToString().c_str());
    answer = AnswerAlone(layout, tokens);
  }
  std::printf("answer %a\n", *answer);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "client/examples/pooled_kv.h"

#include <optional>
#include <utility>

namespace kvtier::generate {
namespace {

// Change when the same weights and tokens would give other bytes.
constexpr const char* kArithmetic = "1";
constexpr const char* kGpuArithmetic = "gpu-1";

tl::unexpected<Error> FromClient(const kvt::Error& error) {
  return MakeError(static_cast<ErrorCode>(error.code), error.reason, error.context);
}

Status FromClient(const kvt::Status& status) {
  if (status) return {};
  return FromClient(status.error());
}

// The identity of the model's KV: blocks of other weights, or computed otherwise, never match.
class ModelRecord {
 public:
  ModelRecord(const Model& model, PoolDevice device)
      : revision_(model.digest().Hex()),
        arithmetic_{"arithmetic", device == PoolDevice::kHost ? kArithmetic : kGpuArithmetic} {
    kvt_model_record_init(&record_);
    record_.name = "kvtier-generate";
    record_.revision = revision_.c_str();
    record_.groups[0].layers = model.shape().layers;
    record_.groups[0].kv_heads = model.shape().kv_heads;
    record_.groups[0].k_head_dim = device == PoolDevice::kHost ? kHeadDim : kGpuHeadDim;
    record_.groups[0].v_head_dim = record_.groups[0].k_head_dim;
    record_.groups[0].block_tokens = kBlockTokens;
    record_.groups[0].dtype = device == PoolDevice::kHost ? KVT_DTYPE_FLOAT32 : KVT_DTYPE_FLOAT16;
    record_.extra = &arithmetic_;
    record_.extra_count = 1;
  }
  ModelRecord(const ModelRecord&) = delete;
  ModelRecord& operator=(const ModelRecord&) = delete;

  [[nodiscard]] const kvt_model_record& get() const { return record_; }

 private:
  const std::string revision_;
  const kvt_key_value arithmetic_;
  kvt_model_record record_{};
};

CachedTokens CachedIn(const kvt::Sequence& sequence) {
  const kvt_sequence_info info = sequence.Info();
  return {info.pool_tokens, info.host_tokens, info.disk_tokens};
}

// Blocks whose references went with the connection may have been overwritten while they were read:
// only a sequence that still stands has the right bytes.
Status CheckAndMark(kvt::Sequence* sequence, uint64_t tokens) {
  KVT_RETURN_IF_ERROR(FromClient(sequence->Check()));
  return FromClient(sequence->MarkComputed(tokens));
}

class PooledKv final : public HostKvStore {
 public:
  PooledKv(kvt::Sequence sequence, const KvLayout& layout)
      : sequence_(std::move(sequence)), layout_(layout) {}

  [[nodiscard]] CachedTokens cached_tokens() const override { return CachedIn(sequence_); }

  [[nodiscard]] Result<KvView> View() override {
    kvt::Result<std::vector<int32_t>> table = sequence_.BlockTable();
    if (!table) return FromClient(table.error());
    block_table_ = std::move(*table);
    return KvView{static_cast<std::byte*>(sequence_.Info().base), block_table_, layout_};
  }

  [[nodiscard]] Status Append(Token token) override {
    return FromClient(sequence_.Append(std::span(&token, 1)));
  }
  [[nodiscard]] Status MarkComputed(uint64_t tokens) override {
    return CheckAndMark(&sequence_, tokens);
  }
  [[nodiscard]] Status Finish() override { return FromClient(sequence_.Finish()); }

 private:
  kvt::Sequence sequence_;
  KvLayout layout_;
  std::vector<int32_t> block_table_;
};

class GpuPooledKv final : public KvStore {
 public:
  GpuPooledKv(kvt::Sequence sequence, GpuAttention* gpu)
      : sequence_(std::move(sequence)), gpu_(gpu) {}

  [[nodiscard]] CachedTokens cached_tokens() const override { return CachedIn(sequence_); }

  [[nodiscard]] Result<KvAccess*> Access() override {
    kvt::Result<std::vector<int32_t>> table = sequence_.BlockTable();
    if (!table) return FromClient(table.error());
    return &access_.emplace(gpu_, *std::move(table));
  }

  [[nodiscard]] Status Append(Token token) override {
    return FromClient(sequence_.Append(std::span(&token, 1)));
  }
  [[nodiscard]] Status MarkComputed(uint64_t tokens) override {
    if (access_) KVT_RETURN_IF_ERROR(access_->status());
    return CheckAndMark(&sequence_, tokens);
  }
  [[nodiscard]] Status Finish() override { return FromClient(sequence_.Finish()); }

 private:
  kvt::Sequence sequence_;
  GpuAttention* const gpu_;
  std::optional<GpuKv> access_;
};

// For copy-on-write; `user` is the GpuAttention.
int32_t CopyOnGpu(void* user, uint64_t target_offset, uint64_t source_offset, uint64_t bytes) {
  return static_cast<GpuAttention*>(user)->Copy(target_offset, source_offset, bytes) ? 0 : 1;
}

Status CheckDevice(const kvt::Pool& pool, PoolDevice device) {
  const bool on_gpu = pool.Info().device_kind == KVT_DEVICE_CUDA;
  if (on_gpu == (device == PoolDevice::kCuda)) return {};
  return MakeError(ErrorCode::kUnsupported, on_gpu ? "pool_not_host_memory" : "pool_not_on_gpu",
                   on_gpu ? "the daemon's pool is on a GPU: use --device cuda"
                          : "the daemon's pool is in host memory: use --device host");
}

}  // namespace

Result<KvLayout> LayoutOf(const Model& model, PoolDevice device) {
  const ModelRecord record(model, device);
  kvt_layout layout{};
  layout.size = sizeof(layout);
  if (kvt_layout_of(&record.get(), 0, &layout) != KVT_OK) return FromClient(kvt::Error::Last());
  return KvLayout{.block_stride = layout.block_stride,
                  .layer_stride = layout.layer_stride,
                  .value_offset = layout.v_offset,
                  .key_token_stride = layout.k_token_stride,
                  .key_head_stride = layout.k_head_stride,
                  .value_token_stride = layout.v_token_stride,
                  .value_head_stride = layout.v_head_stride};
}

Result<SharedPool> SharedPool::Attach(const std::string& socket_path, const Model& model,
                                      PoolDevice device) {
  KVT_ASSIGN_OR_RETURN(const KvLayout layout, LayoutOf(model, device));
  kvt::Result<kvt::Connection> connection = kvt::Connection::Connect(socket_path);
  if (!connection) return FromClient(connection.error());
  const ModelRecord record(model, device);
  const kvt::Result<kvt_model_info> info = connection->RegisterModel(record.get());
  if (!info) return FromClient(info.error());
  kvt::Result<kvt::Pool> pool = connection->Attach(info->model);
  if (!pool) return FromClient(pool.error());
  KVT_RETURN_IF_ERROR(CheckDevice(*pool, device));
  SharedPool shared(*std::move(connection), *std::move(pool), layout);
  if (device == PoolDevice::kCuda) KVT_RETURN_IF_ERROR(shared.OpenGpu(model));
  return shared;
}

Status SharedPool::OpenGpu(const Model& model) {
  const kvt::Result<kvt_device_mapping> mapping = pool_.MapDevice();
  if (!mapping) return FromClient(mapping.error());
  KVT_ASSIGN_OR_RETURN(gpu_, GpuAttention::Open({.ordinal = mapping->ordinal,
                                                 .base = mapping->base,
                                                 .layout = layout_,
                                                 .kv_heads = model.shape().kv_heads,
                                                 .query_heads = model.shape().query_heads}));
  return {};
}

Result<std::unique_ptr<KvStore>> SharedPool::Open(std::span<const Token> prompt,
                                                  uint32_t reserve_tokens,
                                                  kvt_retention retention) {
  kvt_sequence_options options;
  kvt_sequence_options_init(&options);
  options.reserve_tokens = reserve_tokens;
  options.retention = retention;
  if (gpu_) {
    options.copy = CopyOnGpu;
    options.copy_user = gpu_.get();
  }
  kvt::Result<kvt::Sequence> sequence = pool_.OpenSequence(prompt, &options);
  if (!sequence) return FromClient(sequence.error());
  KVT_RETURN_IF_ERROR(FromClient(sequence->Wait()));
  if (gpu_) return std::make_unique<GpuPooledKv>(*std::move(sequence), gpu_.get());
  return std::make_unique<PooledKv>(*std::move(sequence), layout_);
}

}  // namespace kvtier::generate

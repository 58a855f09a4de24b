#include "client/examples/pooled_kv.h"

#include <utility>

namespace kvtier::generate {
namespace {

// Changes when the same weights and tokens would give other bytes.
constexpr const char* kArithmetic = "1";

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
  explicit ModelRecord(const Model& model) : revision_(model.digest().Hex()) {
    kvt_model_record_init(&record_);
    record_.name = "kvtier-generate";
    record_.revision = revision_.c_str();
    record_.layers = model.shape().layers;
    record_.kv_heads = model.shape().kv_heads;
    record_.k_head_dim = kHeadDim;
    record_.v_head_dim = kHeadDim;
    record_.block_tokens = kBlockTokens;
    record_.dtype = KVT_DTYPE_FLOAT32;
    record_.extra = &arithmetic_;
    record_.extra_count = 1;
  }
  ModelRecord(const ModelRecord&) = delete;
  ModelRecord& operator=(const ModelRecord&) = delete;

  [[nodiscard]] const kvt_model_record& get() const { return record_; }

 private:
  const std::string revision_;
  const kvt_key_value arithmetic_{"arithmetic", kArithmetic};
  kvt_model_record record_{};
};

class PooledKv final : public KvStore {
 public:
  PooledKv(kvt::Sequence sequence, const KvLayout& layout)
      : sequence_(std::move(sequence)), layout_(layout) {}

  [[nodiscard]] CachedTokens cached_tokens() const override {
    const kvt_sequence_info info = sequence_.Info();
    return {info.pool_tokens, info.host_tokens, info.disk_tokens};
  }

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
    // Blocks whose references went with the connection may have been overwritten while they were
    // read: only a sequence that still stands has the right bytes.
    KVT_RETURN_IF_ERROR(FromClient(sequence_.Check()));
    return FromClient(sequence_.MarkComputed(tokens));
  }

  [[nodiscard]] Status Finish() override { return FromClient(sequence_.Finish()); }

 private:
  kvt::Sequence sequence_;
  KvLayout layout_;
  std::vector<int32_t> block_table_;
};

}  // namespace

Result<KvLayout> LayoutOf(const Model& model) {
  const ModelRecord record(model);
  kvt_layout layout{};
  layout.size = sizeof(layout);
  if (kvt_layout_of(&record.get(), &layout) != KVT_OK) return FromClient(kvt::Error::Last());
  return KvLayout{.block_stride = layout.block_stride,
                  .layer_stride = layout.layer_stride,
                  .value_offset = layout.v_offset,
                  .key_token_stride = layout.k_token_stride,
                  .key_head_stride = layout.k_head_stride,
                  .value_token_stride = layout.v_token_stride,
                  .value_head_stride = layout.v_head_stride};
}

Result<SharedPool> SharedPool::Attach(const std::string& socket_path, const Model& model) {
  KVT_ASSIGN_OR_RETURN(const KvLayout layout, LayoutOf(model));
  kvt::Result<kvt::Connection> connection = kvt::Connection::Connect(socket_path);
  if (!connection) return FromClient(connection.error());
  const ModelRecord record(model);
  const kvt::Result<kvt_model_info> info = connection->RegisterModel(record.get());
  if (!info) return FromClient(info.error());
  kvt::Result<kvt::Pool> pool = connection->Attach(info->model);
  if (!pool) return FromClient(pool.error());
  if (pool->Info().base == nullptr) {
    return MakeError(ErrorCode::kUnsupported, "pool_not_host_memory",
                     "this model computes on the CPU, the daemon's pool is on a device");
  }
  return SharedPool(*std::move(connection), *std::move(pool), layout);
}

Result<std::unique_ptr<KvStore>> SharedPool::Open(std::span<const Token> prompt,
                                                  uint32_t reserve_tokens,
                                                  kvt_retention retention) {
  kvt_sequence_options options;
  kvt_sequence_options_init(&options);
  options.reserve_tokens = reserve_tokens;
  options.retention = retention;
  kvt::Result<kvt::Sequence> sequence = pool_.OpenSequence(prompt, &options);
  if (!sequence) return FromClient(sequence.error());
  KVT_RETURN_IF_ERROR(FromClient(sequence->Wait()));
  return std::make_unique<PooledKv>(*std::move(sequence), layout_);
}

}  // namespace kvtier::generate

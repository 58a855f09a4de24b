// SPDX-License-Identifier: Apache-2.0
// The C ABI: connections, models and what concerns the daemon as a whole.

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "client/abi/c_common.h"
#include "protocol/kv_layout.h"
#include "protocol/model_record.h"

namespace kvtier::client {
namespace {

// The program's name, as far as the protocol takes it.
std::string DefaultClientName() {
  std::string name(program_invocation_short_name);
  name.resize(std::min(name.size(), wire::kMaxClientNameBytes));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name;
}

// C callers leave texts null that they do not have; the protocol has no null, only empty texts.
std::string TextOf(const char* text) { return text == nullptr ? std::string() : text; }

// `given` may be null: all defaults. A newer caller's struct is larger, and its further fields are
// ignored. Errors: those of CheckStruct and ConnectionOptions::Validate.
Result<ConnectionOptions> ToOptions(const kvt_connect_options* given) {
  kvt_connect_options options;
  kvt_connect_options_init(&options);
  if (given != nullptr) {
    KVT_RETURN_IF_ERROR(CheckStruct(given, "options"));
    options = *given;
  }
  ConnectionOptions result{
      .client_name =
          options.client_name == nullptr ? DefaultClientName() : std::string(options.client_name),
      .connect_timeout_ms = options.connect_timeout_ms,
      .request_timeout_ms = options.request_timeout_ms,
      .reconnect_min_ms = options.reconnect_min_ms,
      .reconnect_max_ms = options.reconnect_max_ms,
      .resume_wait_ms = options.resume_wait_ms,
      .wait_for_daemon = options.wait_for_daemon != 0,
  };
  KVT_RETURN_IF_ERROR(result.Validate());
  return result;
}

// Enumerators are cast unchecked: ModelRecord::Validate refuses those that do not exist.
Result<KvGroup> ToGroup(const kvt_kv_group& given) {
  if (given.replicated > 1) return MakeError(ErrorCode::kInvalidArgument, "bad_replicated");
  return KvGroup{.hit_rule = static_cast<HitRule>(given.hit_rule),
                 .window_tokens = given.window_tokens,
                 .replicated = given.replicated != 0,
                 .layers = given.layers,
                 .kv_heads = given.kv_heads,
                 .k_head_dim = given.k_head_dim,
                 .v_head_dim = given.v_head_dim,
                 .scale_bytes = given.scale_bytes,
                 .dtype = static_cast<KvDtype>(given.dtype),
                 .layout = static_cast<KvLayoutKind>(given.layout),
                 .block_tokens = given.block_tokens,
                 .layer_bytes = given.layer_bytes};
}

// Copies everything, so that the caller may free its record after the call. Counts are checked
// before the arrays are read. `extra` is sorted, because records that differ in its order alone are
// one model. Errors: kInvalidArgument; those of ModelRecord::Validate.
Result<ModelRecord> ToRecord(const kvt_model_record* given) {
  KVT_RETURN_IF_ERROR(CheckStruct(given, "record"));
  KVT_RETURN_IF_ERROR(CheckArray(given->extra, given->extra_count, "record.extra"));
  ModelRecord record{
      .name = TextOf(given->name),
      .revision = TextOf(given->revision),
      .hash_recipe = given->hash_recipe == nullptr ? std::string(kDefaultHashRecipe)
                                                   : std::string(given->hash_recipe),
      .tensor_parallel_rank = given->tensor_parallel_rank,
      .tensor_parallel_size = given->tensor_parallel_size,
      .extra = {},
      .groups = {},
  };
  if (given->group_count > kMaxModelGroups) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_group_count",
                     fmt::format("{}, at most {}", given->group_count, kMaxModelGroups));
  }
  for (size_t i = 0; i < given->group_count; ++i) {
    KVT_ASSIGN_OR_RETURN(record.groups.emplace_back(), ToGroup(given->groups[i]));
  }
  if (given->extra_count > kMaxModelExtraCount) {
    return MakeError(ErrorCode::kInvalidArgument, "too_many_extra",
                     fmt::format("{}, at most {}", given->extra_count, kMaxModelExtraCount));
  }
  for (size_t i = 0; i < given->extra_count; ++i) {
    record.extra.emplace_back(TextOf(given->extra[i].key), TextOf(given->extra[i].value));
  }
  std::sort(record.extra.begin(), record.extra.end());
  KVT_RETURN_IF_ERROR(record.Validate());
  return record;
}

// One request without arguments.
template <typename Request, typename Reply>
Result<Reply> CallEmpty(Connection* connection) {
  KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session, connection->GetSession());
  return session->channel().Call<Reply>(Request{}, connection->RequestDeadline());
}

// Each error is returned once. A reason that does not fit is cut, but always ends with a zero.
size_t TakeErrors(Connection* connection, kvt_async_error* errors, size_t capacity,
                  uint64_t* dropped) {
  uint64_t lost = 0;
  const std::vector<AsyncError> taken = connection->async_errors().Take(capacity, &lost);
  for (size_t i = 0; i < taken.size(); ++i) {
    errors[i] = kvt_async_error{};
    errors[i].block = ToBlock(taken[i].block, taken[i].attachment);
    errors[i].code = static_cast<kvt_status>(taken[i].code);
    const size_t length = std::min(taken[i].reason.size(), sizeof(errors[i].reason) - 1);
    std::memcpy(errors[i].reason, taken[i].reason.data(), length);
  }
  if (dropped != nullptr) *dropped = lost;
  return taken.size();
}

}  // namespace

extern "C" {

KVT_API void kvt_connect_options_init(kvt_connect_options* options) {
  const ConnectionOptions defaults;
  *options = kvt_connect_options{};
  options->size = sizeof(*options);
  options->connect_timeout_ms = defaults.connect_timeout_ms;
  options->request_timeout_ms = defaults.request_timeout_ms;
  options->reconnect_min_ms = defaults.reconnect_min_ms;
  options->reconnect_max_ms = defaults.reconnect_max_ms;
  options->resume_wait_ms = static_cast<int32_t>(defaults.resume_wait_ms);
}

// Fails without a daemon, unless the options say to wait for one. `*connection` is null after every
// error, so that callers may pass it to kvt_disconnect.
KVT_API kvt_status kvt_connect(const char* socket_path, const kvt_connect_options* options,
                               kvt_connection** connection) {
  return GuardOn(socket_path, "socket_path (\"\": $KVTIER_SOCKET or default)", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(connection, "connection"));
    *connection = nullptr;
    KVT_ASSIGN_OR_RETURN(ConnectionOptions checked, ToOptions(options));
    auto handle = std::make_unique<kvt_connection>();
    handle->connection = std::make_unique<Connection>(socket_path, std::move(checked));
    KVT_RETURN_IF_ERROR(handle->connection->Connect());
    *connection = handle.release();
    return {};
  });
}

KVT_API void kvt_disconnect(kvt_connection* connection) { delete connection; }

// Takes in the frames that have arrived, so that a daemon that has just died is noticed.
KVT_API int kvt_is_connected(kvt_connection* connection) {
  bool connected = false;
  (void)Guard([&]() -> Status {
    connected = connection != nullptr && connection->connection->IsConnected();
    return {};
  });
  return connected ? 1 : 0;
}

// The time includes a reconnection, if the call had to make one.
KVT_API kvt_status kvt_ping(kvt_connection* connection, double* round_trip_us) {
  return GuardOn(connection, "connection", [&]() -> Status {
    const auto start = std::chrono::steady_clock::now();
    KVT_RETURN_IF_ERROR((CallEmpty<wire::Ping, wire::Pong>(connection->connection.get())));
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    if (round_trip_us != nullptr) *round_trip_us = elapsed.count();
    return {};
  });
}

KVT_API kvt_status kvt_flush(kvt_connection* connection) {
  return GuardOn(connection, "connection",
                 [&]() -> Status { return connection->connection->Flush(); });
}

KVT_API kvt_status kvt_get_stats(kvt_connection* connection, kvt_stats* stats) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(stats, "stats"));
    KVT_ASSIGN_OR_RETURN(const wire::StatsReply reply,
                         (CallEmpty<wire::Stats, wire::StatsReply>(connection->connection.get())));
    stats->blocks_asked = reply.blocks_asked;
    stats->blocks_pool = reply.blocks_pool;
    stats->blocks_host = reply.blocks_host;
    stats->blocks_disk = reply.blocks_disk;
    stats->blocks_miss = reply.blocks_miss;
    stats->pool_blocks_total = reply.pool_blocks_total;
    stats->pool_blocks_free = reply.pool_blocks_free;
    stats->pool_blocks_private = reply.pool_blocks_private;
    stats->pool_blocks_cached = reply.pool_blocks_cached;
    stats->session_references = reply.session_references;
    return {};
  });
}

// `*count` is the number of devices, and may exceed `capacity`: callers then ask again with more.
// Names end with a zero, since the fields are larger than the protocol allows.
KVT_API kvt_status kvt_get_devices(kvt_connection* connection, kvt_device* devices, size_t capacity,
                                   size_t* count) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckPointer(count, "count"));
    KVT_RETURN_IF_ERROR(CheckArray(devices, capacity, "devices"));
    *count = 0;
    KVT_ASSIGN_OR_RETURN(const std::shared_ptr<DaemonSession> session,
                         connection->connection->GetSession());
    KVT_ASSIGN_OR_RETURN(const std::vector<wire::DevicesReply::Device> known,
                         connection->connection->DevicesOf(*session));
    for (size_t i = 0; i < std::min(capacity, known.size()); ++i) {
      kvt_device& device = devices[i];
      device = kvt_device{};
      device.kind = static_cast<kvt_device_kind>(known[i].kind);
      std::memcpy(device.uuid, known[i].uuid.data(), sizeof(device.uuid));
      device.pool_bytes = known[i].pool_bytes;
      static_assert(sizeof(device.name) > wire::kMaxDeviceNameBytes);
      std::memcpy(device.name, known[i].name.data(), known[i].name.size());
    }
    *count = known.size();
    return {};
  });
}

KVT_API void kvt_model_record_init(kvt_model_record* record) {
  const ModelRecord defaults;
  const KvGroup& group_defaults = defaults.groups[0];
  *record = kvt_model_record{};
  record->size = sizeof(*record);
  record->tensor_parallel_size = defaults.tensor_parallel_size;
  record->group_count = defaults.groups.size();
  for (kvt_kv_group& group : record->groups) {
    group.block_tokens = group_defaults.block_tokens;
    group.hit_rule = static_cast<kvt_hit_rule>(group_defaults.hit_rule);
    group.dtype = static_cast<kvt_model_dtype>(group_defaults.dtype);
    group.layout = static_cast<kvt_layout_kind>(group_defaults.layout);
  }
}

// Asks no daemon: the layout follows from the record alone.
KVT_API kvt_status kvt_layout_of(const kvt_model_record* record, uint32_t group,
                                 kvt_layout* layout) {
  return Guard([&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(layout, "layout"));
    KVT_ASSIGN_OR_RETURN(const ModelRecord checked, ToRecord(record));
    if (group >= checked.groups.size()) {
      return MakeError(ErrorCode::kNotFound, "unknown_group",
                       fmt::format("group {} of {}", group, checked.groups.size()));
    }
    const KvLayout strides = KvLayout::Of(checked.groups[group]);
    layout->element_bytes = strides.element_bytes;
    layout->block_stride = strides.block_stride;
    layout->layer_stride = strides.layer_stride;
    layout->v_offset = strides.v_offset;
    layout->k_token_stride = strides.k_token_stride;
    layout->k_head_stride = strides.k_head_stride;
    layout->v_token_stride = strides.v_token_stride;
    layout->v_head_stride = strides.v_head_stride;
    return {};
  });
}

// The model's number stays valid over reconnections: the connection registers its models anew.
KVT_API kvt_status kvt_register_model(kvt_connection* connection, const kvt_model_record* record,
                                      kvt_model_info* info) {
  return GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckStruct(info, "info"));
    KVT_ASSIGN_OR_RETURN(ModelRecord checked, ToRecord(record));
    KVT_ASSIGN_OR_RETURN(info->model, connection->connection->RegisterModel(std::move(checked)));
    KVT_ASSIGN_OR_RETURN(const Connection::Model model,
                         connection->connection->GetModel(info->model));
    info->block_bytes = model.groups[0].block_bytes;
    std::memcpy(info->fingerprint.bytes, model.fingerprint.bytes.data(), sizeof(kvt_hash));
    return {};
  });
}

KVT_API size_t kvt_take_errors(kvt_connection* connection, kvt_async_error* errors, size_t capacity,
                               uint64_t* dropped) {
  size_t taken = 0;
  (void)GuardOn(connection, "connection", [&]() -> Status {
    KVT_RETURN_IF_ERROR(CheckArray(errors, capacity, "errors"));
    // Errors that have arrived but that no call has read yet.
    (void)connection->connection->IsConnected();
    taken = TakeErrors(connection->connection.get(), errors, capacity, dropped);
    return {};
  });
  return taken;
}

}  // extern "C"

}  // namespace kvtier::client

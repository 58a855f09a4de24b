// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_cluster.h"

#include <rados/librados.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace kvtier {
namespace {

constexpr std::chrono::seconds kPatience(1);

struct Setting {
  const char* name;
  const char* value;
};

// An operation has to be old enough for librados to ask for a new map before it is given up:
// otherwise OSDs that come back under other addresses would never be found. The daemon bounds its
// own calls under way, and a call that had to wait for others here would delay those behind it. The
// log is the daemon's, which counts failed calls.
constexpr Setting kSettings[] = {
    {"client_mount_timeout", "5"},
    {"rados_mon_op_timeout", "5"},
    {"rados_osd_op_timeout", "5"},
    {"objecter_tick_interval", "1"},
    {"objecter_timeout", "2"},
    {"objecter_inflight_op_bytes", "17179869184"},
    {"objecter_inflight_ops", "65536"},
    {"log_to_stderr", "false"},
    {"err_to_stderr", "false"},
    {"log_file", ""},
    {"admin_socket", ""},
};

std::vector<const char*> Pointers(const RadosCluster::Keys& keys) {
  std::vector<const char*> pointers;
  pointers.reserve(keys.size());
  for (const std::string& key : keys) pointers.push_back(key.c_str());
  return pointers;
}

RadosCluster::Keys Take(rados_omap_iter_t iterator) {
  RadosCluster::Keys keys;
  char* key = nullptr;
  char* value = nullptr;
  size_t key_bytes = 0, value_bytes = 0;
  while (rados_omap_get_next2(iterator, &key, &value, &key_bytes, &value_bytes) == 0 &&
         key != nullptr) {
    keys.emplace_back(key, key_bytes);
  }
  return keys;
}

bool Configure(rados_t cluster, const RadosEndpoint& endpoint, const RadosUser& user) {
  const char* const path =
      endpoint.configuration.empty() ? nullptr : endpoint.configuration.c_str();
  if (rados_conf_read_file(cluster, path) != 0) return false;
  for (const Setting& setting : kSettings) {
    if (rados_conf_set(cluster, setting.name, setting.value) != 0) return false;
  }
  return user.key.empty() || rados_conf_set(cluster, "key", user.key.c_str()) == 0;
}

}  // namespace

// The memory that librados writes to stays here until the operation has ended.
struct RadosCluster::Operation {
  RadosCluster* owner = nullptr;
  Ended ended;
  rados_completion_t completion = nullptr;
  rados_read_op_t read = nullptr;
  rados_write_op_t write = nullptr;
  rados_omap_iter_t keys = nullptr;
  bool has_keys = false;
  int result = 0;
  unsigned char more = 0;

  ~Operation() {
    if (has_keys && keys != nullptr) rados_omap_get_end(keys);
    if (read != nullptr) rados_release_read_op(read);
    if (write != nullptr) rados_release_write_op(write);
    if (completion != nullptr) rados_aio_release(completion);
  }
};

RadosCluster::RadosCluster(void* cluster, void* pool) : cluster_(cluster), pool_(pool) {}

std::unique_ptr<RadosCluster> RadosCluster::Connect(const RadosEndpoint& endpoint,
                                                    const RadosUser& user) {
  const std::string name = "client." + (user.name.empty() ? std::string("admin") : user.name);
  rados_t cluster = nullptr;
  if (rados_create2(&cluster, "ceph", name.c_str(), 0) != 0) return nullptr;
  rados_ioctx_t pool = nullptr;
  if (!Configure(cluster, endpoint, user) || rados_connect(cluster) != 0 ||
      rados_ioctx_create(cluster, endpoint.pool.c_str(), &pool) != 0) {
    rados_shutdown(cluster);
    return nullptr;
  }
  return std::unique_ptr<RadosCluster>(new RadosCluster(cluster, pool));
}

RadosCluster::~RadosCluster() {
  std::vector<rados_completion_t> completions;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for (const auto& [operation, owned] : under_way_) completions.push_back(operation->completion);
  }
  for (const rados_completion_t completion : completions) (void)rados_aio_cancel(pool_, completion);
  {
    std::unique_lock lock(mutex_);
    (void)all_ended_.wait_for(lock, kPatience, [this] { return under_way_.empty(); });
  }
  rados_ioctx_destroy(pool_);
  rados_shutdown(cluster_);
}

RadosCluster::Operation* RadosCluster::Begin(Ended ended) {
  auto owned = std::make_unique<Operation>();
  Operation* const operation = owned.get();
  operation->owner = this;
  operation->ended = std::move(ended);
  (void)rados_aio_create_completion2(operation, &RadosCluster::OnComplete, &operation->completion);
  const std::lock_guard lock(mutex_);
  under_way_.emplace(operation, std::move(owned));
  return operation;
}

void RadosCluster::OnComplete(void* completion, void* argument) {
  auto* const operation = static_cast<Operation*>(argument);
  operation->owner->End(operation, rados_aio_get_return_value(completion));
}

void RadosCluster::End(Operation* operation, int error) {
  operation->ended(error);
  std::unique_ptr<Operation> owned;
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(operation);
  owned = std::move(found->second);
  under_way_.erase(found);
  if (closing_) ended_.push_back(std::move(owned));
  if (under_way_.empty()) all_ended_.notify_all();
}

void RadosCluster::SendRead(Operation* operation, const RadosPlace& place) {
  rados_ioctx_set_namespace(pool_, place.name_space.c_str());
  const int error = rados_aio_read_op_operate(operation->read, pool_, operation->completion,
                                              place.object.c_str(), LIBRADOS_OPERATION_NOFLAG);
  if (error != 0) End(operation, error);
}

// Without the flag, librados would keep a write to a full pool until there is space.
void RadosCluster::SendWrite(Operation* operation, const RadosPlace& place) {
  rados_ioctx_set_namespace(pool_, place.name_space.c_str());
  const int error =
      rados_aio_write_op_operate(operation->write, pool_, operation->completion,
                                 place.object.c_str(), nullptr, LIBRADOS_OPERATION_FULL_TRY);
  if (error != 0) End(operation, error);
}

void RadosCluster::Read(const RadosPlace& place, void* into, size_t bytes, GotBytes got) {
  Operation* const operation = Begin([got = std::move(got)](int result) {
    got(result < 0 ? result : 0, result < 0 ? 0 : static_cast<size_t>(result));
  });
  rados_ioctx_set_namespace(pool_, place.name_space.c_str());
  const int error = rados_aio_read(pool_, place.object.c_str(), operation->completion,
                                   static_cast<char*>(into), bytes, 0);
  if (error != 0) End(operation, error);
}

void RadosCluster::Write(const RadosPlace& place, const void* data, size_t bytes, Ended ended) {
  Operation* const operation = Begin(std::move(ended));
  operation->write = rados_create_write_op();
  rados_write_op_write_full(operation->write, static_cast<const char*>(data), bytes);
  SendWrite(operation, place);
}

void RadosCluster::Remove(const RadosPlace& place, Ended ended) {
  Operation* const operation = Begin(std::move(ended));
  operation->write = rados_create_write_op();
  rados_write_op_remove(operation->write);
  SendWrite(operation, place);
}

void RadosCluster::SetKeys(const RadosPlace& place, const Keys& keys, Ended ended) {
  Operation* const operation = Begin(std::move(ended));
  operation->write = rados_create_write_op();
  const std::vector<const char*> names = Pointers(keys);
  const std::vector<const char*> values(keys.size(), "");
  const std::vector<size_t> lengths(keys.size(), 0);
  rados_write_op_omap_set(operation->write, names.data(), values.data(), lengths.data(),
                          keys.size());
  SendWrite(operation, place);
}

void RadosCluster::RemoveKeys(const RadosPlace& place, const Keys& keys, Ended ended) {
  Operation* const operation = Begin(std::move(ended));
  operation->write = rados_create_write_op();
  // Otherwise an object without keys would come of it.
  rados_write_op_assert_exists(operation->write);
  rados_write_op_omap_rm_keys(operation->write, Pointers(keys).data(), keys.size());
  SendWrite(operation, place);
}

void RadosCluster::FindKeys(const RadosPlace& place, const Keys& keys, GotKeys got) {
  Operation* const operation = Begin(nullptr);
  operation->has_keys = true;
  operation->ended = [operation, got = std::move(got)](int error) {
    got(error, error == 0 ? Take(operation->keys) : Keys());
  };
  operation->read = rados_create_read_op();
  rados_read_op_omap_get_vals_by_keys(operation->read, Pointers(keys).data(), keys.size(),
                                      &operation->keys, &operation->result);
  SendRead(operation, place);
}

void RadosCluster::ListKeys(const RadosPlace& place, const std::string& after, size_t count,
                            GotPage got) {
  Operation* const operation = Begin(nullptr);
  operation->has_keys = true;
  operation->ended = [operation, got = std::move(got)](int error) {
    got(error, error == 0 ? Take(operation->keys) : Keys(), operation->more != 0);
  };
  operation->read = rados_create_read_op();
  rados_read_op_omap_get_keys2(operation->read, after.c_str(), count, &operation->keys,
                               &operation->more, &operation->result);
  SendRead(operation, place);
}

}  // namespace kvtier

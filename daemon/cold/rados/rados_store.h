// SPDX-License-Identifier: Apache-2.0
// The store as the daemon sees it: objects by name, over a pool of a cluster.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/cold/cold_backend.h"
#include "daemon/cold/rados/rados_catalog.h"
#include "daemon/cold/rados/rados_cleaner.h"
#include "daemon/cold/rados/rados_cluster.h"
#include "daemon/cold/rados/rados_eraser.h"
#include "daemon/cold/rados/rados_names.h"
#include "daemon/cold/rados/rados_thread.h"

namespace kvtier {

struct RadosOptions {
  RadosEndpoint endpoint;
  RadosUser user;
  RadosHours hours;  // in which periods are deleted
};

// The functions of cold_backend.h, from one thread at a time. All work is done by a thread of the
// store and by those of librados, on which `done` is called.
class RadosStore {
 public:
  RadosStore(RadosOptions options, kvt_cold_done done, void* context);
  ~RadosStore();
  RadosStore(const RadosStore&) = delete;
  RadosStore& operator=(const RadosStore&) = delete;

  void Exists(uint64_t call, std::vector<std::string> names, bool each, int64_t timeout_ms);
  void Get(uint64_t call, std::string name, void* into, uint64_t bytes, int64_t timeout_ms);
  void Put(uint64_t call, std::string name, const void* data, size_t bytes, int64_t ttl_s,
           int64_t timeout_ms);
  void Remove(uint64_t call, std::vector<std::string> names, int64_t timeout_ms);
  void RemoveSome(uint64_t call, std::string prefix, uint64_t cursor, int64_t timeout_ms);

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Question;
  struct Removal;
  struct Write;

  // Runs `task` on the thread if there is a cluster and time is left; else the call has ended.
  void Begin(uint64_t call, int64_t timeout_ms, std::function<void()> task);
  [[nodiscard]] bool Connected();
  void End(uint64_t call, int error) const { End(call, error, nullptr, 0); }
  void End(uint64_t call, int error, const void* data, size_t bytes) const;

  void Ask(const std::shared_ptr<Question>& question);
  void OnLocated(const std::shared_ptr<Question>& question, int error,
                 const std::vector<RadosPeriod>& periods);
  void Probe(uint64_t call, const std::string& name);
  void Read(uint64_t call, const RadosName& name, RadosPeriod period, void* into, uint64_t bytes);
  void OnWritten(const std::shared_ptr<Write>& write);
  void RemoveOne(const std::shared_ptr<Removal>& removal, const RadosName& name);
  // Where objects lie that were found lately, so that a load needs no further question.
  void NoteLocation(const RadosName& name, RadosPeriod period);
  [[nodiscard]] RadosPeriod TakeLocation(const RadosName& name);

  const RadosOptions options_;
  const kvt_cold_done done_;
  void* const context_;
  std::unordered_map<std::string, RadosPeriod> locations_;
  std::optional<SteadyClock::time_point> connect_at_;
  // The thread ends before the cluster, and that before what its operations call.
  std::unique_ptr<RadosCluster> cluster_;
  std::unique_ptr<RadosCatalog> catalog_;
  std::unique_ptr<RadosCleaner> cleaner_;
  std::unique_ptr<RadosEraser> eraser_;
  RadosThread thread_;
};

}  // namespace kvtier

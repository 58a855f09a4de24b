// SPDX-License-Identifier: Apache-2.0
// A pool of a cluster, by librados: the store's operations on single objects.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/cold/rados/rados_names.h"

namespace kvtier {

struct RadosUser {
  std::string name;  // without "client."; empty: admin
  std::string key;   // empty: from the keyring that the configuration names
};

// The calls belong to one thread, copy what they are given and do not wait for the cluster; each
// `ended` is called once, on a thread of librados, with 0 or a negative errno. An operation that
// the cluster does not answer ends with -ETIMEDOUT after some seconds.
class RadosCluster {
 public:
  using Ended = std::function<void(int error)>;
  using Keys = std::vector<std::string>;
  using GotKeys = std::function<void(int error, Keys keys)>;
  using GotPage = std::function<void(int error, Keys keys, bool more)>;
  using GotBytes = std::function<void(int error, size_t bytes)>;

  // Waits for the cluster, for some seconds at most. Null if it cannot be reached.
  [[nodiscard]] static std::unique_ptr<RadosCluster> Connect(const RadosEndpoint& endpoint,
                                                             const RadosUser& user);
  // Operations under way end with -ECANCELED. Nothing is called when this has returned.
  ~RadosCluster();
  RadosCluster(const RadosCluster&) = delete;
  RadosCluster& operator=(const RadosCluster&) = delete;

  // At most so many bytes from the beginning. `into` stays until `got` is called.
  void Read(const RadosPlace& place, void* into, size_t bytes, GotBytes got);
  // Whatever the object was before. -ENOSPC or -EDQUOT when the pool is full, at once.
  void Write(const RadosPlace& place, const void* data, size_t bytes, Ended ended);
  void Remove(const RadosPlace& place, Ended ended);

  // Operations on the object's omap. An object that is not there is made by SetKeys; the others end
  // with -ENOENT.
  void SetKeys(const RadosPlace& place, const Keys& keys, Ended ended);
  void RemoveKeys(const RadosPlace& place, const Keys& keys, Ended ended);
  // Which of the keys are there.
  void FindKeys(const RadosPlace& place, const Keys& keys, GotKeys got);
  // The keys after that one in order, at most `count`; the cluster may end a page before.
  void ListKeys(const RadosPlace& place, const std::string& after, size_t count, GotPage got);

 private:
  struct Operation;

  RadosCluster(void* cluster, void* pool);
  [[nodiscard]] Operation* Begin(Ended ended);
  void SendRead(Operation* operation, const RadosPlace& place);
  void SendWrite(Operation* operation, const RadosPlace& place);
  static void OnComplete(void* completion, void* argument);
  void End(Operation* operation, int error);

  void* const cluster_;
  void* const pool_;
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> under_way_;
  // While closing, ended operations stay until none can be cancelled any more.
  bool closing_ = false;
  std::vector<std::unique_ptr<Operation>> ended_;
};

}  // namespace kvtier

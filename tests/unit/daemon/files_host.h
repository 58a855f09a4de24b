// SPDX-License-Identifier: Apache-2.0
// A host's store of files, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cold/files/files_store.h"

namespace kvtier {

inline constexpr int64_t kTimeoutMs = 60'000;
inline constexpr int64_t kDayS = 86'400;
inline const std::string kName = "kvtier/1/alice/model-4096/abcdef";
inline const std::string kFile = "kvtier/1/alice/model-4096/ab/abcdef";

struct Told {
  int status = -1;
  std::string text;
  size_t bytes = 0;
};

// A host's store, asked one thing after the other.
class Host {
 public:
  explicit Host(const std::filesystem::path& root, std::shared_ptr<FileSystem> files = nullptr)
      : store_(root, 0, files ? std::move(files) : std::make_shared<FileSystem>(), OnDone, this) {}
  ~Host() { (void)Stop(); }

  [[nodiscard]] FilesStore& store() { return store_; }
  [[nodiscard]] bool Stop() { return store_.Stop(); }
  Told Put(const std::string& name, const std::string& bytes, int64_t ttl_s = kDayS) {
    return Ask([&](uint64_t call) {
      store_.Put(call, name, bytes.data(), bytes.size(), ttl_s, kTimeoutMs);
    });
  }
  // The text is the object.
  Told Get(const std::string& name, size_t bytes) {
    std::string into(bytes + 1, '\0');
    Told told = Ask([&](uint64_t call) { store_.Get(call, name, into.data(), bytes, kTimeoutMs); });
    if (told.status == KVT_COLD_OK) told.text = into.substr(0, told.bytes);
    return told;
  }
  // A digit for each name.
  std::string Exists(std::vector<std::string> names, bool each = false,
                     int64_t timeout_ms = kTimeoutMs) {
    Told told = Ask([&](uint64_t call) { store_.Exists(call, names, each, timeout_ms); });
    if (told.status != KVT_COLD_OK) return told.text;
    for (char& present : told.text) present = static_cast<char>(present + '0');
    return told.text;
  }
  Told Remove(std::vector<std::string> names) {
    return Ask([&](uint64_t call) { store_.Remove(call, names, kTimeoutMs); });
  }
  // Goes on until nothing is left; how many calls that took, or the error.
  Told RemoveAll(const std::string& prefix) {
    uint64_t cursor = 0;
    for (size_t calls = 1;; ++calls) {
      Told told = Ask([&](uint64_t call) { store_.RemoveSome(call, prefix, cursor, kTimeoutMs); });
      if (told.status != KVT_COLD_OK) return told;
      std::memcpy(&cursor, told.text.data(), sizeof(cursor));
      told.bytes = calls;
      if (cursor == 0) return told;
    }
  }
  std::future<Told> Begin(const std::function<void(uint64_t)>& call) {
    std::future<Told> told = Make(call);
    store_.Send();
    return told;
  }
  // Without sending it.
  std::future<Told> Make(const std::function<void(uint64_t)>& call) {
    uint64_t number = 0;
    std::future<Told> told;
    {
      const std::lock_guard lock(mutex_);
      number = next_++;
      told = calls_[number].get_future();
    }
    call(number);
    return told;
  }

 private:
  Told Ask(const std::function<void(uint64_t)>& call) { return Begin(call).get(); }
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int /*more*/) {
    auto* const self = static_cast<Host*>(context);
    const std::lock_guard lock(self->mutex_);
    const auto* const text = static_cast<const char*>(data);
    self->calls_.at(call).set_value(
        {.status = status, .text = std::string(text, text == nullptr ? 0 : bytes), .bytes = bytes});
    self->calls_.erase(call);
  }

  std::mutex mutex_;
  uint64_t next_ = 1;
  std::map<uint64_t, std::promise<Told>> calls_;
  FilesStore store_;
};

}  // namespace kvtier

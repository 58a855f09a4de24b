// SPDX-License-Identifier: Apache-2.0
// Waits for the connections of libcurl: only those that have something to do are looked at, so that
// many of them cost no more than a few.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

namespace kvtier {

// One thread, but for Wake. Handles are libcurl's easy handles, which are the caller's.
class CurlLoop {
 public:
  struct Ended {
    void* handle = nullptr;
    int code = 0;  // CURLcode
  };

  // Keeps so many idle connections at most.
  explicit CurlLoop(long most_idle);
  ~CurlLoop();
  CurlLoop(const CurlLoop&) = delete;
  CurlLoop& operator=(const CurlLoop&) = delete;

  // False where the system has no more descriptors: nothing works then.
  [[nodiscard]] bool is_good() const { return poll_ >= 0 && wake_ >= 0 && multi_ != nullptr; }
  void Add(void* handle);
  void Remove(void* handle);
  // Returns when something was done, after Wake, or when the time is over.
  void Wait(std::chrono::milliseconds most);
  // The next transfer that has ended; it has been removed.
  [[nodiscard]] std::optional<Ended> TakeEnded();
  // From any thread.
  void Wake() const;

 private:
  using Time = std::chrono::steady_clock::time_point;

  static int OnSocket(void* handle, int socket, int action, void* self, void* known);
  static int OnTimer(void* multi, long ms, void* self);

  void* multi_ = nullptr;
  int poll_ = -1;
  int wake_ = -1;
  std::optional<Time> timer_;
};

}  // namespace kvtier

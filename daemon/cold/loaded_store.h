// SPDX-License-Identifier: Apache-2.0
// A cold store behind a library that is opened at run time (cold_backend.h).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "base/result.h"
#include "daemon/cold/cold_backend.h"
#include "daemon/cold/cold_buffers.h"
#include "daemon/runtime/event_loop.h"
#include "tiers/cold/cold_store.h"

namespace kvtier {

struct LoadedStoreOptions {
  std::string library;  // a path, or a name for the dynamic linker
  std::string endpoint;
  std::string user;
  std::string password;
  std::string password_file;  // for libraries that read it again; empty: none
  uint64_t max_bytes = 0;     // of all hosts' objects, where the library is to bound them
  // Bounds the bytes under way at once, with those of calls that were given up and that the library
  // has not ended yet. Asked at each call.
  std::function<uint64_t()> max_bytes_in_flight;
  // Hears why the library's own sweep has left something out; may be empty.
  std::function<void(const std::string& why)> on_unswept = nullptr;
};

// Event loop only, but for OnDone, which the library calls. Its destruction waits for the library's
// threads, up to some seconds; it leaves the memory of calls that then still hang to the process.
class LoadedStore final : public ColdStore {
 public:
  // Opens the library alone. Errors: kUnavailable "cold_library" (it cannot be opened, or is of
  // another version).
  [[nodiscard]] static Status CheckLibrary(const std::string& library);
  // `loop` is borrowed. Errors: those of CheckLibrary, kInvalidArgument "cold_endpoint".
  [[nodiscard]] static Result<std::unique_ptr<LoadedStore>> Open(const LoadedStoreOptions& options,
                                                                 EventLoop* loop);
  ~LoadedStore() override;

  [[nodiscard]] bool Available() override { return true; }
  void Exists(std::vector<std::string> names, ColdAsk ask, int64_t timeout_ms,
              ExistsDone done) override;
  void Get(std::string name, uint64_t bytes, int64_t timeout_ms, GetDone done) override;
  void Put(std::string name, ColdBytes bytes, ColdPut how, int64_t timeout_ms, Done done) override;
  void Delete(std::vector<std::string> names, int64_t timeout_ms, Done done) override;
  void DeleteSome(std::string prefix, uint64_t cursor, int64_t timeout_ms,
                  DeletedDone done) override;

 private:
  using Bytes = std::vector<std::byte>;
  using Time = std::chrono::steady_clock::time_point;
  // The end of a call.
  struct Answer {
    Bytes data;
    size_t bytes = 0;  // of a get: in the memory that it was given
  };
  using Ended = std::function<void(Result<Answer>)>;
  enum class Kind : uint8_t { kExists, kGet, kPut, kDelete };
  // One call, until the library has ended it.
  struct Call {
    Ended ended;  // empty once the call was given up
    Kind kind = Kind::kExists;
    uint64_t answers_before = 0, unsent_before = 0;  // of calls of its kind
    uint64_t bytes = 0;
    std::shared_ptr<const void> memory;  // that the library reads, or writes
    Time deadline;
  };
  // The end of a call as the library has told it.
  struct Told {
    uint64_t call = 0;
    int status = 0;
    Answer answer;
  };

  LoadedStore(const kvt_cold_backend* backend, const LoadedStoreOptions& options, EventLoop* loop);

  // The call's number, or 0 if too much is under way: `ended` hears of that by a later event.
  [[nodiscard]] uint64_t Begin(Kind kind, uint64_t bytes, int64_t timeout_ms, Ended ended,
                               std::shared_ptr<const void> memory = nullptr);
  [[nodiscard]] static Ended WithoutBytes(Done done);
  static void OnDone(void* context, uint64_t call, int status, const void* data, size_t bytes,
                     int more);
  void SendSoon();
  void PostEndTold();
  void EndTold();
  void End(Told told);
  void EndLate();
  void AwaitDeadline();

  const kvt_cold_backend& backend_;
  const std::function<uint64_t()> max_bytes_;
  const std::function<void(const std::string& why)> on_unswept_;
  EventLoop& loop_;
  ColdBuffers buffers_;
  void* store_ = nullptr;
  std::map<uint64_t, Call> calls_;
  std::set<std::pair<Time, uint64_t>> deadlines_;  // of calls that were not given up
  Timer first_deadline_;                           // or that of a call that has ended
  Time wakes_at_;                                  // while the timer runs
  // By kind, with calls that were given up: answers of the store, and calls that were never sent.
  std::array<uint64_t, 4> answers_{}, unsent_{};
  uint64_t next_call_ = 1;
  uint64_t bytes_ = 0;
  bool sends_soon_ = false;
  std::mutex mutex_;  // guards what follows
  std::deque<Told> told_;
  bool will_end_told_ = false;
  Gate gate_;
  const Gate::Pass pass_;
};

}  // namespace kvtier

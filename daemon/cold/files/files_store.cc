// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/files_store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <utility>

#include "daemon/cold/files/file_question.h"
#include "daemon/cold/files/file_sweep.h"
#include "daemon/cold/tenant_line.h"
#include "daemon/cold/unsure_puts.h"

namespace kvtier {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStopPatience{500};
constexpr std::chrono::seconds kBetweenLooks{60};
// About 5,000 files a second.
constexpr std::chrono::milliseconds kPause{50};

struct Asked {
  std::shared_ptr<FileQuestion> question;
  steady_clock::time_point deadline;
  std::string tenant;
  std::function<void(const FileOutcome&, bool more)> tell;
};

// Threads that ask, and let others help. They may outlive the store, which then has no others.
void AddAskers(const std::shared_ptr<CallThreads>& threads, const Asked& asked, size_t count) {
  const auto work = [weak = std::weak_ptr(threads), asked] {
    asked.question->Ask(
        [&](size_t helpers) {
          const std::shared_ptr<CallThreads> group = weak.lock();
          if (group) AddAskers(group, asked, helpers);
        },
        [&] {
          const std::shared_ptr<CallThreads> group = weak.lock();
          return group && group->OthersWait(asked.tenant);
        });
    return FileOutcome();
  };
  // The thread that ends after this one may have nothing to tell.
  const auto ended = [asked](const FileOutcome& outcome, bool /*more*/) {
    asked.question->Leave(outcome);
    if (const std::optional<FileOutcome> end = asked.question->TakeEnd()) asked.tell(*end, false);
  };
  asked.question->Enter(count);
  threads->Add(std::vector<FileCall>(
      count, {.deadline = asked.deadline, .tenant = asked.tenant, .work = work, .ended = ended}));
}

// Threads that only copy: they fill a memory bus, and more would wake and sleep more often.
constexpr size_t kWhileCopying = 4;

}  // namespace

// Ends the sweeps' waiting. A sweep that hangs may outlive the store.
struct FilesStore::Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_come = false;

  // False at the end.
  [[nodiscard]] bool Wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [this] { return has_come; });
  }
  // Once it has come, the call has ended.
  void UnlessCome(const std::function<void()>& call) {
    const std::lock_guard lock(mutex);
    if (!has_come) call();
  }
  void Come() {
    const std::lock_guard lock(mutex);
    has_come = true;
    changed.notify_all();
  }
};

FilesStore::FilesStore(std::string root, uint64_t max_bytes, std::shared_ptr<FileSystem> files,
                       kvt_cold_done done, void* context)
    : done_(done),
      context_(context),
      objects_(std::make_shared<ObjectFiles>(root, files)),
      ending_(std::make_shared<Ending>()),
      questions_(std::make_shared<CallThreads>(
          CallThreads::Limits{.at_once = 32, .most = 64, .while_copying = 32})),
      reads_(CallThreads::Limits{.at_once = 16, .most = 48, .while_copying = kWhileCopying}),
      writes_(CallThreads::Limits{.at_once = 16, .most = 48, .while_copying = kWhileCopying}),
      sweeps_({.at_once = 1, .most = 1, .while_copying = 1}) {
  StartSweeps(max_bytes, std::move(files), std::move(root));
}

void FilesStore::StartSweeps(uint64_t max_bytes, std::shared_ptr<FileSystem> files,
                             std::string root) {
  const Teller tell = TellerOf(KVT_COLD_NO_CALL);
  const auto work = [max_bytes, files = std::move(files), root = std::move(root), ending = ending_,
                     tell] {
    FileSweep sweep(
        &root, files.get(), max_bytes, [ending] { return ending->Wait(kPause); },
        [] { return std::time(nullptr); });
    while (ending->Wait(kBetweenLooks)) {
      const std::optional<std::string> why = sweep.Look();
      if (why) ending->UnlessCome([&] { tell({.status = KVT_COLD_REFUSED, .text = *why}, false); });
    }
    return FileOutcome();
  };
  const auto ended = [tell](const FileOutcome& outcome, bool more) {
    if (outcome.status != KVT_COLD_OK) tell(outcome, more);
  };
  sweeps_.Add({{.deadline = steady_clock::time_point::max(), .work = work, .ended = ended}});
}

FilesStore::Teller FilesStore::TellerOf(uint64_t number) const {
  return [done = done_, context = context_, number](const FileOutcome& outcome, bool more) {
    const bool has_text = !outcome.text.empty();
    done(context, number, outcome.status, has_text ? outcome.text.data() : nullptr,
         has_text ? outcome.text.size() : outcome.bytes, more ? 1 : 0);
  };
}

void FilesStore::Start(Lane* lane, uint64_t number, int64_t timeout_ms,
                       std::function<FileOutcome()> work, std::string_view tenant) {
  lane->next.push_back({.deadline = steady_clock::now() + std::chrono::milliseconds(timeout_ms),
                        .tenant = std::string(tenant),
                        .work = std::move(work),
                        .ended = TellerOf(number)});
}

// A prefix is told before the caller's time is over, so that its part that is known is of use.
void FilesStore::Exists(uint64_t number, std::vector<std::string> names, bool each,
                        int64_t timeout_ms) {
  const auto now = steady_clock::now();
  const std::chrono::milliseconds timeout(timeout_ms);
  std::string tenant(names.empty() ? std::string_view() : TenantOf(names.front()));
  const Asked asked{.question = std::make_shared<FileQuestion>(
                        objects_, std::move(names), each, now + (each ? timeout : timeout * 3 / 4)),
                    .deadline = now + timeout,
                    .tenant = std::move(tenant),
                    .tell = TellerOf(number)};
  if (!each) clock_.Add(asked.question, asked.tell);
  AddAskers(questions_, asked, 1);
}

void FilesStore::Get(uint64_t number, std::string name, void* into, uint64_t bytes,
                     int64_t timeout_ms) {
  const std::span<std::byte> memory(static_cast<std::byte*>(into), bytes + 1);
  const std::string tenant(TenantOf(name));
  const auto get = [objects = objects_, name = std::move(name), memory] {
    return objects->Get(name, memory);
  };
  Start(&reads_, number, timeout_ms, get, tenant);
}

void FilesStore::Put(uint64_t number, std::string name, const void* data, size_t bytes,
                     int64_t ttl_s, int64_t timeout_ms) {
  const std::span<const std::byte> memory(static_cast<const std::byte*>(data), bytes);
  std::erase_if(puts_, [](const auto& put) { return put.second.expired(); });
  std::weak_ptr<const void>& put = puts_[name];
  std::shared_ptr<const void> under_way = put.lock();
  if (!under_way) put = under_way = std::make_shared<bool>();
  Start(&writes_, number, timeout_ms,
        [objects = objects_, name = std::move(name), memory, ttl_s,
         under_way = std::move(under_way)] { return objects->Put(name, memory, ttl_s); });
}

// A put that was given up may end after this, and would undo it.
void FilesStore::Remove(uint64_t number, std::vector<std::string> names, int64_t timeout_ms) {
  const bool may_come = std::ranges::any_of(names, [this](const std::string& name) {
    const auto put = puts_.find(name);
    return put != puts_.end() && !put->second.expired();
  });
  Start(&writes_, number, timeout_ms, [objects = objects_, names = std::move(names), may_come] {
    FileOutcome outcome = objects->Remove(names);
    if (!may_come || outcome.status != KVT_COLD_OK) return outcome;
    return FileOutcome{.status = KVT_COLD_BUSY, .text = std::string(UnsurePuts::kWhy)};
  });
}

// A write that was given up may end at any time, and would put back what an erasure removes.
void FilesStore::RemoveSome(uint64_t number, std::string prefix, uint64_t cursor,
                            int64_t timeout_ms) {
  if (writes_.threads.Hangs()) {
    constexpr std::string_view kWhy = "a write that was given up has not ended";
    return done_(context_, number, KVT_COLD_UNAVAILABLE, kWhy.data(), kWhy.size(), 0);
  }
  Start(&writes_, number, timeout_ms, [objects = objects_, prefix = std::move(prefix), cursor] {
    return objects->RemoveSome(prefix, cursor);
  });
}

void FilesStore::Send() {
  for (Lane* const lane : {&reads_, &writes_}) {
    if (!lane->next.empty()) lane->threads.Add(std::exchange(lane->next, {}));
  }
}

bool FilesStore::Stop() {
  ending_->Come();
  clock_.Stop();
  const auto deadline = steady_clock::now() + kStopPatience;
  bool all_ended = true;
  for (CallThreads* const threads :
       {questions_.get(), &reads_.threads, &writes_.threads, &sweeps_}) {
    all_ended = threads->Stop(deadline) && all_ended;
  }
  return all_ended;
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <liburing.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/posix.h"
#include "base/result.h"
#include "tiers/storage/io_engine.h"

namespace kvtier {
namespace {

// Requests in flight at once, and one entry for the wake-up.
constexpr uint32_t kMaxRequests = 255;
constexpr uint32_t kRingEntries = kMaxRequests + 1;
constexpr uint64_t kWakeTag = UINT64_MAX;

// How long memory waits to be registered while there are always requests.
constexpr std::chrono::seconds kLongestWaitOfMemory(1);

// The best set of flags the kernel takes. Task work runs only where the thread waits (6.1 on), or
// at least without interrupting it (5.19 on).
int InitRing(io_uring* ring) {
  constexpr std::array<uint32_t, 3> kFlagSets = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0};
  int outcome = -EINVAL;
  for (const uint32_t flags : kFlagSets) {
    io_uring_params params{};
    params.flags = flags;
    outcome = ::io_uring_queue_init_params(kRingEntries, ring, &params);
    if (outcome != -EINVAL) break;
  }
  return outcome;
}

bool HasNeededOperations(io_uring* ring) {
  io_uring_probe* probe = ::io_uring_get_probe_ring(ring);
  if (probe == nullptr) return false;
  bool all = true;
  for (const int operation : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                              IORING_OP_WRITE_FIXED, IORING_OP_FSYNC}) {
    all = all && ::io_uring_opcode_supported(probe, operation);
  }
  ::io_uring_free_probe(probe);
  return all;
}

Error Refused(int outcome, std::string_view what) {
  return {ErrorCode::kUnsupported, "io_uring_refused",
          fmt::format("{}: {}", what, ErrnoName(-outcome))};
}

class UringEngine final : public IoEngine {
 public:
  UringEngine(const IoEngineOptions& options, EventQueue* loop)
      : options_(options),
        loop_(loop),
        completions_(loop, options.executor),
        queue_(kMaxRequests) {}

  // Takes `*files` on success. The ring belongs to its thread from its making on (SINGLE_ISSUER).
  Status Start(std::vector<EngineFile>* files) {
    wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!wake_fd_.valid()) {
      return tl::unexpected<Error>(ErrnoError(ErrorCode::kIoError, errno, "eventfd"));
    }
    std::promise<Status> started;
    std::future<Status> outcome = started.get_future();
    thread_ = std::thread([this, files, started = std::move(started)]() mutable {
      const Status status = Open();
      if (status) files_ = std::move(*files);
      started.set_value(status);
      if (status) Serve();
    });
    pthread_setname_np(thread_.native_handle(), "disk-ring");
    Status status = outcome.get();
    if (!status) thread_.join();
    return status;
  }

  ~UringEngine() override {
    if (!thread_.joinable()) return;
    WakeAfter([this] { stopping_ = true; });
    thread_.join();
  }

  [[nodiscard]] std::string_view name() const override { return "io_uring"; }

  void Submit(IoRequest request) override {
    WakeAfter([&] { inbox_.push_back(std::move(request)); });
  }

  void RegisterMemory(std::span<std::byte> memory) override {
    WakeAfter([&] { memory_inbox_.push_back(memory); });
  }

  void UnregisterFrom(std::byte* from, std::function<void()> done) override {
    WakeAfter([&] { cuts_inbox_.push_back({from, std::move(done)}); });
  }

 private:
  struct Cut {
    std::byte* from = nullptr;
    std::function<void()> done;
  };

  // --- event loop ---

  // Changes the state that the ring's thread reads, and wakes it if it waits. A burst of requests
  // costs one wake-up.
  template <typename Change>
  void WakeAfter(Change change) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      change();
      wake = std::exchange(ring_waits_, false);
    }
    const uint64_t one = 1;
    if (wake) KVT_CHECK(::write(wake_fd_.get(), &one, sizeof(one)) == sizeof(one));
  }

  // --- ring thread ---

  // An error here is no fault of the disk: kernels and sandboxes refuse io_uring, and the caller
  // may go on with the pread engine. Nothing of the ring is left behind then.
  Status Open() {
    if (const int outcome = InitRing(&ring_); outcome < 0) {
      return tl::unexpected<Error>(Refused(outcome, "io_uring_setup"));
    }
    if (!HasNeededOperations(&ring_)) {
      ::io_uring_queue_exit(&ring_);
      return tl::unexpected<Error>(Refused(-EOPNOTSUPP, "io_uring_probe"));
    }
    may_register_ = ::io_uring_register_buffers_sparse(&ring_, kMaxRegisteredEntries) == 0;
    slots_.resize(kMaxRequests);
    for (uint32_t i = kMaxRequests; i > 0; --i) free_slots_.push_back(i - 1);
    return {};
  }

  void Serve() {
    ListenForWake();
    std::vector<IoCompletion> completed;
    while (true) {
      TakeInbox();
      if (stop_seen_) completions_.Deliver(queue_.CancelWaiting());
      StartWaiting();
      // The disk goes on with its next requests while the loop hears of the last.
      if (!completed.empty()) {
        CheckSubmitted(::io_uring_submit(&ring_));
        completions_.Deliver(std::move(completed));
      }
      if (stop_seen_ && IsIdle()) break;
      if (!stop_seen_) RegisterNext();
      SubmitAndWait();
      completed = Reap();
    }
    ::io_uring_queue_exit(&ring_);
  }

  // The lock is held for two swaps only, so that the event loop never waits for a system call.
  void TakeInbox() {
    std::vector<IoRequest> requests;
    std::vector<std::span<std::byte>> memory;
    std::vector<Cut> cuts;
    {
      const std::lock_guard lock(mutex_);
      requests.swap(inbox_);
      memory.swap(memory_inbox_);
      cuts.swap(cuts_inbox_);
      stop_seen_ = stopping_;
    }
    for (IoRequest& request : requests) queue_.Push(std::move(request));
    if (unregistered_.empty() && !memory.empty()) waits_since_ = std::chrono::steady_clock::now();
    unregistered_.insert(unregistered_.end(), memory.begin(), memory.end());
    for (Cut& cut : cuts) Unregister(&cut);
  }

  // Memory that came before and waits to be registered is cut, too; none comes before `done`.
  // Requests that were submitted keep the registration that they began with, of pages that stay.
  void Unregister(Cut* cut) {
    for (std::span<std::byte>& memory : unregistered_) {
      const auto kept = cut->from - std::min(cut->from, memory.data());
      memory = memory.first(std::min(memory.size(), static_cast<size_t>(kept)));
    }
    CheckSubmitted(::io_uring_submit(&ring_));
    for (const RegisteredMemory::Entry& entry : registered_.CutFrom(cut->from)) {
      const int outcome = Update(entry);
      if (outcome >= 0 || entry.memory.empty()) continue;
      // The kernel has the whole of it still, which must not be used.
      (void)registered_.CutFrom(entry.memory.data());
      Unregistered(entry.memory.size(), outcome);
    }
    loop_->Post(std::move(cut->done));
  }

  // No address stands for no memory.
  [[nodiscard]] int Update(const RegisteredMemory::Entry& entry) {
    const bool none = entry.memory.empty();
    const iovec vector{none ? nullptr : entry.memory.data(), entry.memory.size()};
    const __u64 no_tag = 0;
    return ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(entry.number),
                                                  &vector, &no_tag, 1);
  }

  [[nodiscard]] bool IsIdle() const { return free_slots_.size() == kMaxRequests; }

  // The kernel pins the pages of memory that it registers, which takes long for gigabytes. After a
  // start the host tier grows slice by slice, and the first reads would wait for all of them: so
  // requests go first, and then one slice at a time.
  void RegisterNext() {
    if (unregistered_.empty()) return;
    const auto waited = std::chrono::steady_clock::now() - waits_since_;
    if (!IsIdle() && waited < kLongestWaitOfMemory) return;
    CheckSubmitted(::io_uring_submit(&ring_));
    Register(unregistered_.front());
    unregistered_.pop_front();
    waits_since_ = std::chrono::steady_clock::now();
  }

  void Register(std::span<std::byte> memory) {
    if (!may_register_) return Unregistered(memory.size(), -EOPNOTSUPP);
    for (const RegisteredMemory::Entry& entry : registered_.Plan(memory)) {
      const int outcome = Update(entry);
      if (outcome < 0) return Unregistered(entry.memory.size(), outcome);
      registered_.Add(entry);
    }
  }

  // I/O to such memory works, at the price of pinning its pages each time.
  void Unregistered(uint64_t bytes, int outcome) {
    may_register_ = false;
    if (std::exchange(refusal_told_, true) || !options_.log) return;
    std::string note = fmt::format(
        "io_uring: the kernel refused to register {} of memory ({}); disk I/O works, a little "
        "slower{}",
        FormatByteSize(bytes), ErrnoName(-outcome),
        outcome == -ENOMEM ? "; raise RLIMIT_MEMLOCK (LimitMEMLOCK=) to the arena's size" : "");
    loop_->Post([log = options_.log, note = std::move(note)] { log(note); });
  }

  void StartWaiting() {
    while (queue_.CanTake()) {
      const uint32_t slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot].request = queue_.Take();
      Prepare(slot);
    }
  }

  // Queues the slot's next transfer. There is always an entry for it: fewer requests are under way
  // than the ring holds.
  void Prepare(uint32_t slot) {
    const IoRequest& r = slots_[slot].request;
    std::byte* const data = r.data + r.moved_bytes;
    const uint64_t offset = r.offset + r.moved_bytes;
    const uint64_t asked = std::min(r.bytes - r.moved_bytes, kMaxTransferBytes);
    const auto length = static_cast<unsigned>(asked);
    const int file = files_[r.file].fd.get();
    slots_[slot].asked_bytes = asked;
    const int buffer = asked > 0 ? registered_.Find(data, asked) : kNotRegistered;
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    KVT_CHECK(sqe != nullptr);
    if (r.kind == IoKind::kSync) {
      ::io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
    } else if (r.kind == IoKind::kRead && buffer != kNotRegistered) {
      ::io_uring_prep_read_fixed(sqe, file, data, length, offset, buffer);
    } else if (r.kind == IoKind::kRead) {
      ::io_uring_prep_read(sqe, file, data, length, offset);
    } else if (buffer != kNotRegistered) {
      ::io_uring_prep_write_fixed(sqe, file, data, length, offset, buffer);
    } else {
      ::io_uring_prep_write(sqe, file, data, length, offset);
    }
    ::io_uring_sqe_set_data64(sqe, slot);
  }

  void ListenForWake() {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    KVT_CHECK(sqe != nullptr);
    ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_count_, sizeof(wake_count_), 0);
    ::io_uring_sqe_set_data64(sqe, kWakeTag);
  }

  // Waits for a completion (the wake-up is one too) unless something has come in meanwhile.
  void SubmitAndWait() {
    bool wait = false;
    {
      const std::lock_guard lock(mutex_);
      wait = inbox_.empty() && memory_inbox_.empty() && cuts_inbox_.empty() &&
             stopping_ == stop_seen_ && (unregistered_.empty() || !IsIdle());
      ring_waits_ = wait;
    }
    CheckSubmitted(::io_uring_submit_and_wait(&ring_, wait ? 1 : 0));
    const std::lock_guard lock(mutex_);
    ring_waits_ = false;
  }

  // Requests that could not be submitted now are submitted next time.
  static void CheckSubmitted(int outcome) {
    KVT_CHECK(outcome >= 0 || outcome == -EINTR || outcome == -EAGAIN || outcome == -EBUSY);
  }

  // Takes all that has completed without waiting. The wake-up read is armed anew each time, since
  // it is a request like the others and ends with the first wake-up.
  [[nodiscard]] std::vector<IoCompletion> Reap() {
    std::vector<IoCompletion> completed;
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const uint64_t tag = ::io_uring_cqe_get_data64(cqe);
      const int64_t outcome = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (tag == kWakeTag) {
        ListenForWake();
      } else {
        Complete(static_cast<uint32_t>(tag), outcome, &completed);
      }
    }
    return completed;
  }

  void Complete(uint32_t slot, int64_t outcome, std::vector<IoCompletion>* completed) {
    IoRequest& request = slots_[slot].request;
    Status status;
    if (!request.Advance(outcome, slots_[slot].asked_bytes, &status)) return Prepare(slot);
    queue_.Finish(request);
    completed->push_back(request.End(std::move(status)));
    request = {};
    free_slots_.push_back(slot);
  }

  struct Slot {
    IoRequest request;
    uint64_t asked_bytes = 0;
  };

  std::vector<EngineFile> files_;  // kept open
  const IoEngineOptions options_;
  EventQueue* const loop_;
  IoCompletionQueue completions_;
  UniqueFd wake_fd_;
  std::thread thread_;

  std::mutex mutex_;  // guards what both threads touch
  std::vector<IoRequest> inbox_;
  std::vector<std::span<std::byte>> memory_inbox_;
  std::vector<Cut> cuts_inbox_;
  bool stopping_ = false;
  bool ring_waits_ = false;

  // The ring thread's own.
  io_uring ring_{};
  uint64_t wake_count_ = 0;
  bool stop_seen_ = false;
  bool may_register_ = false;
  bool refusal_told_ = false;
  RegisteredMemory registered_;
  std::deque<std::span<std::byte>> unregistered_;
  std::chrono::steady_clock::time_point waits_since_{};  // the next of `unregistered_`
  IoQueue queue_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
};

}  // namespace

Result<std::vector<std::unique_ptr<BlockFile>>> MakeUringBlockFiles(std::vector<EngineFile>* files,
                                                                    const IoEngineOptions& options,
                                                                    EventQueue* loop) {
  std::vector<uint64_t> file_bytes;
  for (const EngineFile& file : *files) file_bytes.push_back(file.bytes);
  auto engine = std::make_shared<UringEngine>(options, loop);
  KVT_RETURN_IF_ERROR(engine->Start(files));
  return MakeBlockFiles(std::move(engine), file_bytes);
}

}  // namespace kvtier

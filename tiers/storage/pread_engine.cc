// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "tiers/storage/io_engine.h"

namespace kvtier {
namespace {

// Runs requests on threads that block in pread and pwrite, for kernels and sandboxes that refuse
// io_uring. Submit is called by the event loop; the queue decides for all threads together which
// request is next.
class PreadEngine final : public IoEngine {
 public:
  PreadEngine(std::vector<EngineFile> files, const IoEngineOptions& options, EventQueue* loop)
      : files_(std::move(files)),
        queue_(static_cast<uint32_t>(std::max(options.threads, 1))),
        completions_(loop, options.executor) {
    for (int i = 0; i < std::max(options.threads, 1); ++i) {
      threads_.emplace_back([this] { Serve(); });
      pthread_setname_np(threads_.back().native_handle(), ("disk-" + std::to_string(i)).c_str());
    }
  }

  // Requests that wait end as cancelled; those that a thread has begun run to their end, because
  // the kernel may still write into their buffers.
  ~PreadEngine() override {
    std::vector<IoCompletion> cancelled;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      cancelled = queue_.CancelWaiting();
    }
    wake_.notify_all();
    completions_.Deliver(std::move(cancelled));
    for (std::thread& thread : threads_) thread.join();
  }

  [[nodiscard]] std::string_view name() const override { return "pread"; }

  void Submit(IoRequest request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.Push(std::move(request));
    }
    wake_.notify_one();
  }

  // Registration only saves io_uring the pinning of pages.
  void RegisterMemory(std::span<std::byte>) override {}
  void UnregisterFrom(std::byte*, std::function<void()> done) override { done(); }

 private:
  void Serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || queue_.CanTake(); });
      if (stopping_) return;
      IoRequest request = queue_.Take();
      // Submit wakes one thread for each request; a place that became free may allow a further one.
      if (queue_.CanTake()) wake_.notify_one();
      lock.unlock();
      const Status status = Perform(request);
      std::vector<IoCompletion> completed;
      completed.push_back(request.End(status));
      completions_.Deliver(std::move(completed));
      lock.lock();
      // The place is given up only after the completion was handed on, under the lock again.
      queue_.Finish(request);
    }
  }

  // A call may move less than asked; IoRequest::Advance decides whether to go on from there.
  [[nodiscard]] Status Perform(IoRequest& request) const {
    Status status;
    while (true) {
      const uint64_t asked = std::min(request.bytes - request.moved_bytes, kMaxTransferBytes);
      if (request.Advance(CallOnce(request, asked), asked, &status)) return status;
    }
  }

  [[nodiscard]] int64_t CallOnce(const IoRequest& request, uint64_t asked) const {
    const int fd = files_[request.file].fd.get();
    std::byte* const data = request.data + request.moved_bytes;
    const auto offset = static_cast<off_t>(request.offset + request.moved_bytes);
    int64_t outcome = 0;
    switch (request.kind) {
      case IoKind::kRead:
        outcome = ::pread(fd, data, asked, offset);
        break;
      case IoKind::kWrite:
        outcome = ::pwrite(fd, data, asked, offset);
        break;
      case IoKind::kSync:
        outcome = ::fdatasync(fd);
        break;
    }
    return outcome < 0 ? -errno : outcome;
  }

  const std::vector<EngineFile> files_;
  std::mutex mutex_;  // guards the two below
  IoQueue queue_;
  bool stopping_ = false;
  std::condition_variable wake_;
  IoCompletionQueue completions_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<std::unique_ptr<BlockFile>> MakePreadBlockFiles(std::vector<EngineFile> files,
                                                            const IoEngineOptions& options,
                                                            EventQueue* loop) {
  std::vector<uint64_t> file_bytes;
  for (const EngineFile& file : files) file_bytes.push_back(file.bytes);
  return MakeBlockFiles(std::make_shared<PreadEngine>(std::move(files), options, loop), file_bytes);
}

}  // namespace kvtier

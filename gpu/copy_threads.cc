// SPDX-License-Identifier: Apache-2.0
#include "gpu/copy_threads.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "gpu/fast_copy.h"

namespace kvtier {

// A request under way. The position and the count are guarded by the mutex; the rest is constant.
struct CopyThreads::Job {
  CopyRequest request;
  std::byte* pool = nullptr;
  size_t next_copy = 0;
  uint64_t next_offset = 0;  // within that copy
  int pieces_under_way = 0;
  std::optional<uint64_t> counting;  // its number there, if it counts

  [[nodiscard]] bool AllTaken() const { return next_copy == request.copies.size(); }
};

// From a place in one copy of a job onwards, over as many copies as `bytes` last.
struct CopyThreads::Piece {
  std::shared_ptr<Job> job;
  size_t copy = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  void Perform() const {
    size_t i = copy;
    uint64_t skip = offset;
    for (uint64_t left = bytes; left > 0; ++i, skip = 0) {
      const BlockCopy& block = job->request.copies[i];
      const uint64_t count = std::min(left, block.bytes - skip);
      std::byte* const in_pool = job->pool + block.pool_offset + skip;
      std::byte* const in_host = block.host + skip;
      if (job->request.direction == CopyDirection::kPoolToHost) {
        FastCopy(in_host, in_pool, count);
      } else {
        FastCopy(in_pool, in_host, count);
      }
      left -= count;
    }
  }
};

CopyThreads::CopyThreads(int threads, EventQueue* loop) : loop_(loop) {
  KVT_CHECK(threads > 0);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), ("copy-" + std::to_string(i)).c_str());
  }
}

CopyThreads::~CopyThreads() {
  std::vector<std::shared_ptr<Job>> cancelled;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Queue& queue : queues_) {
      cancelled.insert(cancelled.end(), queue.begin(), queue.end());
      queue.clear();
    }
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const auto& job : cancelled) {
    Count(*job, false);
    Finish(*job, MakeError(ErrorCode::kCancelled, "device_closed", "the copy was not finished"));
  }
}

void CopyThreads::Start(CopyRequest request, std::byte* pool) {
  auto job = std::make_shared<Job>();
  uint64_t bytes = 0;
  for (const BlockCopy& copy : request.copies) bytes += copy.bytes;
  std::erase_if(request.copies, [](const BlockCopy& copy) { return copy.bytes == 0; });
  job->request = std::move(request);
  job->pool = pool;
  if (bytes == 0) return Finish(*job, {});
  const auto priority = static_cast<size_t>(job->request.priority);
  {
    const std::lock_guard lock(mutex_);
    if (!job->request.counted.empty()) {
      job->counting = counting_.Add(std::move(job->request.counted));
    }
    queues_[priority].push_back(std::move(job));
  }
  if (bytes > kCopyPieceBytes) {
    wake_.notify_all();
  } else {
    wake_.notify_one();
  }
}

void CopyThreads::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || MostUrgent() != nullptr; });
    if (stopping_) return;
    const Piece piece = TakePiece();
    lock.unlock();
    piece.Perform();
    lock.lock();
    Job& job = *piece.job;
    job.pieces_under_way -= 1;
    // A job cut off by the destructor is finished by it.
    if (!job.AllTaken() || job.pieces_under_way > 0) continue;
    Count(job, true);
    lock.unlock();
    Finish(job, {});
    lock.lock();
  }
}

CopyThreads::Piece CopyThreads::TakePiece() {
  Queue& queue = *MostUrgent();
  Piece piece{.job = queue.front()};
  Job& job = *piece.job;
  piece.copy = job.next_copy;
  piece.offset = job.next_offset;
  while (!job.AllTaken() && piece.bytes < kCopyPieceBytes) {
    const uint64_t left = job.request.copies[job.next_copy].bytes - job.next_offset;
    const uint64_t count = std::min(left, kCopyPieceBytes - piece.bytes);
    piece.bytes += count;
    job.next_offset += count;
    if (count == left) {
      job.next_copy += 1;
      job.next_offset = 0;
    }
  }
  job.pieces_under_way += 1;
  if (job.AllTaken()) queue.pop_front();
  return piece;
}

CopyThreads::Queue* CopyThreads::MostUrgent() {
  const auto found = std::ranges::find_if(queues_, [](const Queue& q) { return !q.empty(); });
  return found == queues_.end() ? nullptr : &*found;
}

void CopyThreads::Count(const Job& job, bool succeeded) {
  if (job.counting) counting_.Landed(*job.counting, succeeded);
}

void CopyThreads::Finish(Job& job, Status status) {
  loop_->Post([done = std::move(job.request.done), status = std::move(status)] { done(status); });
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "gpu/copy_threads.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier {
namespace {

#if defined(__x86_64__)

// Below this, what is copied is likely to be used from the cache.
constexpr size_t kMinStreamBytes = 32 * 1024;
constexpr size_t kVectorBytes = 32;
constexpr size_t kStepBytes = 4 * kVectorBytes;
// How far ahead the source is fetched; the hardware's own prefetcher stops at page boundaries.
constexpr size_t kPrefetchBytes = 1024;

// Returns the bytes copied: all whole steps. REQUIRES: `to` aligned to a vector.
__attribute__((target("avx2"))) size_t StreamSteps(std::byte* to, const std::byte* from,
                                                   size_t bytes) {
  size_t i = 0;
  for (; i + kStepBytes <= bytes; i += kStepBytes) {
    _mm_prefetch(from + i + kPrefetchBytes, _MM_HINT_NTA);
    _mm_prefetch(from + i + kPrefetchBytes + 64, _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* destination = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(destination, a);
    _mm256_stream_si256(destination + 1, b);
    _mm256_stream_si256(destination + 2, c);
    _mm256_stream_si256(destination + 3, d);
  }
  // Streamed stores are ordered with no other until fenced.
  _mm_sfence();
  return i;
}

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t head =
      (kVectorBytes - reinterpret_cast<uintptr_t>(to) % kVectorBytes) % kVectorBytes;
  std::memcpy(to, from, head);
  const size_t copied = head + StreamSteps(to + head, from + head, bytes - head);
  std::memcpy(to + copied, from + copied, bytes - copied);
}

bool CanStream() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

#endif

}  // namespace

void FastCopy(void* destination, const void* source, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kMinStreamBytes && CanStream()) {
    StreamCopy(static_cast<std::byte*>(destination), static_cast<const std::byte*>(source), bytes);
    return;
  }
#endif
  std::memcpy(destination, source, bytes);
}

namespace {

// Another process may make the file shorter at any time. A mapping of it would then end this
// process with SIGBUS; a system call only comes back with less.
bool CopyFile(int descriptor, const CopyPiece& piece, CopyDirection direction) {
  for (uint64_t done = 0; done < piece.bytes;) {
    const auto offset = static_cast<off_t>(piece.pool_offset + done);
    const ssize_t copied =
        direction == CopyDirection::kPoolToHost
            ? ::pread(descriptor, piece.host + done, piece.bytes - done, offset)
            : ::pwrite(descriptor, piece.host + done, piece.bytes - done, offset);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) return false;
    done += static_cast<uint64_t>(copied);
  }
  return true;
}

// Returns the numbers of the chunk's jobs that failed.
std::vector<uint32_t> Perform(const CopyChunk& chunk, CopyDirection direction) {
  std::vector<uint32_t> failed;
  for (const CopyPiece& piece : chunk.pieces) {
    const int descriptor = chunk.jobs[piece.job]->descriptor;
    if (descriptor >= 0) {
      if (!CopyFile(descriptor, piece, direction)) failed.push_back(piece.job);
    } else if (direction == CopyDirection::kPoolToHost) {
      FastCopy(piece.host, piece.pool, piece.bytes);
    } else {
      FastCopy(piece.pool, piece.host, piece.bytes);
    }
  }
  return failed;
}

uint64_t BytesOf(const CopyRequest& request) {
  uint64_t bytes = 0;
  for (const BlockCopy& copy : request.copies) bytes += copy.bytes;
  return bytes;
}

}  // namespace

CopyThreads::CopyThreads(int threads, EventQueue* loop)
    : loop_(loop), queue_({.chunk_bytes = kCopyChunkBytes}) {
  KVT_CHECK(threads > 0);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), ("copy-" + std::to_string(i)).c_str());
  }
}

CopyThreads::~CopyThreads() {
  std::vector<std::shared_ptr<CopyJob>> cancelled;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    cancelled = queue_.Clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const auto& job : cancelled) {
    Count(*job, false);
    PostDone(std::move(job->request.done),
             MakeError(ErrorCode::kCancelled, "device_closed", "the copy was not finished"));
  }
}

void CopyThreads::Start(CopyRequest request, std::byte* pool, int descriptor) {
  const uint64_t bytes = BytesOf(request);
  if (bytes == 0) return PostDone(std::move(request.done), {});
  {
    const std::lock_guard lock(mutex_);
    std::optional<uint64_t> counting;
    if (!request.counted.empty()) counting = counting_.Add(std::move(request.counted));
    queue_.Add(std::move(request), pool, descriptor).counting = counting;
  }
  if (bytes > kCopyChunkBytes) {
    wake_.notify_all();
  } else {
    wake_.notify_one();
  }
}

void CopyThreads::Work() {
  // Host memory has no rate that holds copies back, so the time does not matter to the queue.
  constexpr int64_t kNoTime = 0;
  std::vector<std::shared_ptr<CopyJob>> ended;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || queue_.MostUrgent().has_value(); });
    if (stopping_) return;
    const CopyDirection direction = *queue_.MostUrgent();
    const std::optional<CopyChunk> chunk = queue_.Take(direction, kNoTime);
    KVT_CHECK(chunk.has_value());
    lock.unlock();
    const std::vector<uint32_t> failed = Perform(*chunk, direction);
    lock.lock();
    for (const uint32_t job : failed) {
      chunk->jobs[job]->outcome =
          MakeError(ErrorCode::kIoError, "lent_memory_failed",
                    "its owner has made it shorter, or it has no pages left");
    }
    Land(*chunk, &ended);
    if (ended.empty()) continue;
    lock.unlock();
    for (const auto& job : ended) PostDone(std::move(job->request.done), job->outcome);
    ended.clear();
    lock.lock();
  }
}

void CopyThreads::Land(const CopyChunk& chunk, std::vector<std::shared_ptr<CopyJob>>* ended) {
  for (const std::shared_ptr<CopyJob>& job : chunk.jobs) {
    job->chunks_under_way -= 1;
    // A job cut off by the destructor is ended by it.
    if (!job->AllTaken() || job->chunks_under_way > 0) continue;
    Count(*job, job->outcome.has_value());
    ended->push_back(job);
  }
}

void CopyThreads::Count(const CopyJob& job, bool succeeded) {
  if (job.counting) counting_.Landed(*job.counting, succeeded);
}

void CopyThreads::PostDone(std::function<void(Status)> done, Status status) {
  loop_->Post([done = std::move(done), status = std::move(status)] { done(status); });
}

}  // namespace kvtier

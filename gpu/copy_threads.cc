// SPDX-License-Identifier: Apache-2.0
#include "gpu/copy_threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "base/result.h"
#include "gpu/copy_queue.h"
#include "gpu/counter_page.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier {
namespace {

#if defined(__x86_64__)

// Smaller copies are likely to be read from the CPU's cache soon.
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

// The pieces from `first` on that belong to the same job.
std::span<const CopyPiece> OfOneJob(const CopyChunk& chunk, size_t first) {
  const std::span<const CopyPiece> pieces = std::span(chunk.pieces).subspan(first);
  const auto end = std::ranges::find_if(
      pieces, [&](const CopyPiece& piece) { return piece.job != pieces.front().job; });
  return pieces.first(static_cast<size_t>(end - pieces.begin()));
}

bool CopyLent(LentMapping* lent, std::span<const CopyPiece> pieces, CopyDirection direction) {
  std::vector<LentMapping::Piece> lent_pieces;
  lent_pieces.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    lent_pieces.push_back({piece.pool_offset, piece.host, piece.bytes});
  }
  if (direction != CopyDirection::kPoolToHost) return lent->Write(lent_pieces);
  return std::ranges::all_of(lent_pieces,
                             [lent](const LentMapping::Piece& piece) { return lent->Read(piece); });
}

// Returns the numbers of the chunk's jobs that failed.
std::vector<uint32_t> Perform(const CopyChunk& chunk, CopyDirection direction) {
  std::vector<uint32_t> failed;
  for (size_t done = 0; done < chunk.pieces.size();) {
    const std::span<const CopyPiece> pieces = OfOneJob(chunk, done);
    done += pieces.size();
    const uint32_t job = pieces.front().job;
    if (LentMapping* const lent = chunk.jobs[job]->lent.get(); lent != nullptr) {
      if (!CopyLent(lent, pieces, direction)) failed.push_back(job);
      continue;
    }
    for (const CopyPiece& piece : pieces) {
      if (direction == CopyDirection::kPoolToHost) {
        FastCopy(piece.host, piece.pool, piece.bytes);
      } else {
        FastCopy(piece.pool, piece.host, piece.bytes);
      }
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

// Shared with the threads, which may outlive the object.
struct CopyThreads::State {
  explicit State(EventQueue* event_loop) : loop(event_loop) {}

  static void Run(const std::shared_ptr<State>& state);
  // Copies a chunk, or lets go of something. Returns false if there is nothing to do.
  bool Work(std::unique_lock<std::mutex>* lock);
  // Takes in that the chunk was copied, but for the jobs that failed. Returns the jobs that are
  // over. REQUIRES: the mutex is held.
  std::vector<std::shared_ptr<CopyJob>> Land(const CopyChunk& chunk,
                                             const std::vector<uint32_t>& failed);
  // Tells of the job's end. REQUIRES: the mutex is not held, since a post may wait.
  void PostEnd(const std::shared_ptr<CopyJob>& job) const;

  EventQueue* const loop;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable progress;
  // Guarded by the mutex, as are the jobs, but for their requests, which are constant until they
  // end.
  CopyQueue queue{{.chunk_bytes = kCopyChunkBytes}};
  CountingOrder counting;
  std::set<std::shared_ptr<CopyJob>> unfinished;
  std::vector<std::shared_ptr<LentMapping>> dropped;
  int threads = 0;
  int posting = 0;  // threads that tell of ends
  bool stopping = false;
  bool given_up = false;  // chunks that land now are of no interest any more
};

void CopyThreads::State::Run(const std::shared_ptr<State>& state) {
  UnblockSignal(SIGBUS);  // for GuardedCopy
  std::unique_lock lock(state->mutex);
  while (state->Work(&lock) || !state->stopping) {
    state->wake.wait(lock, [&] {
      return state->stopping || state->queue.MostUrgent() || !state->dropped.empty();
    });
  }
  --state->threads;
  state->progress.notify_all();
}

bool CopyThreads::State::Work(std::unique_lock<std::mutex>* lock) {
  // Host memory has no rate that holds copies back, so the time does not matter to the queue.
  constexpr int64_t kNoTime = 0;
  if (const std::optional<CopyDirection> direction = queue.MostUrgent()) {
    const std::optional<CopyChunk> chunk = queue.Take(*direction, kNoTime);
    KVT_CHECK(chunk.has_value());
    lock->unlock();
    const std::vector<uint32_t> failed = Perform(*chunk, *direction);
    lock->lock();
    const auto ended = Land(*chunk, failed);
    if (ended.empty()) return true;
    ++posting;
    lock->unlock();
    for (const std::shared_ptr<CopyJob>& job : ended) PostEnd(job);
    lock->lock();
    --posting;
    progress.notify_all();
    return true;
  }
  if (dropped.empty()) return false;
  std::shared_ptr<LentMapping> lent = std::move(dropped.back());
  dropped.pop_back();
  lock->unlock();
  lent.reset();
  lock->lock();
  return true;
}

std::vector<std::shared_ptr<CopyJob>> CopyThreads::State::Land(
    const CopyChunk& chunk, const std::vector<uint32_t>& failed) {
  std::vector<std::shared_ptr<CopyJob>> ended;
  if (given_up) return ended;
  for (const uint32_t job : failed) {
    chunk.jobs[job]->outcome = MakeError(ErrorCode::kIoError, "lent_memory_failed",
                                         "its owner has made it shorter, or it has no pages there");
  }
  for (const std::shared_ptr<CopyJob>& job : chunk.jobs) {
    job->chunks_under_way -= 1;
    // A job that was cut off is ended by Stop.
    if (!job->AllTaken() || job->chunks_under_way > 0) continue;
    if (job->counting) counting.Landed(*job->counting, job->outcome.has_value());
    unfinished.erase(job);
    ended.push_back(job);
  }
  return ended;
}

void CopyThreads::State::PostEnd(const std::shared_ptr<CopyJob>& job) const {
  loop->Post([done = std::move(job->request.done), outcome = job->outcome] { done(outcome); });
}

CopyThreads::CopyThreads(const std::string& name, int threads, EventQueue* loop,
                         std::chrono::milliseconds patience)
    : state_(std::make_shared<State>(loop)), patience_(patience) {
  KVT_CHECK(threads > 0);
  for (int i = 0; i < threads; ++i) {
    try {
      std::thread thread([state = state_] { State::Run(state); });
      const std::lock_guard lock(state_->mutex);
      ++state_->threads;
      pthread_setname_np(thread.native_handle(), (name + "-" + std::to_string(i)).c_str());
      thread.detach();
    } catch (const std::system_error&) {
      if (i == 0) throw;
    }
  }
}

CopyThreads::~CopyThreads() { Stop(); }

void CopyThreads::Stop() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  (void)state_->queue.Clear();
  state_->wake.notify_all();
  // Threads that only let go of memory are not waited for where a patience is given.
  const auto at_rest = [this] {
    const bool all_ended = state_->unfinished.empty() && state_->posting == 0;
    return state_->threads == 0 || (patience_ != kNoEnd && all_ended);
  };
  if (patience_ == kNoEnd) {
    state_->progress.wait(lock, at_rest);
  } else {
    state_->given_up = !state_->progress.wait_for(lock, patience_, at_rest);
    state_->progress.wait(lock, [this] { return state_->posting == 0; });
  }
  const auto cut_off = std::exchange(state_->unfinished, {});
  for (const std::shared_ptr<CopyJob>& job : cut_off) {
    job->outcome = MakeError(ErrorCode::kCancelled, "device_closed", "the copy was not finished");
    if (job->counting) state_->counting.Landed(*job->counting, /*succeeded=*/false);
  }
  lock.unlock();
  for (const std::shared_ptr<CopyJob>& job : cut_off) state_->PostEnd(job);
}

void CopyThreads::Start(CopyRequest request, std::byte* pool, std::shared_ptr<LentMapping> lent) {
  const uint64_t bytes = BytesOf(request);
  if (bytes == 0) {
    return state_->loop->Post([done = std::move(request.done)] { done({}); });
  }
  {
    const std::lock_guard lock(state_->mutex);
    std::optional<uint64_t> counting;
    if (!request.counted.empty()) counting = state_->counting.Add(std::move(request.counted));
    CopyJob& job = state_->queue.Add(std::move(request), pool, std::move(lent));
    job.counting = counting;
    state_->unfinished.insert(job.shared_from_this());
  }
  if (bytes > kCopyChunkBytes) {
    state_->wake.notify_all();
  } else {
    state_->wake.notify_one();
  }
}

void CopyThreads::Drop(std::shared_ptr<LentMapping> lent) {
  const std::lock_guard lock(state_->mutex);
  state_->dropped.push_back(std::move(lent));
  state_->wake.notify_one();
}

}  // namespace kvtier

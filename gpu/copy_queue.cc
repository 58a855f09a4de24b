// SPDX-License-Identifier: Apache-2.0
#include "gpu/copy_queue.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvtier {
namespace {

constexpr auto kBackgroundIndex = static_cast<size_t>(CopyPriority::kBackground);

// Work with a rate is spread evenly, so that no kernel meets all of a millisecond's bytes at once.
constexpr uint64_t kRatedChunksPerSecond = 5000;
constexpr uint64_t kMinRatedChunkBytes = 2 * kMiB;

}  // namespace

CopyJob& CopyQueue::Add(CopyRequest request, std::byte* pool, std::shared_ptr<LentMapping> lent) {
  std::erase_if(request.copies, [](const BlockCopy& copy) { return copy.bytes == 0; });
  KVT_CHECK(!request.copies.empty());
  const auto direction = static_cast<size_t>(request.direction);
  const auto priority = static_cast<size_t>(request.priority);
  auto job = std::make_shared<CopyJob>();
  job->request = std::move(request);
  job->pool = pool;
  job->lent = std::move(lent);
  job->arrival = next_arrival_++;
  Jobs& jobs = jobs_[direction][priority];
  for (const BlockCopy& copy : job->request.copies) jobs.bytes += copy.bytes;
  jobs.push_back(std::move(job));
  return *jobs.back();
}

uint64_t CopyJob::DropUnlessLent() {
  if (!request.is_lent || request.is_lent()) return 0;
  uint64_t bytes = 0;
  for (; !AllTaken(); ++next_copy) {
    bytes += request.copies[next_copy].bytes - std::exchange(next_offset, 0);
  }
  outcome = MakeError(ErrorCode::kCancelled, "not_lent", "the memory's owner has gone");
  return bytes;
}

std::optional<CopyDirection> CopyQueue::MostUrgent() const {
  std::optional<CopyDirection> urgent;
  // The most urgent priority that has requests decides; the first request there of each direction
  // is that direction's earliest.
  for (size_t priority = 0; priority < kCopyPriorityCount && !urgent; ++priority) {
    uint64_t earliest = UINT64_MAX;
    for (size_t direction = 0; direction < jobs_.size(); ++direction) {
      const Jobs& jobs = jobs_[direction][priority];
      if (jobs.empty() || jobs.front()->arrival >= earliest) continue;
      earliest = jobs.front()->arrival;
      urgent = static_cast<CopyDirection>(direction);
    }
  }
  return urgent;
}

bool CopyQueue::Gentle(size_t priority) const {
  return priority == kBackgroundIndex && !background_awaited_;
}

uint64_t CopyQueue::MostBytes(bool gentle) const {
  if (!gentle) return options_.chunk_bytes;
  uint64_t most_bytes = options_.chunk_bytes;
  if (options_.gentle_chunk_bytes > 0) most_bytes = options_.gentle_chunk_bytes;
  if (options_.background_bytes_per_s > 0) {
    const uint64_t rated_bytes = options_.background_bytes_per_s / kRatedChunksPerSecond;
    most_bytes = std::min(most_bytes, std::max(rated_bytes, kMinRatedChunkBytes));
  }
  return std::min(most_bytes, options_.chunk_bytes);
}

std::optional<CopyChunk> CopyQueue::Take(CopyDirection direction, int64_t now_ns, ChunkFill least,
                                         size_t in_flight) {
  ByPriority& queues = jobs_[static_cast<size_t>(direction)];
  const auto urgent = std::ranges::find_if(queues, [](const Jobs& jobs) { return !jobs.empty(); });
  if (urgent == queues.end()) return std::nullopt;
  CopyChunk chunk{.priority = static_cast<CopyPriority>(urgent - queues.begin())};
  const bool gentle = Gentle(static_cast<size_t>(chunk.priority));
  if (gentle && options_.gentle_chunk_bytes > 0 && in_flight > 0) return std::nullopt;
  const bool rated = gentle && options_.background_bytes_per_s > 0;
  if (rated && now_ns < background_start_ns_) return std::nullopt;
  const uint64_t most_bytes = MostBytes(gentle);
  if (least == ChunkFill::kFull && urgent->bytes < most_bytes) return std::nullopt;
  FillChunk(*urgent, most_bytes, &chunk);
  urgent->bytes -= chunk.bytes;
  if (rated) {
    const double seconds =
        static_cast<double>(chunk.bytes) / static_cast<double>(options_.background_bytes_per_s);
    background_start_ns_ =
        std::max(now_ns, background_start_ns_) + static_cast<int64_t>(seconds * 1e9);
  }
  return chunk;
}

void CopyQueue::FillChunk(Jobs& jobs, uint64_t most_bytes, CopyChunk* chunk) {
  while (!jobs.empty()) {
    CopyJob& job = *jobs.front();
    const auto number = static_cast<uint32_t>(chunk->jobs.size());
    jobs.bytes -= job.DropUnlessLent();
    if (!job.AllTaken() && !TakePiece(job, number, most_bytes, chunk)) return;
    chunk->jobs.push_back(jobs.front());
    job.chunks_under_way += 1;
    while (!job.AllTaken()) {
      if (!TakePiece(job, number, most_bytes, chunk)) return;
    }
    jobs.pop_front();
  }
}

bool CopyQueue::TakePiece(CopyJob& job, uint32_t job_number, uint64_t most_bytes,
                          CopyChunk* chunk) {
  if (chunk->pieces.size() == kMaxChunkPieces) return false;
  const BlockCopy& copy = job.request.copies[job.next_copy];
  const uint64_t left = copy.bytes - job.next_offset;
  const uint64_t room = most_bytes - chunk->bytes;
  if (room == 0 || (left > room && !chunk->pieces.empty())) return false;
  const uint64_t bytes = std::min(left, room);
  const uint64_t pool_offset = copy.pool_offset + job.next_offset;
  chunk->pieces.push_back({.pool = job.lent != nullptr ? nullptr : job.pool + pool_offset,
                           .host = copy.host + job.next_offset,
                           .bytes = bytes,
                           .pool_offset = pool_offset,
                           .job = job_number});
  chunk->bytes += bytes;
  job.next_offset += bytes;
  if (bytes == left) {
    job.next_copy += 1;
    job.next_offset = 0;
  }
  return true;
}

int64_t CopyQueue::next_start_ns() const {
  bool background = false;
  for (const ByPriority& queues : jobs_) {
    for (size_t i = 0; i < queues.size(); ++i) {
      if (queues[i].empty()) continue;
      if (!Gentle(i) || options_.background_bytes_per_s == 0) return 0;
      background = true;
    }
  }
  return background ? background_start_ns_ : INT64_MAX;
}

std::vector<std::shared_ptr<CopyJob>> CopyQueue::Clear() {
  std::vector<std::shared_ptr<CopyJob>> left;
  for (ByPriority& queues : jobs_) {
    for (Jobs& jobs : queues) {
      left.insert(left.end(), jobs.begin(), jobs.end());
      jobs.clear();
      jobs.bytes = 0;
    }
  }
  return left;
}

}  // namespace kvtier

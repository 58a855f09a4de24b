// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/digest.h"
#include "base/posix.h"
#include "base/units.h"
#include "gpu/copy_threads.h"
#include "tiers/storage/slot_header.h"
#include "tools/bench/ceiling.h"
#include "tools/bench/codec/bf16_codec.h"
#include "tools/bench/codec/checked_decode.h"
#include "tools/bench/codec/codec_bench.h"

namespace kvtier {
namespace {

// Huge pages, touched.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : bytes_((bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB)) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(2 * kMiB, bytes_)));
    ::madvise(memory_.get(), bytes_, MADV_HUGEPAGE);
    std::memset(memory_.get(), 1, bytes_);
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  uint64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

// What has been read goes to the workers, and the memory it was read to comes back from them.
class Workers {
 public:
  using Work = std::function<void(uint64_t block, uint64_t slot)>;
  Workers(uint32_t threads, uint64_t slots, Work work) : work_(std::move(work)) {
    for (uint64_t i = 0; i < slots; ++i) free_.push_back(i);
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Nothing while no slot is free, unless it may wait.
  std::optional<uint64_t> TakeSlot(bool may_wait) {
    std::unique_lock lock(mutex_);
    if (may_wait) freed_.wait(lock, [this] { return !free_.empty(); });
    if (free_.empty()) return std::nullopt;
    const uint64_t slot = free_.front();
    free_.pop_front();
    return slot;
  }
  void Give(uint64_t block, uint64_t slot) {
    {
      const std::lock_guard lock(mutex_);
      work_queue_.emplace_back(block, slot);
    }
    wake_.notify_one();
  }
  void WaitFor(uint64_t blocks) {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this, blocks] { return done_ == blocks; });
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !work_queue_.empty(); });
      if (work_queue_.empty()) return;
      const auto [block, slot] = work_queue_.front();
      work_queue_.pop_front();
      lock.unlock();
      work_(block, slot);
      lock.lock();
      free_.push_back(slot);
      ++done_;
      freed_.notify_one();
    }
  }

  Work work_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable freed_;
  // Guarded by mutex_.
  std::deque<std::pair<uint64_t, uint64_t>> work_queue_;
  std::deque<uint64_t> free_;
  uint64_t done_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

double ProcessorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Both kinds of slots of the same blocks in one file, the encoded ones behind the raw ones.
class SlotFile {
 public:
  SlotFile(const KvBlocks& blocks, const DiskToPoolWork& work)
      : blocks_(blocks),
        work_(work),
        host_(work.memory_bytes),
        scratch_(std::max(2 * work.queue_bytes, 2 * raw_slot())),
        pool_(blocks.bytes.size()) {}

  [[nodiscard]] Status Write() {
    fd_ = UniqueFd(
        ::open(work_.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600));
    if (!fd_.valid()) {
      return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, work_.path));
    }
    ::unlink(work_.path.c_str());
    std::vector<std::byte> out(2 * blocks_.block_bytes + kIoAlignment);
    for (size_t i = 0; i < blocks_.blocks(); ++i) {
      const auto raw = blocks_.block(i);
      checksums_.push_back(ChecksumPayload(raw));
      sizes_.push_back(EncodeBf16(raw, out).value());
      encoded_slot_ = std::max(encoded_slot_, SlotBytes(sizes_.back()));
    }
    const Memory slot(raw_slot());
    for (size_t i = 0; i < blocks_.blocks(); ++i) {
      std::memcpy(slot.data() + kSlotHeaderBytes, blocks_.block(i).data(), blocks_.block_bytes);
      KVT_RETURN_IF_ERROR(WriteSlot({slot.data(), raw_slot()}, i * raw_slot()));
      const auto place = slot.bytes().subspan(kSlotHeaderBytes, blocks_.block_bytes);
      KVT_CHECK(EncodeBf16(blocks_.block(i), place).has_value());
      KVT_RETURN_IF_ERROR(
          WriteSlot({slot.data(), encoded_slot_}, encoded_offset() + i * encoded_slot_));
    }
    return ::fsync(fd_.get()) == 0
               ? Status{}
               : tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, work_.path));
  }

  // To the host slots, checked, and on to the pool.
  [[nodiscard]] Result<DiskToPoolRate> MeasureRaw() {
    const uint64_t slots = work_.memory_bytes / raw_slot();
    return Measure(host_.bytes(), 0, raw_slot(), slots, [this](uint64_t block, uint64_t slot) {
      const std::span<std::byte> payload(host_.data() + slot * raw_slot() + kSlotHeaderBytes,
                                         blocks_.block_bytes);
      KVT_CHECK(ChecksumPayload(payload) == checksums_[block]);
      Copy(block, payload);
    });
  }
  // To the scratch memory, decoded from there to the host slots, checked, and on to the pool.
  [[nodiscard]] Result<DiskToPoolRate> MeasureEncoded() {
    const uint64_t slots = scratch_.bytes().size() / encoded_slot_;
    const auto decode = [this](uint64_t block, uint64_t slot) {
      const std::span<const std::byte> encoded(
          scratch_.data() + slot * encoded_slot_ + kSlotHeaderBytes, sizes_[block]);
      const uint64_t host_slot = block % (work_.memory_bytes / raw_slot());
      const std::span<std::byte> payload(host_.data() + host_slot * raw_slot() + kSlotHeaderBytes,
                                         blocks_.block_bytes);
      KVT_CHECK(DecodeChecked(encoded, payload) == checksums_[block]);
      Copy(block, payload);
    };
    return Measure(scratch_.bytes(), encoded_offset(), encoded_slot_, slots, decode);
  }

 private:
  [[nodiscard]] uint64_t raw_slot() const { return SlotBytes(blocks_.block_bytes); }
  [[nodiscard]] uint64_t encoded_offset() const { return blocks_.blocks() * raw_slot(); }

  [[nodiscard]] Status WriteSlot(std::span<const std::byte> slot, uint64_t offset) {
    const ssize_t written =
        ::pwrite(fd_.get(), slot.data(), slot.size(), static_cast<off_t>(offset));
    if (written == static_cast<ssize_t>(slot.size())) return {};
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "writing " + work_.path));
  }

  void Copy(uint64_t block, std::span<const std::byte> payload) {
    if (!work_.copy) return;
    FastCopy(pool_.data() + block * blocks_.block_bytes, payload.data(), payload.size());
  }

  [[nodiscard]] Result<DiskToPoolRate> Measure(std::span<std::byte> memory, uint64_t offset,
                                               uint64_t slot_bytes, uint64_t slots,
                                               const Workers::Work& work) {
    DiskToPoolRate rate;
    const double gigabytes = static_cast<double>(blocks_.bytes.size()) / 1e9;
    KVT_ASSIGN_OR_RETURN(const double bare_s,
                         ReadWithIoUring({.path = fmt::format("/proc/self/fd/{}", fd_.get()),
                                          .offset = offset,
                                          .request_bytes = slot_bytes,
                                          .requests = blocks_.blocks(),
                                          .queue_bytes = work_.queue_bytes,
                                          .memory_bytes = memory.size()}));
    rate.raw_gbps = static_cast<double>(slot_bytes * blocks_.blocks()) / 1e9 / bare_s;
    const double cpu_before = ProcessorSeconds();
    const auto start = std::chrono::steady_clock::now();
    {
      Workers workers(work_.workers, slots, work);
      KVT_RETURN_IF_ERROR(ReadAll(memory, offset, slot_bytes, workers));
      workers.WaitFor(blocks_.blocks());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rate.gbps = gigabytes / took.count();
    rate.cpu_s = (ProcessorSeconds() - cpu_before) / gigabytes;
    return rate;
  }

  [[nodiscard]] Status ReadAll(std::span<std::byte> memory, uint64_t offset, uint64_t slot_bytes,
                               Workers& workers) {
    const uint64_t depth = std::max<uint64_t>(1, work_.queue_bytes / slot_bytes);
    io_uring ring{};
    int result = ::io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0);
    if (result < 0) return tl::unexpected(ErrnoError(ErrorCode::kUnsupported, -result, "io_uring"));
    const std::unique_ptr<io_uring, decltype(&::io_uring_queue_exit)> close(&ring,
                                                                            ::io_uring_queue_exit);
    const iovec buffer{memory.data(), std::min<uint64_t>(memory.size(), kGiB)};
    result = ::io_uring_register_buffers(&ring, &buffer, 1);
    if (result < 0) return tl::unexpected(ErrnoError(ErrorCode::kIoError, -result, "registering"));
    std::vector<std::pair<uint64_t, uint64_t>> under_way;  // block, slot
    uint64_t submitted = 0;
    for (uint64_t completed = 0; completed < blocks_.blocks();) {
      while (submitted < blocks_.blocks() && submitted - completed < depth) {
        const auto slot = workers.TakeSlot(submitted == completed);
        if (!slot) break;
        io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
        ::io_uring_prep_read_fixed(sqe, fd_.get(), memory.data() + *slot * slot_bytes,
                                   static_cast<unsigned>(slot_bytes),
                                   offset + submitted * slot_bytes, 0);
        sqe->user_data = submitted << 32 | *slot;
        ++submitted;
      }
      result = ::io_uring_submit_and_wait(&ring, 1);
      if (result < 0) return tl::unexpected(ErrnoError(ErrorCode::kIoError, -result, "submitting"));
      io_uring_cqe* cqe = nullptr;
      while (::io_uring_peek_cqe(&ring, &cqe) == 0) {
        if (cqe->res != static_cast<int>(slot_bytes)) {
          return MakeError(ErrorCode::kIoError, "short_io", fmt::format("read gave {}", cqe->res));
        }
        workers.Give(cqe->user_data >> 32, cqe->user_data & 0xffffffff);
        ::io_uring_cqe_seen(&ring, cqe);
        ++completed;
      }
    }
    return {};
  }

  const KvBlocks& blocks_;
  const DiskToPoolWork& work_;
  Memory host_;
  Memory scratch_;
  Memory pool_;
  UniqueFd fd_;
  uint64_t encoded_slot_ = 0;
  std::vector<PayloadChecksum> checksums_;
  std::vector<size_t> sizes_;
};

}  // namespace

Result<DiskToPoolRates> MeasureDiskToPool(const KvBlocks& blocks, const DiskToPoolWork& work) {
  SlotFile file(blocks, work);
  KVT_RETURN_IF_ERROR(file.Write());
  DiskToPoolRates rates;
  for (uint32_t i = 0; i < work.repetitions; ++i) {
    KVT_ASSIGN_OR_RETURN(const DiskToPoolRate raw, file.MeasureRaw());
    KVT_ASSIGN_OR_RETURN(const DiskToPoolRate encoded, file.MeasureEncoded());
    rates.raw.push_back(raw);
    rates.encoded.push_back(encoded);
  }
  return rates;
}

}  // namespace kvtier

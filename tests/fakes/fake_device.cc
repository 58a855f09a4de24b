// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_device.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {
namespace {

constexpr int kGarbage = 0xdb;

std::byte* PoolSide(const CopyRequest& request, const BlockCopy& copy) {
  return static_cast<FakeDevicePool*>(request.pool)->data() + copy.pool_offset;
}

std::byte* Source(const CopyRequest& request, const BlockCopy& copy) {
  return request.direction == CopyDirection::kPoolToHost ? PoolSide(request, copy) : copy.host;
}

std::byte* Destination(const CopyRequest& request, const BlockCopy& copy) {
  return request.direction == CopyDirection::kPoolToHost ? copy.host : PoolSide(request, copy);
}

// One checksum over the sources of all copies.
uint64_t ChecksumSources(const CopyRequest& request) {
  uint64_t sum = 0;
  for (const BlockCopy& copy : request.copies) {
    sum = std::rotl(sum, 1) ^ ChecksumHeader({Source(request, copy), copy.bytes});
  }
  return sum;
}

bool InBounds(const CopyRequest& request) {
  return std::ranges::all_of(request.copies, [&](const BlockCopy& copy) {
    return copy.pool_offset <= request.pool->bytes() &&
           copy.bytes <= request.pool->bytes() - copy.pool_offset;
  });
}

}  // namespace

FakeDevicePool::FakeDevicePool(FakeDevice* device, std::shared_ptr<AlignedBytes> memory, int fd)
    : device_(device), memory_(std::move(memory)), fd_(fd) {
  device_->pools_.push_back(this);
  device_->allocated_bytes_ += bytes();
}

FakeDevicePool::~FakeDevicePool() {
  std::erase(device_->pools_, this);
  std::erase(device_->lent_, this);
  device_->allocated_bytes_ -= bytes();
}

bool FakeDevicePool::is_lent() const {
  return std::ranges::find(device_->lent_, this) != device_->lent_.end();
}

void FakeDevicePool::WhenReady(std::function<void()> ready) {
  if (!device_->pools_take_time_) return ready();
  device_->loop_->PostFrom(device_->source_, std::move(ready));
}

FakeDevice::FakeDevice(FakeLoop* loop, uint64_t total_bytes, uint64_t seed)
    : loop_(loop),
      source_(loop->AddSource(FakeLoop::Order::kAny)),
      total_bytes_(total_bytes),
      random_(seed) {}

FakeDevice::~FakeDevice() { KVT_CHECK(pools_.empty()); }

DeviceInfo FakeDevice::info() const {
  return DeviceInfo{.kind = "fake",
                    .name = "fake device",
                    .ordinal = ordinal_,
                    .total_bytes = total_bytes_,
                    .neighbours = neighbours_};
}

Result<std::unique_ptr<DevicePool>> FakeDevice::CreatePool(uint64_t bytes) {
  if (bytes > total_bytes_ - allocated_bytes_) {
    return MakeError(ErrorCode::kResourceExhausted, "device_memory");
  }
  return std::make_unique<FakeDevicePool>(this, std::make_shared<AlignedBytes>(bytes, kGarbage),
                                          shared_fd_ >= 0 ? shared_fd_ : next_fd_++);
}

std::unique_ptr<DevicePool> FakeDevice::Reopen(std::shared_ptr<AlignedBytes> memory, int fd) {
  return std::make_unique<FakeDevicePool>(this, std::move(memory), fd);
}

Result<std::unique_ptr<DevicePool>> FakeDevice::Borrow(LentMemory* memory) {
  if (memory->bytes > total_bytes_ - allocated_bytes_) {
    return MakeError(ErrorCode::kInvalidArgument, "bad_region_memory");
  }
  auto pool = std::make_unique<FakeDevicePool>(
      this, std::make_shared<AlignedBytes>(memory->bytes, kGarbage), next_fd_++);
  lent_.push_back(pool.get());
  return pool;
}

FakeDevicePool* FakeDevice::PoolByFd(int fd) const {
  const auto found = std::ranges::find(pools_, fd, &FakeDevicePool::shareable_fd);
  return found == pools_.end() ? nullptr : *found;
}

bool FakeDevice::ShouldFail() {
  if (fail_next_ > 0) {
    --fail_next_;
    return true;
  }
  return random_.Chance(failure_rate_);
}

void FakeDevice::Copy(CopyRequest request) {
  KVT_CHECK(!request.copies.empty());
  KVT_CHECK((request.source != nullptr) == (request.direction == CopyDirection::kPoolToPool));
  if (request.source != nullptr) KVT_CHECK(CheckCopyBounds(request).has_value());
  copies_requested_ += request.copies.size();
  most_copies_ = std::max(most_copies_, request.copies.size());
  if (!InBounds(request)) {
    loop_->PostFrom(source_, [done = std::move(request.done)] {
      done(MakeError(ErrorCode::kInvalidArgument, "copy_out_of_bounds"));
    });
    return;
  }
  const uint64_t source_checksum = ChecksumSources(request);
  for (const BlockCopy& copy : request.copies) {
    std::memset(Destination(request, copy), kGarbage, copy.bytes);
  }
  const uint64_t counting = counting_.Add(std::move(request.counted));
  loop_->PostFrom(source_, [this, request = std::move(request), source_checksum, counting] {
    Complete(request, source_checksum, counting);
  });
}

void FakeDevice::Complete(const CopyRequest& request, uint64_t source_checksum, uint64_t counting) {
  // A region that is copied from unasked may be overwritten by its engine.
  const bool from_region =
      request.source != nullptr && static_cast<FakeDevicePool*>(request.source)->is_lent();
  KVT_CHECK(from_region || ChecksumSources(request) == source_checksum);
  const bool failed = ShouldFail();
  size_t copies = request.copies.size();
  if (failed) copies = random_.Below(copies);
  for (size_t i = 0; i < copies; ++i) {
    const BlockCopy& copy = request.copies[i];
    std::memcpy(Destination(request, copy), Source(request, copy), copy.bytes);
  }
  copies_completed_ += copies;
  counting_.Landed(counting, !failed);
  if (failed) {
    request.done(MakeError(ErrorCode::kInternal, "copy_failed", "injected"));
  } else {
    request.done({});
  }
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_block_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/digest.h"
#include "base/result.h"

namespace kvtier {
namespace {

constexpr int kGarbage = 0xdc;

void CheckAligned(uint64_t offset, const void* address, uint64_t bytes) {
  KVT_CHECK(offset % kIoAlignment == 0);
  KVT_CHECK(bytes % kIoAlignment == 0 && bytes > 0);
  KVT_CHECK(reinterpret_cast<uintptr_t>(address) % kIoAlignment == 0);
}

template <typename Fault>
struct FaultRate {
  Fault fault;
  double rate;
};

template <typename Fault>
Fault Draw(SeededRandom& random, std::initializer_list<FaultRate<Fault>> choices) {
  for (const FaultRate<Fault>& choice : choices) {
    if (random.Chance(choice.rate)) return choice.fault;
  }
  return Fault::kNone;
}

template <typename Fault>
Fault TakeFirst(std::deque<Fault>& script) {
  const Fault fault = script.front();
  script.pop_front();
  return fault;
}

}  // namespace

FakeBlockFile::FakeBlockFile(FakeLoop* loop, uint64_t bytes, uint64_t seed)
    : loop_(loop),
      source_(loop->AddSource(FakeLoop::Order::kAny)),
      contents_(bytes, 0),
      random_(seed) {}

void FakeBlockFile::ScriptWrites(std::vector<WriteFault> faults) {
  scripted_writes_.assign(faults.begin(), faults.end());
}

void FakeBlockFile::ScriptReads(std::vector<ReadFault> faults) {
  scripted_reads_.assign(faults.begin(), faults.end());
}

void FakeBlockFile::ReadAndCheck(uint64_t offset, std::span<std::byte> buffer, IoCheck check,
                                 IoDone done) {
  CheckAligned(offset, buffer.data(), buffer.size());
  KVT_CHECK(offset + buffer.size() <= bytes());
  ++reads_;
  std::memset(buffer.data(), kGarbage, buffer.size());
  PendingRead read{offset, buffer, std::move(check), std::move(done)};
  if (!together_) {
    loop_->PostFrom(source_, [this, read = std::move(read)] { Complete(read); });
    return;
  }
  gathered_.push_back(std::move(read));
  if (gathered_.size() > 1) return;
  loop_->PostFrom(source_, [this] {
    for (const PendingRead& each : std::exchange(gathered_, {})) Complete(each);
  });
}

void FakeBlockFile::Complete(const PendingRead& read) {
  Status status = CarryOutRead(read.offset, read.buffer, DrawReadFault());
  if (status && read.check) read.check();
  read.done(std::move(status));
}

void FakeBlockFile::Write(uint64_t offset, std::span<const std::byte> buffer, IoDone done) {
  CheckAligned(offset, buffer.data(), buffer.size());
  KVT_CHECK(offset + buffer.size() <= bytes());
  ++writes_;
  const uint64_t request = next_request_++;
  pending_writes_[request] = PendingWrite{offset, {buffer.begin(), buffer.end()}};
  std::function<void()> end = [this, request, buffer, done = std::move(done)] {
    const auto node = pending_writes_.extract(request);
    // The caller keeps the bytes as they are until the write is done.
    KVT_CHECK(std::ranges::equal(node.mapped().buffer, buffer));
    done(CarryOut(node.mapped(), DrawWriteFault()));
  };
  if (hold_writes_) return held_writes_.push_back(std::move(end));
  loop_->PostFrom(source_, std::move(end));
}

void FakeBlockFile::LetWritesGo(size_t most) {
  for (; most > 0 && !held_writes_.empty(); --most) {
    loop_->PostFrom(source_, std::move(held_writes_.front()));
    held_writes_.pop_front();
  }
}

void FakeBlockFile::Sync(IoDone done) {
  ++syncs_;
  loop_->PostFrom(source_, [this, sectors = UnsyncedNow(), done = std::move(done)] {
    const bool failed = fail_syncs_ > 0 || random_.Chance(rates_.sync_eio);
    if (fail_syncs_ > 0) --fail_syncs_;
    if (failed) return done(MakeError(ErrorCode::kIoError, sync_reason_, "injected"));
    MakeDurable(sectors);
    done({});
  });
}

WriteFault FakeBlockFile::DrawWriteFault() {
  if (!scripted_writes_.empty()) return TakeFirst(scripted_writes_);
  return Draw<WriteFault>(random_, {{WriteFault::kTorn, rates_.torn_write},
                                    {WriteFault::kLost, rates_.lost_write},
                                    {WriteFault::kMisdirected, rates_.misdirected_write},
                                    {WriteFault::kFlipped, rates_.flipped_write},
                                    {WriteFault::kEio, rates_.write_eio},
                                    {WriteFault::kEnospc, rates_.write_enospc},
                                    {WriteFault::kShort, rates_.short_write}});
}

ReadFault FakeBlockFile::DrawReadFault() {
  if (!scripted_reads_.empty()) return TakeFirst(scripted_reads_);
  return Draw<ReadFault>(random_, {{ReadFault::kFlipped, rates_.flipped_read},
                                   {ReadFault::kEio, rates_.read_eio},
                                   {ReadFault::kShort, rates_.short_read}});
}

// Fewer than all sectors, possibly none.
uint64_t FakeBlockFile::SomePrefix(uint64_t bytes) {
  return random_.Below(bytes / kIoAlignment) * kIoAlignment;
}

void FakeBlockFile::FlipBit(std::span<std::byte> bytes) {
  bytes[random_.Below(bytes.size())] ^= std::byte{1} << random_.Below(8);
}

Status FakeBlockFile::CarryOut(const PendingWrite& write, WriteFault fault) {
  const uint64_t offset = write.offset;
  const std::span<const std::byte> buffer = write.buffer;
  switch (fault) {
    case WriteFault::kNone:
      WriteSectors(offset, buffer);
      return {};
    case WriteFault::kTorn:
      WriteSectors(offset, buffer.first(SomePrefix(buffer.size())));
      return {};
    case WriteFault::kLost:
      return {};
    case WriteFault::kMisdirected: {
      const uint64_t places = (bytes() - buffer.size()) / kIoAlignment + 1;
      WriteSectors(random_.Below(places) * kIoAlignment, buffer);
      return {};
    }
    case WriteFault::kFlipped:
      WriteSectors(offset, buffer);
      FlipBit(contents_.Slice(offset, buffer.size()));
      return {};
    case WriteFault::kEio:
      WriteSectors(offset, buffer.first(SomePrefix(buffer.size())));
      return MakeError(ErrorCode::kIoError, "EIO", "injected");
    case WriteFault::kEnospc:
      return MakeError(ErrorCode::kIoError, "ENOSPC", "injected");
    case WriteFault::kShort:
      WriteSectors(offset, buffer.first(SomePrefix(buffer.size())));
      return MakeError(ErrorCode::kIoError, "short_io", "injected");
  }
  return {};
}

Status FakeBlockFile::CarryOutRead(uint64_t offset, std::span<std::byte> buffer, ReadFault fault) {
  if (fault == ReadFault::kEio) return MakeError(ErrorCode::kIoError, "EIO", "injected");
  const uint64_t bytes = fault == ReadFault::kShort ? SomePrefix(buffer.size()) : buffer.size();
  if (bytes > 0) std::memcpy(buffer.data(), contents_.data() + offset, bytes);
  if (fault == ReadFault::kShort) return MakeError(ErrorCode::kIoError, "short_io", "injected");
  if (fault == ReadFault::kFlipped) FlipBit(buffer);
  return {};
}

void FakeBlockFile::WriteSectors(uint64_t offset, std::span<const std::byte> bytes) {
  for (uint64_t at = 0; at < bytes.size(); at += kIoAlignment) {
    const std::span<std::byte> present = contents_.Slice(offset + at, kIoAlignment);
    const auto [sector, inserted] = unsynced_.try_emplace((offset + at) / kIoAlignment);
    if (inserted) {
      std::ranges::copy(present, sector->second.synced.begin());
      sector->second.synced_version = next_version_ - 1;
    }
    sector->second.version = next_version_++;
    std::memcpy(present.data(), bytes.data() + at, kIoAlignment);
  }
}

std::vector<FakeBlockFile::SectorVersion> FakeBlockFile::UnsyncedNow() {
  std::vector<SectorVersion> sectors;
  sectors.reserve(unsynced_.size());
  for (const auto& [number, unsynced] : unsynced_) {
    SectorVersion& sector = sectors.emplace_back(SectorVersion{number, unsynced.version, {}});
    std::ranges::copy(contents_.Slice(number * kIoAlignment, kIoAlignment),
                      sector.contents.begin());
  }
  return sectors;
}

void FakeBlockFile::MakeDurable(const std::vector<SectorVersion>& sectors) {
  for (const SectorVersion& sector : sectors) {
    const auto unsynced = unsynced_.find(sector.sector);
    if (unsynced == unsynced_.end()) continue;
    if (unsynced->second.version == sector.version) {
      unsynced_.erase(unsynced);
    } else if (unsynced->second.synced_version < sector.version) {
      unsynced->second.synced = sector.contents;
      unsynced->second.synced_version = sector.version;
    }
  }
}

void FakeBlockFile::Wipe(uint64_t from) {
  std::ranges::fill(contents_.Slice(from, contents_.size() - from), std::byte{0});
  unsynced_.erase(unsynced_.lower_bound(from / kIoAlignment), unsynced_.end());
}

void FakeBlockFile::Crash() {
  for (const auto& [request, write] : pending_writes_) {
    if (random_.Chance(0.5))
      WriteSectors(write.offset, std::span(write.buffer).first(SomePrefix(write.buffer.size())));
  }
  pending_writes_.clear();
  gathered_.clear();
  held_writes_.clear();
  for (const auto& [number, unsynced] : unsynced_) {
    if (random_.Chance(0.5)) continue;
    std::ranges::copy(unsynced.synced, contents_.data() + number * kIoAlignment);
  }
  unsynced_.clear();
}

}  // namespace kvtier

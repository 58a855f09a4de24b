// SPDX-License-Identifier: Apache-2.0
// The parts that the tables in kept memory share: the word in which a record gives its state, so
// that a process that dies between any two instructions leaves the old state or the new one; and
// the count of processes that died of a table.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/ids.h"

namespace kvtier {

// Some deaths are chance. A daemon that dies of the blocks that it finds would do so for ever; this
// many are fewer than systemd allows in a minute. A daemon that finds so many begins empty.
inline constexpr uint32_t kMaxUnfinishedAdoptions = 5;

// A table's count of adoptions in a row that have begun and not ended: their daemons died before
// they had looked at everything in the memory, perhaps because of what they found.
class AdoptionCount {
 public:
  [[nodiscard]] uint32_t unfinished_adoptions() const { return unfinished_; }
  // A process begins to use the blocks, at most once, and has lived to look at all of them.
  void BeginAdoption() {
    adopting_ = true;
    ++unfinished_;
  }
  void EndAdoption() {
    adopting_ = false;
    unfinished_ = 0;
  }
  // The process ends in order: if it has begun and not ended, that was not because of the blocks.
  void TakeBackAdoption() {
    if (std::exchange(adopting_, false)) --unfinished_;
  }

 protected:
  // `unfinished` lies in the table.
  explicit AdoptionCount(uint32_t* unfinished) : unfinished_(*unfinished) {}

 private:
  uint32_t& unfinished_;
  bool adopting_ = false;
};

// The word of a record that was never used, in memory that is all zeros at first.
inline constexpr uint32_t kEmptyRecordWord = 0;

struct RecordState {
  uint8_t state = 0;  // of the table's own states
  RetentionClass retention = RetentionClass::kMemory;
};

// State and retention share the word. Its upper half is the complement of the lower: a block that
// must not be written to disk does not come to be one that may because some bits have changed.
[[nodiscard]] constexpr uint32_t RecordWord(const RecordState& record) {
  const uint32_t low = record.state | static_cast<uint32_t>(record.retention) << 8;
  return low | (~low & 0xFFFF) << 16;
}

// Nothing for a word that RecordWord does not make.
[[nodiscard]] constexpr std::optional<RecordState> ReadRecordWord(uint32_t word) {
  const RecordState record{static_cast<uint8_t>(word), static_cast<RetentionClass>(word >> 8 & 1)};
  if (word != RecordWord(record)) return std::nullopt;
  return record;
}

// A number that is read before anything vouches for it, likewise with its complement above it.
[[nodiscard]] constexpr uint64_t NumberWord(uint32_t number) {
  return number | static_cast<uint64_t>(~number) << 32;
}

// The order matters to the compiler alone: a process that dies has executed all instructions
// before.
inline void StoreRecordWord(uint32_t* word, uint32_t value) {
  std::atomic_ref(*word).store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace kvtier

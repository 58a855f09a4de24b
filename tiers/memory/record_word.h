// SPDX-License-Identifier: Apache-2.0
// The part that the tables in kept memory share: the word in which a record gives its state, so
// that a process that dies between any two instructions leaves the old state or the new one.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/ids.h"

namespace kvtier {

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

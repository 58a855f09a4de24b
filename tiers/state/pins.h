// SPDX-License-Identifier: Apache-2.0
// Pins of blocks that move, as move-only values: a pin keeps the bytes where they are until the
// value is destroyed, whichever way that comes about.
//
// They must be destroyed before the state that they were taken from. Callbacks that others keep
// (devices, files, executors) may live longer: they point to a value that its owner keeps.
#pragma once

#include <cstdint>
#include <utility>

#include "tiers/directory/pool_blocks.h"
#include "tiers/state/cache_state.h"

namespace kvtier {

// Keeps a block's bytes in its host slot: it is neither evicted from host nor written over. Event
// loop only.
class HostPin {
 public:
  HostPin() = default;
  // REQUIRES: the block is in host.
  HostPin(CacheState* state, EntryIndex entry) : state_(state), entry_(entry) {
    state_->Apply(entry_, BlockEvent::kPinHost);
  }
  HostPin(HostPin&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)), entry_(other.entry_) {}
  HostPin& operator=(HostPin&& other) noexcept {
    if (this == &other) return *this;
    Release();
    state_ = std::exchange(other.state_, nullptr);
    entry_ = other.entry_;
    return *this;
  }
  ~HostPin() { Release(); }

  // The same as destroying it.
  void Release() {
    if (CacheState* const state = std::exchange(state_, nullptr)) {
      state->Apply(entry_, BlockEvent::kUnpinHost);
    }
  }

 private:
  CacheState* state_ = nullptr;
  EntryIndex entry_ = kNoEntry;
};

// A block in host, and its pin.
struct PinnedEntry {
  EntryIndex entry;
  HostPin pin;
};

// Keeps a committed block of a pool in its place while it is copied from. Event loop only.
class PoolPin {
 public:
  PoolPin() = default;
  // REQUIRES: the block is committed and not loading.
  PoolPin(PoolBlocks* blocks, BlockIndex block) : blocks_(blocks), block_(block) {
    blocks_->Pin(block_);
  }
  PoolPin(PoolPin&& other) noexcept
      : blocks_(std::exchange(other.blocks_, nullptr)), block_(other.block_) {}
  PoolPin& operator=(PoolPin&& other) noexcept {
    if (this == &other) return *this;
    Release();
    blocks_ = std::exchange(other.blocks_, nullptr);
    block_ = other.block_;
    return *this;
  }
  ~PoolPin() { Release(); }

  void Release() {
    if (PoolBlocks* const blocks = std::exchange(blocks_, nullptr)) blocks->Unpin(block_);
  }

 private:
  PoolBlocks* blocks_ = nullptr;
  BlockIndex block_ = kNoBlock;
};

}  // namespace kvtier

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

// Owns one pin of a place, which `kTake` took and `kGiveBack` gives back. Event loop only.
template <typename Owner, typename Place, void (*kTake)(Owner*, Place),
          void (*kGiveBack)(Owner*, Place)>
class Pin {
 public:
  Pin() = default;
  // REQUIRES: as the kind of pin says.
  Pin(Owner* owner, Place place) : owner_(owner), place_(place) { kTake(owner, place); }
  Pin(Pin&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), place_(other.place_) {}
  Pin& operator=(Pin&& other) noexcept {
    if (this == &other) return *this;
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    place_ = other.place_;
    return *this;
  }
  ~Pin() { Release(); }

  // The same as destroying it.
  void Release() {
    if (Owner* const owner = std::exchange(owner_, nullptr)) kGiveBack(owner, place_);
  }

 private:
  Owner* owner_ = nullptr;
  Place place_;
};

inline void TakeHostPin(CacheState* state, EntryIndex entry) {
  state->Apply(entry, BlockEvent::kPinHost);
}
inline void GiveBackHostPin(CacheState* state, EntryIndex entry) {
  state->Apply(entry, BlockEvent::kUnpinHost);
}
inline void TakePoolPin(PoolBlocks* blocks, BlockIndex block) { blocks->Pin(block); }
inline void GiveBackPoolPin(PoolBlocks* blocks, BlockIndex block) { blocks->Unpin(block); }

// Keeps a block's bytes in its host slot: it is neither evicted from host nor written over.
// REQUIRES: the block is in host.
using HostPin = Pin<CacheState, EntryIndex, TakeHostPin, GiveBackHostPin>;

// Keeps a committed block of a pool in its place while it is copied from. REQUIRES: the block is
// committed and not loading.
using PoolPin = Pin<PoolBlocks, BlockIndex, TakePoolPin, GiveBackPoolPin>;

// A block in host, and its pin.
struct PinnedEntry {
  EntryIndex entry;
  HostPin pin;
};

}  // namespace kvtier

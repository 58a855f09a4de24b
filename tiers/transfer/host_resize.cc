// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer/host_resize.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "tiers/storage/slot_header.h"

namespace kvtier {
namespace {

// One part: its copy does not keep checksums waiting that the same threads make, and to choose it
// takes the loop some 100 us.
constexpr uint64_t kPartBytes = 32 * kMiB;
constexpr size_t kPartBlocks = 128;

}  // namespace

void HostResize::Begin(uint64_t bytes) {
  if (std::exchange(wanted_bytes_, bytes) != bytes) GoOn();
}

// The size that is being given back is brought to its end before another is taken up.
void HostResize::Pump() {
  if (giving_back_ || !moves_.empty() || !std::exchange(due_, false)) return;
  if (wanted_bytes_ != host_.capacity_bytes()) {
    if (!adoption_.Ended()) return;
    Apply();
  }
  if (state_.env.arena->capacity_bytes() == host_.capacity_bytes()) return;
  const std::optional<uint64_t> slab = host_.LastLeaving();
  if (!slab) return GiveBack();
  const bool went_on = Choose(*slab);
  StartMoves();
  if (went_on && moves_.empty()) GoOn();
}

void HostResize::Apply() {
  HostArena& arena = *state_.env.arena;
  host_.Resize(wanted_bytes_);
  // An arena that has not reached its size yet does not go on to it.
  arena.Resize(std::max(wanted_bytes_, arena.ready_bytes()));
}

bool HostResize::Choose(uint64_t slab) {
  std::vector<EntryIndex> owners;
  host_.allocator().ForEachInSlab(slab, [&](uint64_t, EntryIndex owner) {
    const bool at_rest =
        owner != kNoEntry && state_[owner].in_host() && state_[owner].host_pins() == 0;
    if (at_rest) owners.push_back(owner);
  });
  uint64_t bytes = 0;
  size_t evicted = 0;
  for (const EntryIndex index : owners) {
    // It may have been the coldest.
    while (state_.blocks.directory.Live(index) && state_[index].in_host()) {
      if (const std::optional<uint64_t> to = host_.BeginMove(index)) {
        state_.Apply(index, BlockEvent::kPinHost);
        moves_.push_back({index, *to});
        bytes += state_.blocks.NamespaceOf(state_[index]).slot_bytes;
        break;
      }
      if (host_.MakeRoomFor(index) != HostSlots::Outcome::kAllocated) return false;
      if (++evicted == kPartBlocks) return true;
    }
    if (bytes >= kPartBytes || moves_.size() == kPartBlocks) return true;
  }
  return evicted > 0;
}

void HostResize::StartMoves() {
  if (moves_.empty()) return;
  std::vector<std::pair<std::span<const std::byte>, std::byte*>> copies;
  for (const Move& move : moves_) {
    copies.emplace_back(state_.tables.HostBytes(state_[move.entry]).subspan(kSlotHeaderBytes),
                        state_.env.arena->data() + move.to + kSlotHeaderBytes);
  }
  state_.env.executor->Run(
      [copies = std::move(copies)] {
        for (const auto& [from, to] : copies) std::memcpy(to, from.data(), from.size());
      },
      gate_.WhileOpen([this] { EndMoves(); }));
}

// A block that something uses now stays where it is, to be moved later. The header is copied here:
// a write to disk that has begun and ended meanwhile has changed it.
void HostResize::EndMoves() {
  for (const Move& move : std::exchange(moves_, {})) {
    state_.Apply(move.entry, BlockEvent::kUnpinHost);
    const bool moves = state_[move.entry].host_pins() == 0;
    if (moves) {
      std::ranges::copy(state_.tables.HostBytes(state_[move.entry]).first<kSlotHeaderBytes>(),
                        state_.env.arena->data() + move.to);
    }
    host_.EndMove(move.entry, move.to, moves);
  }
  GoOn();
}

void HostResize::GiveBack() {
  giving_back_ = true;
  std::function<void()> end = gate_.WhileOpen([this] {
    giving_back_ = false;
    state_.env.arena->Resize(host_.capacity_bytes());
    GoOn();
  });
  if (state_.env.files.empty()) return end();
  state_.env.files.front()->UnregisterFrom(state_.env.arena->data() + host_.capacity_bytes(),
                                           std::move(end));
}

}  // namespace kvtier

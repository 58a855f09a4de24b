// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/slab_headers.h"

#include <algorithm>
#include <utility>

#include "tiers/storage/header_page.h"

namespace kvtier {
namespace {

// So many slots are cleared together: a slab may have thousands.
constexpr uint64_t kSlotsTogether = 64;

}  // namespace

SlabHeaders::SlabHeaders(const CacheEnvironment* env, DriveHealth* health)
    : env_(*env), health_(*health), known_(env->geometry) {}

void SlabHeaders::Assume(uint64_t slab, uint64_t slot_bytes) {
  known_[slab] = {.slot_bytes = slot_bytes, .assumed = true};
}

void SlabHeaders::Ensure(const SlabHeader& header, std::function<void(Status)> done) {
  if (const auto under_way = pending_.find(header.slab); under_way != pending_.end()) {
    under_way->second.waiting.push_back(std::move(done));
    return;
  }
  const Known known = known_[header.slab];
  const bool right = known.slot_bytes == header.slot_bytes;
  if (right && !known.assumed) {
    done({});
    return;
  }
  Pending& pending = pending_[header.slab];
  pending.header = header;
  pending.buffer = AlignedBuffer(kSlabHeaderBytes);
  pending.waiting.push_back(std::move(done));
  const bool cut_otherwise = known.slot_bytes > 0 && !right;
  cut_otherwise ? Clear(&pending) : Read(&pending);
}

// A header that is right is left alone: blocks lie behind it, and a write of it could be torn. So
// are the slots of a slab in which the index has blocks, though its header is damaged: it has been
// cut for them. Files are made of zeros, so that a header of zeros has no payload behind it.
void SlabHeaders::Read(Pending* pending) {
  const DiskLocation start = env_.geometry.SlabStart(pending->header.slab);
  env_.files[env_.geometry.FileOf(start)]->Read(
      env_.geometry.OffsetInFile(start), pending->buffer.span(),
      [this, pending](const Status& status) {
        const SlabHeader& wanted = pending->header;
        const auto page = pending->buffer.span().first<kSlabHeaderBytes>();
        const auto found = DecodeSlabHeader(page);
        if (status && found && found->slab == wanted.slab &&
            found->slot_bytes == wanted.slot_bytes) {
          return Finish(wanted.slab, {});
        }
        const bool is_new = status && IsAllZero(page);
        is_new || known_[wanted.slab].assumed ? Write(pending) : Clear(pending);
      });
}

// The old header goes, too: after a power cut it could be there still, with payloads of the new
// slots where its own begin. Zeros in its place would say that the slab is new.
void SlabHeaders::Clear(Pending* pending) {
  std::ranges::fill(pending->buffer.span(), std::byte{0xff});
  pending->writes_left = 1;
  WriteAt(env_.geometry.SlabStart(pending->header.slab), pending->buffer.span(),
          [this, pending](const Status& status) { OnCleared(pending, status); });
}

void SlabHeaders::OnCleared(Pending* pending, const Status& status) {
  if (!status) pending->cleared = status;
  if (--pending->writes_left > 0) return;
  const SlabHeader& header = pending->header;
  if (!pending->cleared) return Finish(header.slab, pending->cleared);
  const uint64_t slots = env_.geometry.SlotsPerSlab(header.slot_bytes);
  const uint64_t first = pending->next_slot;
  pending->next_slot = std::min(slots, first + kSlotsTogether);
  if (first == slots) {
    return health_.Sync([this, pending](const Status& synced) {
      synced ? Write(pending) : Finish(pending->header.slab, synced);
    });
  }
  pending->writes_left = pending->next_slot - first;
  for (uint64_t slot = first; slot < pending->next_slot; ++slot) {
    WriteAt(env_.geometry.SlotStart(header.slab, slot, header.slot_bytes), zeros_.span(),
            [this, pending](const Status& written) { OnCleared(pending, written); });
  }
}

void SlabHeaders::Write(Pending* pending) {
  EncodeSlabHeader(pending->header, pending->buffer.span().first<kSlabHeaderBytes>());
  WriteAt(env_.geometry.SlabStart(pending->header.slab), pending->buffer.span(),
          [this, slab = pending->header.slab](const Status& status) { Finish(slab, status); });
}

void SlabHeaders::WriteAt(DiskLocation location, std::span<const std::byte> page, IoDone done) {
  env_.files[env_.geometry.FileOf(location)]->Write(env_.geometry.OffsetInFile(location), page,
                                                    std::move(done));
}

// After an error nothing is known, but that a slab in which the index has blocks still has them.
void SlabHeaders::Finish(uint64_t slab, const Status& status) {
  const auto ended = pending_.extract(slab);
  const uint64_t slot_bytes = ended.mapped().header.slot_bytes;
  if (status) {
    known_[slab] = {.slot_bytes = slot_bytes};
  } else if (known_[slab].slot_bytes != slot_bytes) {
    known_[slab] = {};
  }
  for (const auto& done : ended.mapped().waiting) done(status);
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "tiers/space/slab_headers.h"

#include <utility>

namespace kvtier {

SlabHeaders::SlabHeaders(const CacheEnvironment* env) : env_(*env), known_(env->geometry) {}

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
  right ? Read(&pending) : Write(&pending);
}

// A header that is right is left alone: blocks lie behind it, and a write of it could be torn.
void SlabHeaders::Read(Pending* pending) {
  const DiskLocation start = env_.geometry.SlabStart(pending->header.slab);
  env_.files[env_.geometry.FileOf(start)]->Read(
      env_.geometry.OffsetInFile(start), pending->buffer.span(),
      [this, pending](const Status& status) {
        const SlabHeader& wanted = pending->header;
        const auto found = DecodeSlabHeader(pending->buffer.span().first<kSlabHeaderBytes>());
        const bool right =
            status && found && found->slab == wanted.slab && found->slot_bytes == wanted.slot_bytes;
        right ? Finish(wanted.slab, {}) : Write(pending);
      });
}

void SlabHeaders::Write(Pending* pending) {
  const DiskLocation start = env_.geometry.SlabStart(pending->header.slab);
  EncodeSlabHeader(pending->header, pending->buffer.span().first<kSlabHeaderBytes>());
  env_.files[env_.geometry.FileOf(start)]->Write(
      env_.geometry.OffsetInFile(start), pending->buffer.span(),
      [this, slab = pending->header.slab](const Status& status) { Finish(slab, status); });
}

void SlabHeaders::Finish(uint64_t slab, const Status& status) {
  const auto ended = pending_.extract(slab);
  known_[slab] = {.slot_bytes = status ? ended.mapped().header.slot_bytes : 0};
  for (const auto& done : ended.mapped().waiting) done(status);
}

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// Gives fake files other sizes, up to those that they were made with, or to a bound.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fakes/fake_block_file.h"
#include "tests/fakes/fake_loop.h"
#include "tiers/storage/disk_geometry.h"
#include "tiers/storage/drive_sizer.h"

namespace kvtier {

class FakeDriveSizer final : public DriveSizer {
 public:
  FakeDriveSizer(FakeLoop* loop, const std::vector<std::unique_ptr<FakeBlockFile>>* files)
      : loop_(*loop), files_(*files) {}

  // The file systems have room for so many slabs on each drive.
  void SetRoom(uint64_t slabs) { room_ = slabs; }
  // Runs once, while the files are being resized.
  void DoMeanwhile(std::function<void()> work) { meanwhile_ = std::move(work); }
  [[nodiscard]] int resizes() const { return resizes_; }
  // `geometry` is that of the files as they were made.
  void Begin(const DiskGeometry& geometry) {
    geometry_ = geometry;
    slabs_ = geometry.drive_slabs;
  }

  void Resize(const DriveSlabs& wanted, std::function<void(const DriveSlabs&)> done) override {
    ++resizes_;
    loop_.Post([this, wanted, done = std::move(done)] {
      if (const auto meanwhile = std::exchange(meanwhile_, nullptr)) meanwhile();
      for (uint32_t file = 0; file < files_.size(); ++file) {
        const uint32_t drive = geometry_.DriveOfFile(file);
        const uint64_t most =
            std::min(geometry_.drive_slabs[drive], std::max(room_, slabs_[drive]));
        slabs_[drive] = std::min(wanted[drive], most);
        files_[file]->Wipe(kFirstSlabOffset + slabs_[drive] * geometry_.slab_bytes);
      }
      done(slabs_);
    });
  }

 private:
  FakeLoop& loop_;
  const std::vector<std::unique_ptr<FakeBlockFile>>& files_;
  DiskGeometry geometry_;
  DriveSlabs slabs_{};
  uint64_t room_ = UINT64_MAX;
  std::function<void()> meanwhile_;
  int resizes_ = 0;
};

}  // namespace kvtier

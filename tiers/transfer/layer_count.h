// SPDX-License-Identifier: Apache-2.0
// How many layers of a load all of its blocks have, told to the client's counter.
//
// Blocks of a load in layers come in two ways: those that are in host, layer by layer; those from
// disk or from another pool, and those that another load brings, whole. Layer n is counted when the
// first have it and all of the second are here. The device that copies counts every step that can
// be foretold: layers whose copies are all submitted are handed to it with the copies. The rest is
// counted here, when the event loop hears that it has landed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/counter_page.h"

namespace kvtier {

// Event loop only.
class LayerCount {
 public:
  // `whole_blocks` blocks come whole, as far as is known.
  LayerCount(std::shared_ptr<StepCounter> counter, uint32_t layers, uint32_t whole_blocks = 0)
      : counter_(std::move(counter)), layers_(layers), whole_blocks_(whole_blocks) {}

  // A block comes whole; and one of those has arrived, or turns out to come in layers.
  void AddWhole() { ++whole_blocks_; }
  void EndWhole() {
    --whole_blocks_;
    Update();
  }
  // No block comes in layers, and all that come whole are known.
  void AllWhole() {
    layers_here_ = layers_;
    Update();
  }

  // The first `layers` layers of all the blocks in layers are about to be copied by one demand
  // request behind all earlier ones: returns the steps for it to count. Also a step that counts
  // nothing new: if its copies fail, later ones must not be counted.
  [[nodiscard]] std::vector<CountedStep> Queued(uint32_t layers) {
    if (whole_blocks_ == 0) counted_ = std::max(counted_, layers);
    return {{counter_, counted_}};
  }
  // They have arrived.
  void Arrived(uint32_t layers) {
    layers_here_ = layers;
    Update();
  }
  // Some block will not arrive: no further layer is counted, and the client sees that.
  void Fail() { counter_->End(); }

 private:
  // The device has counted or will count all steps that it was given. If one of its copies fails,
  // the load does.
  void Update() {
    const uint32_t done = whole_blocks_ > 0 ? 0 : layers_here_;
    if (done <= counted_) return;
    counted_ = done;
    counter_->Store(done);
  }

  const std::shared_ptr<StepCounter> counter_;
  const uint32_t layers_;
  uint32_t whole_blocks_;     // still to arrive
  uint32_t layers_here_ = 0;  // of the blocks that come in layers
  uint32_t counted_ = 0;      // here, or handed to the device
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// The present time to bring bytes to a pool, from the recent times: from disk and from the cold
// store to host memory, and from there over each device's bus.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tiers/types/block_key.h"

namespace kvtier {

// The ways on which a load can be held up. Bytes from disk or from the cold store then go over the
// bus as well.
enum class LoadWay : uint8_t { kDisk = 0, kCold, kBus };
inline constexpr size_t kLoadWayCount = 3;

// The cost of a way from now on, in microseconds.
struct WayPrice {
  // Until the first byte can begin: what waits ahead, and the way's latency.
  double wait_us = 0;
  double us_per_byte = 0;
  // How many bytes may be loaded to learn what they take; beyond them the price is not known.
  // UINT64_MAX: it is known.
  uint64_t trial_bytes = UINT64_MAX;
  // It was measured too long ago to be final.
  bool stale = false;

  [[nodiscard]] bool trial() const { return trial_bytes != UINT64_MAX; }
};
using LoadPrices = std::array<WayPrice, kLoadWayCount>;  // by LoadWay

// Bytes by the time in which some were under way, idle time not counted. A moving average over
// samples; bursts that are too short to fill the way are no samples, since they would say how long
// one read takes and not how many bytes come in a second. O(1), allocates nothing. Event loop only.
class RateMeter {
 public:
  // The bytes loaded to learn a rate, and how long a rate is believed when nothing is loaded.
  static constexpr uint64_t kTrialBytes = 32u << 20;
  static constexpr int64_t kBelievedUs = 60'000'000;

  // assumed_us_per_byte: what a byte takes before anything was measured; 0: that is to be tried.
  explicit RateMeter(double assumed_us_per_byte = 0) : assumed_us_per_byte_(assumed_us_per_byte) {}

  void Begin(uint64_t bytes, int64_t now_us);
  // REQUIRES: Begin(bytes) before. Bytes that have not arrived (their load failed) say nothing of
  // the rate.
  void End(uint64_t bytes, bool arrived, int64_t now_us);

  // ahead_bytes: what waits to begin, besides that which is under way.
  [[nodiscard]] WayPrice PriceNow(uint64_t ahead_bytes, int64_t now_us) const;
  // 0: nothing was measured yet.
  [[nodiscard]] uint64_t bytes_per_s() const {
    return us_per_byte_ > 0 ? static_cast<uint64_t>(1e6 / us_per_byte_) : 0;
  }

 private:
  void TakeSample(int64_t now_us);
  [[nodiscard]] bool known() const { return us_per_byte_ > 0; }

  const double assumed_us_per_byte_;
  double us_per_byte_ = 0;  // 0: not known
  double latency_us_ = 0;   // from the begin of a burst until the first of it has arrived
  int64_t known_at_us_ = 0;

  uint64_t under_way_bytes_ = 0;
  // The sample that is being taken: since when, the bytes that have arrived, and whether its burst
  // had a first arrival.
  int64_t since_us_ = 0;
  uint64_t sample_bytes_ = 0;
  bool arrived_ = false;
};

// The meters of all ways. Event loop only.
class LoadRates {
 public:
  // Memory that is no device's, as that of a region in host memory can be, has the last.
  static constexpr size_t kBuses = kMaxDevices + 1;
  [[nodiscard]] static size_t SlotOf(DeviceIndex device) {
    return device.value < kMaxDevices ? device.value : kMaxDevices;
  }

  [[nodiscard]] RateMeter& disk() { return disk_; }
  [[nodiscard]] RateMeter& cold() { return cold_; }
  [[nodiscard]] RateMeter& bus(DeviceIndex device) { return buses_[SlotOf(device)]; }
  // To the device from memory of a GPU: its own, whose copies wait for its other work, or another.
  [[nodiscard]] RateMeter& neighbour(DeviceIndex device, DeviceIndex from) {
    return (device == from ? own_ : neighbours_)[SlotOf(device)];
  }
  [[nodiscard]] const RateMeter& disk() const { return disk_; }
  [[nodiscard]] const RateMeter& cold() const { return cold_; }
  [[nodiscard]] const RateMeter& bus(DeviceIndex device) const { return buses_[SlotOf(device)]; }

 private:
  // Copies are mostly faster than any model computes, so that they need no trial: the assumed bus
  // is a slow one, or memory that two threads copy.
  static constexpr double kAssumedBusUsPerByte = 1.0 / 8000;  // 8 GB/s
  struct Bus : RateMeter {
    Bus() : RateMeter(kAssumedBusUsPerByte) {}
  };

  RateMeter disk_;
  RateMeter cold_;
  std::array<Bus, kBuses> buses_;
  std::array<RateMeter, kBuses> neighbours_;
  std::array<RateMeter, kBuses> own_;
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
#include "kernels/prefill/prefill_choice.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace kvtier::kernels {
namespace {

// The kernel for long queries: into how many parts to split the keys of each tile of queries.
struct SplitQuestion {
  int64_t query_tiles;  // tiles of queries, over all sequences and KV heads; a bound
  int64_t key_tiles;    // of the longest sequence
  int32_t processors;
  int64_t output_bytes;  // of one part in fp32
  int32_t max_splits;
};

// In units of the time that a tile of queries takes for a tile of keys, about 1.8 us on an H200.
constexpr double kItemCost = 1.0;           // filling the pipeline, storing the result
constexpr double kMergeCost = 1.0;          // one more launch
constexpr double kMergeBytesPerUnit = 2e6;  // partial results written and read again
// With so many tiles a processor, unequal lengths fill the gaps.
constexpr int kTilesPerProcessor = 2;

double Cost(const SplitQuestion& q, int64_t splits) {
  const auto ceil_divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto waves = static_cast<double>(ceil_divide(q.query_tiles * splits, q.processors));
  // The longest part counts, but so do all bytes together.
  const double keys = 0.5 * (static_cast<double>(ceil_divide(q.key_tiles, splits)) +
                             static_cast<double>(q.key_tiles) / static_cast<double>(splits));
  const double merge =
      splits == 1 ? 0.0
                  : kMergeCost + static_cast<double>(splits * q.output_bytes) / kMergeBytesPerUnit;
  return waves * (keys + kItemCost) + merge;
}

// The number of parts that should take the least time; 1 where tiles of queries fill the device by
// themselves.
int32_t ChooseSplits(const SplitQuestion& q) {
  if (q.query_tiles >= int64_t{kTilesPerProcessor} * q.processors) return 1;
  const int64_t most = std::min<int64_t>(q.max_splits, q.key_tiles);
  int64_t best = 1;
  for (int64_t splits = 2; splits <= most; ++splits) {
    if (Cost(q, splits) < Cost(q, best)) best = splits;
  }
  return static_cast<int32_t>(best);
}

// The kernel for short queries: how many CTAs work on one item, if it serves the launch at all.
struct ShortQuestion {
  int64_t items;      // tiles of kShortRows rows of queries, times parts of their keys
  double item_bytes;  // of keys and values, of the longest item
  double all_bytes;   // of keys and values, each counted once
  bool fp8;           // the cache
  bool narrow;        // heads of 64
  // Clusters of i + 1 CTAs that the device holds at once.
  std::array<int32_t, kMaxClusterCtas> places;
};

// As measured on an H200. The long kernel's computing is left out: where it counts, suffixes are so
// long that the short one would read their keys too often to be chosen.
struct Costs {
  double long_us;
  double long_bytes_per_us;
  double short_us;
  double short_round_us;  // between an item's last tile and the next one's first
  double short_bytes_per_us;
  double cta_bytes_per_us;  // one multiprocessor, however few read beside it
};
constexpr Costs k16Bit = {.long_us = 13,
                          .long_bytes_per_us = 4.1e6,
                          .short_us = 7,
                          .short_round_us = 1,
                          .short_bytes_per_us = 4.5e6,
                          .cta_bytes_per_us = 4.6e4};
constexpr Costs kFp8 = {.long_us = 14.5,
                        .long_bytes_per_us = 2.1e6,
                        .short_us = 7,
                        .short_round_us = 1,
                        .short_bytes_per_us = 4.5e6,
                        .cta_bytes_per_us = 2.05e4};
// The long kernel takes so much longer over a byte of heads of 64 than of 128.
constexpr double kLongNarrow = 1.5;
// The time that a launch gains if all of the next one's clusters can come up beside its own.
constexpr double kOverlapUs = 1.2;

double ShortUs(const ShortQuestion& q, const Costs& costs, int32_t ctas, int32_t places) {
  const auto rounds = static_cast<double>((q.items + places - 1) / places);
  const double all = static_cast<double>(q.items) * q.item_bytes / costs.short_bytes_per_us;
  const int64_t clusters = std::min<int64_t>(q.items, places);
  const double beside =
      std::min(1.0, static_cast<double>(places - clusters) / static_cast<double>(clusters));
  return costs.short_us + (1 - beside) * kOverlapUs + (rounds - 1) * costs.short_round_us +
         std::max(all, rounds * q.item_bytes / ctas / costs.cta_bytes_per_us);
}

// The number of CTAs that should take the least time; 0 where the kernel for long queries should
// take less.
int32_t ChooseClusterCtas(const ShortQuestion& q) {
  const Costs& costs = q.fp8 ? kFp8 : k16Bit;
  int32_t best = 0;
  double least =
      costs.long_us + (q.narrow ? kLongNarrow : 1) * q.all_bytes / costs.long_bytes_per_us;
  for (int ctas = 1; ctas <= kMaxClusterCtas; ++ctas) {
    const int32_t places = q.places[ctas - 1];
    if (places <= 0) continue;
    const double us = ShortUs(q, costs, ctas, places);
    if (us < least) {
      least = us;
      best = ctas;
    }
  }
  return best;
}

// Rows of queries over all sequences, of one KV head.
int64_t BoundRows(const kvt_prefill_params& p) {
  return int64_t{p.query_tokens} * (p.q_heads / p.kv.kv_heads);
}

// Tiles if every sequence has as many queries, which is what a launch is shaped for.
int64_t LikelyTiles(const kvt_prefill_params& p, int tile_rows) {
  const int64_t sequences =
      std::max<int64_t>(1, std::min<int64_t>(p.sequences.sequences, BoundRows(p)));
  const int64_t rows = (BoundRows(p) + sequences - 1) / sequences;
  return p.kv.kv_heads * sequences * ((rows + tile_rows - 1) / tile_rows);
}

// Clusters of 1, 2, 3 and so on CTAs that the device holds at once: it takes a while to find out,
// and does not change.
std::array<int32_t, kMaxClusterCtas> ClusterPlaces(const Device& device) {
  constexpr int kDevices = 64;
  struct Places {
    std::atomic<int32_t> known[kMaxClusterCtas];  // one more than there are; 0: not yet found out
  };
  static Places devices[kDevices];
  std::array<int32_t, kMaxClusterCtas> places{};
  if (device.id >= kDevices) return places;
  for (int i = 0; i < kMaxClusterCtas; ++i) {
    std::atomic<int32_t>& known = devices[device.id].known[i];
    if (known.load() == 0) known.store(ShortClustersAtOnce(i + 1) + 1);
    places[i] = known.load() - 1;
  }
  return places;
}

// How the long kernel cuts the work.
struct Cut {
  int32_t tile_rows = kTileRows;
  int32_t splits = 1;
};

// Tall tiles where sequences fill them, and where there are so many that unequal ones fill the
// gaps.
bool SuitsTallTiles(const kvt_prefill_params& p, const Device& device) {
  constexpr int64_t kTilesPerSequence = 2;
  constexpr int64_t kTilesPerProcessor = 2;
  return p.kv.dtype == KVT_FP8_E4M3 && p.kv.head_dim == 128 &&
         BoundRows(p) >= kTilesPerSequence * kTallTileRows * p.sequences.sequences &&
         BoundTiles(p, kTallTileRows) >= kTilesPerProcessor * device.processors;
}

Cut ChooseCut(const kvt_prefill_params& p, const Device& device) {
  const int rows = SuitsTallTiles(p, device) ? kTallTileRows : kTileRows;
  if (p.splits != 0) return {rows, p.splits};
  const int keys = TileKeys(p.kv.head_dim, rows);
  return {rows, ChooseSplits({.query_tiles = BoundTiles(p, rows),
                              .key_tiles = (int64_t{p.sequences.max_kv_length} + keys - 1) / keys,
                              .processors = device.processors,
                              .output_bytes = OutputElements(p) * int64_t{sizeof(float)},
                              .max_splits = KVT_PREFILL_MAX_SPLITS})};
}

PrefillChoice LongChoice(const kvt_prefill_params& p, const Device& device) {
  const Cut cut = ChooseCut(p, device);
  return {.splits = cut.splits, .tile_rows = cut.tile_rows};
}

}  // namespace

int64_t BoundTiles(const kvt_prefill_params& p, int tile_rows) {
  const int64_t rows = BoundRows(p);
  const int64_t sequences = std::min<int64_t>(p.sequences.sequences, rows);
  return p.kv.kv_heads * ((rows - sequences) / tile_rows + sequences);
}

PrefillChoice ChoosePrefill(const kvt_prefill_params& p, const Device& device) {
  if (device.family == Family::kAmpere) return {.splits = 1};
  if (p.kv.head_dim > 128) {
    return LongChoice(p, device);
  }
  const auto places = ClusterPlaces(device);
  PrefillChoice choice = {.splits = std::max(1, p.splits)};
  choice.items = BoundTiles(p, kShortRows) * choice.splits;
  const bool fp8 = p.kv.dtype == KVT_FP8_E4M3;
  const double bytes = (fp8 ? 2.0 : 4.0) * p.kv.head_dim * p.sequences.max_kv_length;
  choice.cluster_ctas =
      ChooseClusterCtas({.items = LikelyTiles(p, kShortRows) * choice.splits,
                         .item_bytes = bytes / choice.splits,
                         .all_bytes = bytes * p.kv.kv_heads * p.sequences.sequences,
                         .fp8 = fp8,
                         .narrow = p.kv.head_dim == 64,
                         .places = places});
  if (choice.cluster_ctas == 0) return LongChoice(p, device);
  choice.clusters = std::min<int64_t>(choice.items, places[choice.cluster_ctas - 1]);
  return choice;
}

}  // namespace kvtier::kernels

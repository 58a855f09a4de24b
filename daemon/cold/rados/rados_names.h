// SPDX-License-Identifier: Apache-2.0
// Where the objects of the cold tier lie in a pool. RADOS lets no object end by itself, so that
// objects that end within the same hour have a namespace in common, which is deleted as a whole:
//
//   namespace kvtier/1/TENANT/PERIOD   MODEL/HASH     the objects
//                                      index/MODEL    an omap with the hash of each of them
//   namespace kvtier/1/TENANT/         periods        an omap with PERIOD/MODEL of each index
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvtier {

// An object of the pool.
struct RadosPlace {
  std::string name_space;
  std::string object;
};

// Whose objects a name speaks of: the tenant's name as it stands there, and the rest up to the
// hash.
struct RadosModel {
  std::string tenant;
  std::string model;
  auto operator<=>(const RadosModel&) const = default;
};

struct RadosName {
  RadosModel model;
  std::string hash;

  // From "kvtier/1/TENANT/MODEL/HASH"; nothing if the name is none of a block.
  [[nodiscard]] static std::optional<RadosName> Parse(std::string_view name);
};

// The tenant's name in "kvtier/1/TENANT/"; nothing if the text is not that.
[[nodiscard]] std::optional<std::string> RadosTenantOf(std::string_view prefix);

// The pool and the cluster's configuration, "POOL" or "POOL@/PATH/ceph.conf".
struct RadosEndpoint {
  std::string pool;
  std::string configuration;  // empty: where Ceph's programs look for it

  [[nodiscard]] static std::optional<RadosEndpoint> Parse(std::string_view text);
};

// Hours since 1970.
using RadosPeriod = uint32_t;
inline constexpr int64_t kRadosPeriodS = 3600;

// The period in which something ends at this Unix time.
[[nodiscard]] constexpr RadosPeriod RadosPeriodOf(int64_t unix_s) {
  return static_cast<RadosPeriod>(unix_s / kRadosPeriodS);
}

[[nodiscard]] RadosPlace RadosObject(const RadosName& name, RadosPeriod period);
[[nodiscard]] RadosPlace RadosIndex(const RadosModel& model, RadosPeriod period);
[[nodiscard]] RadosPlace RadosPeriods(std::string_view tenant);

// A key of the tenant's list of periods. Keys of equal length, so that they sort by time.
struct RadosPeriodKey {
  RadosPeriod period = 0;
  std::string model;

  [[nodiscard]] std::string Text() const;
  [[nodiscard]] static std::optional<RadosPeriodKey> Parse(std::string_view text);
};

}  // namespace kvtier

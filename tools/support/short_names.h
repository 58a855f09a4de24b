// SPDX-License-Identifier: Apache-2.0
// Long names in narrow tables.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

namespace kvtier {

// Cuts names to a length in code points, in the middle, because paths begin alike and end
// differently. Names that differ never look alike: one that would look like another's is cut less.
class ShortNames {
 public:
  // REQUIRES: `length` is 8 at least.
  explicit ShortNames(size_t length) : length_(length) {}

  // The same for the same name each time.
  [[nodiscard]] const std::string& Of(const std::string& name);

 private:
  const size_t length_;
  std::map<std::string, std::string> shown_;  // by name
  std::set<std::string> taken_;
};

}  // namespace kvtier

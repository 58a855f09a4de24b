// SPDX-License-Identifier: Apache-2.0
// Events as a router reads them: from MessagePack to its view of the tiers.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtier {

// A MessagePack value as JSON; bytes become hexadecimal text, integers stay signed or unsigned.
// Fails the test if there is more than one value, or less.
[[nodiscard]] boost::json::value ReadMsgpack(std::string_view payload);

// A router's knowledge, from nothing but batches: (hash, medium) by topic. Applies maps only.
class RouterView {
 public:
  void Apply(const std::string& topic, std::string_view payload);

  using Blocks = std::set<std::pair<std::string, std::string>>;
  [[nodiscard]] const std::map<std::string, Blocks>& topics() const { return topics_; }
  [[nodiscard]] Blocks BlocksOf(const std::string& topic) const {
    const auto found = topics_.find(topic);
    return found == topics_.end() ? Blocks{} : found->second;
  }

 private:
  std::map<std::string, Blocks> topics_;
};

}  // namespace kvtier

// SPDX-License-Identifier: Apache-2.0
// Shared by the commands on single blocks: which blocks are meant, and asking the daemon in
// portions.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"

namespace kvtier {

// Empty texts: any.
struct BlockSelection {
  std::string tenant;
  std::string model;
  std::string tier;
  std::string prefix;  // of the hash
  bool all = false;    // also what a daemon that has just started has still to adopt

  [[nodiscard]] boost::json::object ToRequest(std::string_view operation) const;
};

// --tenant and --model.
void AddNamespaceOptions(CLI::App* command, BlockSelection* selection);
void AddTierOption(CLI::App* command, BlockSelection* selection, const std::string& description,
                   const std::vector<std::string>& tiers = {"pool", "host", "disk"});
// HASH..., as ResolveHashes takes them.
void AddHashArguments(CLI::App* command, std::vector<std::string>* hashes,
                      const std::string& description);

// A listed block, with the tenant and model it belongs to. Valid during the visit.
struct ListedBlock {
  JsonView block;
  JsonView name_space;
  int64_t now_s = 0;
};
// Visits the blocks that are selected, `limit` at most (0: all), a portion from the daemon at a
// time. Blocks that come or go meanwhile may or may not be among them.
[[nodiscard]] Status ForEachBlock(const CommandContext& context, const BlockSelection& selection,
                                  uint64_t limit,
                                  const std::function<void(const ListedBlock&)>& visit);

// Full hashes as they are; shorter ones are looked for among the cached blocks; "-" stands for the
// lines of standard input. Each hash once: a listing has it for each of its models. Errors:
// kInvalidArgument "bad_hash", "ambiguous_hash"; kNotFound "unknown_hash"; those of ListOf.
[[nodiscard]] Result<std::vector<std::string>> ResolveHashes(
    const CommandContext& context, const BlockSelection& selection,
    const std::vector<std::string>& arguments);

// Errors: kNotFound "no_blocks" for none, which a mistyped name must not make a success.
[[nodiscard]] Result<std::vector<std::string>> ListOf(const std::set<std::string>& hashes);

// Sends `request` with as many of the hashes at a time as a message takes, and visits the replies.
[[nodiscard]] Status CallWithHashes(const CommandContext& context, boost::json::object request,
                                    const std::vector<std::string>& hashes,
                                    const std::function<void(JsonView)>& visit);

// "pool host disk".
[[nodiscard]] std::string TierNames(JsonView tiers);

}  // namespace kvtier

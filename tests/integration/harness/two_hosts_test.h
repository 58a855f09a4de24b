// SPDX-License-Identifier: Apache-2.0
// The base of tests of two daemons that share nothing but a store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/integration/harness/daemon_test.h"

namespace kvtier {

class TwoHostsTest : public DaemonTest {
 protected:
  static constexpr size_t kBlocks = 12;

  // Where the store is.
  [[nodiscard]] virtual std::vector<std::string> StoreSettings() const = 0;
  // Objects that the store holds.
  [[nodiscard]] virtual size_t CountObjects() = 0;

  // The store's, with deadlines of a machine on which much else runs.
  [[nodiscard]] std::vector<std::string> Settings() const;
  // A daemon in a directory of its own, as on another host.
  void StartOtherHost(const std::vector<std::string>& more_settings = {});
  [[nodiscard]] PrivateDaemon& other() { return *other_; }
  void StopOtherHost() { other_.reset(); }
  [[nodiscard]] ReplayReport PlayOnOther(const TraceRequest& request);
  // The cold tier's part of the status.
  [[nodiscard]] static boost::json::value Cold(const std::string& admin_socket);
  // Blocks that the store named and that were misses for that reason, on the other host.
  [[nodiscard]] uint64_t FailedReads(const std::string& reason);
  // The first host computes kBlocks blocks named "shared", uses them once, and writes them to the
  // store.
  void WriteByFirstHost();
  // Plays prompts of which the store has nothing on the other host, until the store says so.
  void AwaitAnswerToOtherHost();
  // Awaits an answer, and then plays prompts that begin with "shared", each longer by a block,
  // until the other host has read from the store. It computes blocks that come late, so that each
  // try has one that it has not asked for.
  void ReadByOtherHostFrom(size_t blocks);

 private:
  std::optional<PrivateDaemon> other_;
};

}  // namespace kvtier

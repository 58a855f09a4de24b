// SPDX-License-Identifier: Apache-2.0
// A service manager that keeps descriptors over the end of a process and passes them to the next.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "tests/fakes/temporary_directory.h"

namespace kvtier {

// Listens on a thread of its own, since a barrier waits for its answer. Public calls on the test's.
class FakeSystemd {
 public:
  // FileDescriptorStoreMax of the unit; 0: it keeps nothing.
  explicit FakeSystemd(size_t max_descriptors);
  ~FakeSystemd();
  FakeSystemd(const FakeSystemd&) = delete;
  FakeSystemd& operator=(const FakeSystemd&) = delete;

  // Runs `process` in a forked child with the variables and descriptors that the unit's next
  // process gets. Returns its exit code, or minus the signal. `says_so`: as version 254 does.
  int Start(const std::function<int()>& process, bool says_so);
  // The same for a program, which goes on until it ends by itself or is killed. It writes to
  // `output`.
  pid_t Spawn(const std::vector<std::string>& arguments, bool says_so, int output);
  // A message with this text has come since the last process was started; false: none comes.
  [[nodiscard]] bool WaitFor(const std::string& text);

  // All messages since the last process was started.
  [[nodiscard]] std::string Messages();
  // Names of the kept descriptors, in the order in which they came.
  [[nodiscard]] std::vector<std::string> Names();

 private:
  void Listen();
  void OnMessage(const std::string& text, std::vector<UniqueFd> descriptors);
  // In the child: sets the environment, and the kept descriptors from descriptor 3 on.
  void Pass(const std::vector<int>& descriptors, const std::string& names, bool says_so) const;
  pid_t Fork(const std::function<void()>& child, bool says_so);

  const size_t max_descriptors_;
  TestDirectory directory_;
  UniqueFd socket_;
  UniqueFd stop_reading_, stop_writing_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::string messages_;
  std::vector<std::pair<std::string, UniqueFd>> kept_;
  std::thread thread_;
};

}  // namespace kvtier

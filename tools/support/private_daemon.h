// SPDX-License-Identifier: Apache-2.0
// A kvtierd of one's own, for replays, benchmarks and tests: started in a directory that the caller
// keeps, killed with its owner.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tools/support/temporary_directory.h"

namespace kvtier {

struct PrivateDaemonOptions {
  // The program; empty means "kvtierd" beside the running program, else the one in $PATH.
  std::string program;
  // Sockets, log and (unless told otherwise) the disk tier go here. Must exist. Empty: a directory
  // of its own below `temporary_parent`, which goes with the daemon.
  std::string directory;
  std::string temporary_parent;  // empty: $TMPDIR or /tmp
  // The disk tier's drives: a directory of the tier's below each of these, which goes with the
  // daemon. Empty: one drive, in `directory`.
  std::vector<std::string> drive_parents;
  // A configuration file, which `settings` override; empty: none.
  std::string config_file;
  // "section.key=value" texts as for `kvtierd --set`.
  std::vector<std::string> settings;
};

// Sets where the daemon has its pool, as `pool.device` takes it: "host", "cuda:1"; empty leaves it
// to the daemon. Settings that come after it override it.
inline void PutOnDevice(const std::string& device, PrivateDaemonOptions* options) {
  if (!device.empty()) options->settings.push_back("pool.device=\"" + device + "\"");
}

class PrivateDaemon {
 public:
  // Returns when the daemon serves. Errors: kNotFound "no_kvtierd", kInvalidArgument "bad_settings"
  // and kUnavailable "daemon_exited" with the end of its log, kTimeout "daemon_silent".
  [[nodiscard]] static Result<PrivateDaemon> Start(PrivateDaemonOptions options);
  PrivateDaemon(PrivateDaemon&& other) noexcept;
  PrivateDaemon& operator=(PrivateDaemon&& other) noexcept;
  ~PrivateDaemon() { Kill(); }

  [[nodiscard]] std::string socket() const { return options_.directory + "/kvtier.sock"; }
  [[nodiscard]] std::string admin_socket() const { return options_.directory + "/admin.sock"; }
  [[nodiscard]] std::string disk_directory() const { return options_.directory + "/disk"; }
  [[nodiscard]] std::string log_path() const { return options_.directory + "/kvtierd.log"; }
  [[nodiscard]] pid_t pid() const { return pid_; }

  // kill -9, and waits until the process is gone. Does nothing when none is running.
  void Kill();
  // SIGTERM, and waits. The exit status, or minus the signal that ended it. REQUIRES: running.
  int Terminate();
  // Starts it again. REQUIRES: not running. Errors: those of Start.
  [[nodiscard]] Status Restart();

 private:
  explicit PrivateDaemon(PrivateDaemonOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Status Launch();
  [[nodiscard]] Status WaitUntilServing();
  // Waits for the process and returns its exit status, or minus the signal.
  int Reap();
  [[nodiscard]] std::string LogTail() const;

  PrivateDaemonOptions options_;
  std::optional<TemporaryDirectory> temporary_;
  std::vector<TemporaryDirectory> drives_;
  pid_t pid_ = -1;
};

}  // namespace kvtier

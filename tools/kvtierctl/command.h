// SPDX-License-Identifier: Apache-2.0
// Shared by kvtierctl's commands: where the daemon is, how to answer, how to show progress and how
// to end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/user_paths.h"
#include "tools/support/admin.h"
#include "tools/support/terminal.h"

namespace CLI {
class App;
}

namespace kvtier {

// The largest number for options that count; a negative one would be taken for a huge one.
inline constexpr int64_t kMaxCount = int64_t{1} << 53;

// kvtierctl's exit codes. Stable: scripts depend on the numbers.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotFound = 4,
  kIntegrity = 5,  // bytes that are not what they should be
  kTimeout = 6,
  kPermission = 7,
  kPartial = 8,  // done, but not all of it
};

[[nodiscard]] ExitCode ExitCodeOf(ErrorCode code);

// The state of one run. Commands hold a pointer to it; one thread uses it.
struct CommandContext {
  std::string socket = FindSocket();
  std::string admin_socket;  // empty: beside `socket`
  bool json = false;
  int64_t timeout_s = 60;
  // Set by the command that ran.
  ExitCode exit_code = ExitCode::kOk;

  // `admin_socket`; else "admin.sock" beside `socket`; else `socket` itself, if there is none.
  [[nodiscard]] std::string AdminSocket() const;

  // Standard output, and with a newline.
  void Print(std::string_view text) const;
  // Reports the error (on standard output as {"schema":"kvtier.error/1",...} with --json) and sets
  // the exit code that belongs to it.
  void Fail(const Error& error);
};

// Writes out the rest of standard output. Output that cannot be written (a full disk, a closed
// descriptor) makes a failure of a success. `error_number` is the errno of an earlier write that
// failed; 0 if none has.
[[nodiscard]] int FinishOutput(int exit_code, int error_number = 0);

// ---- progress of a long admin call, on standard error ----

struct BlockProgress {
  uint64_t done = 0;
  uint64_t total = 0;
  uint64_t bytes_per_second = 0;  // 0: not known
  double elapsed_s = 0;
};
// "verb [####....] done of total, rate, time left": a line of less than 80 columns.
[[nodiscard]] std::string FormatProgress(std::string_view verb, const BlockProgress& progress);

// Shows it where the output is a terminal; see terminal.h.
[[nodiscard]] AdminProgress ShowBlockProgress(std::string verb);
// Removes the line that was shown.
void ClearProgress();

// ---- the commands ----

// Each adds one command to `app`, with a callback that runs it; `context` outlives `app`.
void AddStatusCommand(CLI::App* app, CommandContext* context);
void AddTopCommand(CLI::App* app, CommandContext* context);
void AddLsCommand(CLI::App* app, CommandContext* context);
void AddInspectCommand(CLI::App* app, CommandContext* context);
void AddPinCommand(CLI::App* app, CommandContext* context);
void AddUnpinCommand(CLI::App* app, CommandContext* context);
void AddEvictCommand(CLI::App* app, CommandContext* context);
void AddUsageCommand(CLI::App* app, CommandContext* context);
void AddModelsCommand(CLI::App* app, CommandContext* context);
void AddForgetCommand(CLI::App* app, CommandContext* context);
void AddEraseCommand(CLI::App* app, CommandContext* context);
void AddReleaseMemoryCommand(CLI::App* app, CommandContext* context);
void AddSizeCommand(CLI::App* app, CommandContext* context);
void AddConfigCommand(CLI::App* app, CommandContext* context);
void AddDoctorCommand(CLI::App* app, CommandContext* context);
void AddBenchCommand(CLI::App* app, CommandContext* context);
void AddVerifyCommand(CLI::App* app, CommandContext* context);
void AddDrainCommand(CLI::App* app, CommandContext* context);
void AddStopCommand(CLI::App* app, CommandContext* context);
void AddTraceCommand(CLI::App* app, CommandContext* context);
void AddReplayCommand(CLI::App* app, CommandContext* context);

}  // namespace kvtier

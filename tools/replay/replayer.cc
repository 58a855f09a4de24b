// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/replayer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/posix.h"
#include "base/result.h"

namespace kvtier {
namespace {

using SteadyClock = std::chrono::steady_clock;

void WaitForArrival(const TraceRequest& request, SteadyClock::time_point start, double speed) {
  if (speed <= 0) return;
  const std::chrono::duration<double, std::milli> since_start(
      static_cast<double>(request.arrival_ms) / speed);
  std::this_thread::sleep_until(start +
                                std::chrono::duration_cast<SteadyClock::duration>(since_start));
}

// The clients' progress together; in memory that a process shares with those that it forks.
class Progress {
 public:
  explicit Progress(uint64_t requests) : requests_(requests) {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVT_CHECK(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
  }
  ~Progress() { ::munmap(shared_, sizeof(Shared)); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One request more. Any thread, any of the processes.
  void Played(const ReplayOptions& options) {
    const uint64_t played = ++shared_->played;
    if (!options.on_progress) return;
    const int64_t now = SteadyClock::now().time_since_epoch() / std::chrono::milliseconds(1);
    int64_t next = shared_->next_ms;
    // Several clients may find progress due; one of them shows it.
    const bool due =
        now >= next && shared_->next_ms.compare_exchange_strong(next, now + kShownEveryMs);
    if (due || played == requests_) options.on_progress(played, requests_);
  }

 private:
  static constexpr int64_t kShownEveryMs = 100;
  struct Shared {
    std::atomic<uint64_t> played = 0;
    std::atomic<int64_t> next_ms = 0;
  };
  const uint64_t requests_;
  Shared* shared_;
};

// Plays the streams of one client from beginning to end.
Result<ReplayReport> PlayAs(uint32_t client_index, const Trace& trace, const ReplayOptions& options,
                            Progress* progress) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client,
                       ReplayClient::Connect(options.target, trace.block_tokens));
  const auto start = SteadyClock::now();
  for (const TraceRequest& request : trace.requests) {
    if (request.stream % options.clients != client_index) continue;
    WaitForArrival(request, start, options.speed);
    KVT_RETURN_IF_ERROR(client.Play(request));
    progress->Played(options);
  }
  ReplayReport report = client.Finish();
  report.seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  return report;
}

Result<ReplayReport> Merge(std::span<const Result<ReplayReport>> reports) {
  ReplayReport merged;
  for (const Result<ReplayReport>& report : reports) {
    if (!report) return tl::unexpected(report.error());
    merged.Add(*report);
  }
  return merged;
}

Result<ReplayReport> ReplayWithThreads(const Trace& trace, const ReplayOptions& options,
                                       Progress* progress) {
  std::vector<Result<ReplayReport>> reports(options.clients);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options.clients; ++i) {
    threads.emplace_back([&, i] { reports[i] = PlayAs(i, trace, options, progress); });
  }
  for (std::thread& thread : threads) thread.join();
  return Merge(reports);
}

// A client process sends a byte that says which of the two follows, then a report or an error.
constexpr uint8_t kReportFollows = 1;
constexpr uint8_t kErrorFollows = 2;
constexpr size_t kMaxErrorTextBytes = 4096;

std::vector<std::byte> EncodeOutcome(const Result<ReplayReport>& outcome) {
  ByteWriter writer;
  writer.Write(outcome ? kReportFollows : kErrorFollows);
  if (outcome) {
    writer.WriteBytes(outcome->Encode());
  } else {
    const Error& error = outcome.error();
    writer.Write(static_cast<uint16_t>(error.code));
    writer.WriteString(std::string_view(error.reason).substr(0, kMaxErrorTextBytes));
    writer.WriteString(std::string_view(error.context).substr(0, kMaxErrorTextBytes));
  }
  return writer.Take();
}

Result<ReplayReport> DecodeOutcome(std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto kind = reader.Read<uint8_t>();
  if (kind == kReportFollows) return ReplayReport::Decode(message.subspan(1));
  const auto code = static_cast<ErrorCode>(reader.Read<uint16_t>());
  const std::string reason = reader.ReadString(kMaxErrorTextBytes);
  const std::string context = reader.ReadString(kMaxErrorTextBytes);
  if (kind == kErrorFollows && reader.AtEnd()) return MakeError(code, reason, context);
  return MakeError(ErrorCode::kInternal, "client_died", "a client process ended without a report");
}

void WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

std::vector<std::byte> ReadAll(int fd) {
  std::vector<std::byte> bytes;
  std::array<std::byte, 65536> buffer;
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return bytes;
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + count);
  }
}

[[noreturn]] void RunChild(int fd, uint32_t client_index, const Trace& trace,
                           const ReplayOptions& options, Progress* progress) {
  WriteAll(fd, EncodeOutcome(PlayAs(client_index, trace, options, progress)));
  ::_exit(0);
}

struct ClientProcess {
  pid_t pid = -1;
  UniqueFd report_fd;
};

Result<ClientProcess> StartProcess(uint32_t client_index, const Trace& trace,
                                   const ReplayOptions& options, Progress* progress) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "pipe"));
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "fork"));
  if (pid == 0) RunChild(write_end.get(), client_index, trace, options, progress);
  return ClientProcess{pid, std::move(read_end)};
}

Result<ReplayReport> ReplayWithProcesses(const Trace& trace, const ReplayOptions& options,
                                         Progress* progress) {
  std::vector<ClientProcess> processes;
  std::vector<Result<ReplayReport>> reports;
  for (uint32_t i = 0; i < options.clients; ++i) {
    auto process = StartProcess(i, trace, options, progress);
    if (process) {
      processes.push_back(std::move(*process));
    } else {
      reports.push_back(tl::unexpected(process.error()));
    }
  }
  for (const ClientProcess& process : processes) {
    reports.push_back(DecodeOutcome(ReadAll(process.report_fd.get())));
    ::waitpid(process.pid, nullptr, 0);
  }
  return Merge(reports);
}

}  // namespace

Result<ReplayReport> Replay(const Trace& trace, const ReplayOptions& options) {
  KVT_CHECK(options.clients > 0);
  Progress progress(trace.requests.size());
  return options.processes ? ReplayWithProcesses(trace, options, &progress)
                           : ReplayWithThreads(trace, options, &progress);
}

}  // namespace kvtier

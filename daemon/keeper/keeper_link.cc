// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/keeper_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProgram = "kvtier-keeper";
// The program returns as soon as the keeper listens.
constexpr int kStartPatienceMs = 5000;
// A daemon that has just ended is connected until its teardown process has closed its descriptors.
constexpr auto kBusyPatience = std::chrono::seconds(2);
constexpr auto kBusyPoll = std::chrono::milliseconds(5);

constexpr std::string_view kSilent = "keeper_silent";

tl::unexpected<Error> Silent() {
  return MakeError(ErrorCode::kUnavailable, std::string(kSilent), "kvtier-keeper does not answer");
}

Result<std::string> FindProgram(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& candidate :
       {here / kProgram, here.parent_path() / "libexec" / "kvtier" / kProgram}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return MakeError(ErrorCode::kNotFound, "no_keeper_program",
                   fmt::format("{} is neither in {} nor in ../libexec/kvtier beside it", kProgram,
                               here.string()));
}

// Waits for the program that puts the keeper into the background: its exit code, or -1. A thread
// that starts the keeper anew may wait here for as long as kStartPatienceMs.
int WaitForEnd(pid_t pid) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
  int ended = 0;
  do {
    ended = ::poll(&end, 1, kStartPatienceMs);
  } while (ended < 0 && errno == EINTR);
  if (ended != 1) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// posix_spawn, since a fork would copy the page tables of a large process with many threads.
Status StartProgram(const KeeperPlace& place) {
  KVT_ASSIGN_OR_RETURN(std::string program, FindProgram(place.program));
  std::string socket = place.socket;
  std::array<char*, 3> argv = {program.data(), socket.data(), nullptr};
  char* no_environment[] = {nullptr};
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // A session of its own, so that signals to the daemon's terminal do not reach it; and none of the
  // signals that threads of the daemon have blocked or ignored.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, program.c_str(), nullptr, &attributes, argv.data(), no_environment);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return tl::unexpected(ErrnoError(ErrorCode::kUnavailable, error, "starting " + program));
  }
  const int code = WaitForEnd(pid);
  // Another daemon may have started one in the same moment; the connection shows whose it is.
  if (code == 0 || code == kKeeperExitAnotherRuns) return {};
  return MakeError(ErrorCode::kUnavailable, "keeper_failed",
                   fmt::format("{} ended with {}; can {} be made?", program, code, place.socket));
}

bool IsBusy(const Error& error) { return error.code == ErrorCode::kAlreadyExists; }

// Asks again while another daemon is connected, for kBusyPatience. `ask` makes a Result.
template <typename Ask>
auto WhileBusy(const Ask& ask) {
  const auto give_up = std::chrono::steady_clock::now() + kBusyPatience;
  auto answer = ask();
  while (!answer && IsBusy(answer.error()) && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kBusyPoll);
    answer = ask();
  }
  return answer;
}

}  // namespace

bool IsKeeperSilent(const Error& error) { return error.reason == kSilent; }

KeeperPlace KeeperPlace::Beside(const std::string& socket, std::string program) {
  std::error_code error;
  const fs::path absolute = fs::absolute(socket, error);
  return {.socket = (absolute.parent_path() / kKeeperSocketName).string(),
          .program = std::move(program)};
}

Result<std::optional<KeeperLink>> KeeperLink::Connect(const std::string& path) {
  UniqueFd socket = OpenKeeperSocket(path, /*listening=*/false);
  if (!socket.valid()) {
    if (errno == ENOENT || errno == ECONNREFUSED) return std::optional<KeeperLink>();
    if (errno == EAGAIN) return Silent();  // it accepts nothing
    return tl::unexpected(ErrnoError(ErrorCode::kUnavailable, errno, "connecting to " + path));
  }
  if (!IsTrustedPeer(socket.get())) {
    return MakeError(ErrorCode::kPermissionDenied, "keeper_owner",
                     fmt::format("another user's process listens on {}", path));
  }
  return std::optional<KeeperLink>(KeeperLink(std::move(socket)));
}

Status KeeperLink::Send(KeeperRequest request, std::string_view name, int descriptor,
                        int64_t number) {
  KeeperPacket packet{.request = request, .number = number};
  packet.SetName(name);
  if (!SendPacket(socket_.get(), packet, descriptor)) return Silent();
  return {};
}

Result<KeeperPacket> KeeperLink::Answer(KeeperRequest request, UniqueFd* received) {
  // A time-out of the socket would not do, because the socket does not block once an event loop
  // watches it.
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, static_cast<int>(kKeeperPatienceMs));
  } while (ready < 0 && errno == EINTR);
  if (ready != 1) return Silent();
  KeeperPacket answer;
  UniqueFd unwanted;
  const Received came =
      ReceivePacket(socket_.get(), &answer, received != nullptr ? received : &unwanted);
  if (came == Received::kForeign) answer.status = KeeperStatus::kOtherVersion;
  if ((came != Received::kPacket && came != Received::kForeign) || answer.request != request) {
    return Silent();
  }
  if (answer.status == KeeperStatus::kBusy) {
    return MakeError(ErrorCode::kAlreadyExists, "keeper_busy",
                     "another daemon is connected to the keeper beside the socket");
  }
  if (answer.status == KeeperStatus::kFull) {
    return MakeError(ErrorCode::kResourceExhausted, "keeper_full",
                     fmt::format("{} descriptors are kept already", kMaxKeptDescriptors));
  }
  return answer;
}

Result<bool> KeeperLink::Greet(int64_t keep_for_ms) {
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kHello, {}, -1, keep_for_ms));
  KVT_ASSIGN_OR_RETURN(const KeeperPacket answer, Answer(KeeperRequest::kHello, nullptr));
  pid_ = static_cast<int32_t>(answer.number);
  return answer.status != KeeperStatus::kOtherVersion;
}

Result<std::optional<KeeperLink>> KeeperLink::Find(const KeeperPlace& place, int64_t keep_for_ms) {
  return WhileBusy([&]() -> Result<std::optional<KeeperLink>> {
    KVT_ASSIGN_OR_RETURN(std::optional<KeeperLink> link, Connect(place.socket));
    if (!link) return link;
    KVT_ASSIGN_OR_RETURN(const bool understood, link->Greet(keep_for_ms));
    if (!understood) return std::optional<KeeperLink>();
    link->found_ = true;
    return link;
  });
}

Result<KeeperLink> KeeperLink::Open(const KeeperPlace& place, int64_t keep_for_ms) {
  KVT_ASSIGN_OR_RETURN(std::optional<KeeperLink> link, Find(place, keep_for_ms));
  if (link) return *std::move(link);
  // One of another version, if there is any.
  KVT_ASSIGN_OR_RETURN(const bool replaced, End(place));
  (void)replaced;
  KVT_RETURN_IF_ERROR(StartProgram(place));
  KVT_ASSIGN_OR_RETURN(link, Find(place, keep_for_ms));
  if (!link) return Silent();
  // Also a keeper that another daemon has started in the same moment holds nothing yet.
  link->found_ = false;
  return *std::move(link);
}

Result<bool> KeeperLink::End(const KeeperPlace& place) {
  return WhileBusy([&]() -> Result<bool> {
    KVT_ASSIGN_OR_RETURN(std::optional<KeeperLink> link, Connect(place.socket));
    if (!link) return false;
    KVT_RETURN_IF_ERROR(link->End());
    return true;
  });
}

Status KeeperLink::Await(KeeperRequest request, UniqueFd* received) {
  KVT_ASSIGN_OR_RETURN(const KeeperPacket answer, Answer(request, received));
  if (request == KeeperRequest::kKeep && answer.status != KeeperStatus::kOk) return Silent();
  if (request == KeeperRequest::kTake && answer.status != KeeperStatus::kOk) received->Reset();
  if (request == KeeperRequest::kEnd) {
    // A keeper that ends closes the connection last.
    pollfd looked{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
    (void)::poll(&looked, 1, static_cast<int>(kKeeperPatienceMs));
  }
  return {};
}

Status KeeperLink::End() {
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kEnd));
  return Await(KeeperRequest::kEnd);
}

Status KeeperLink::Keep(std::string_view name, int descriptor) {
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kKeep, name, descriptor));
  return Await(KeeperRequest::kKeep);
}

Result<std::optional<UniqueFd>> KeeperLink::Take(std::string_view name) {
  UniqueFd received;
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kTake, name));
  KVT_RETURN_IF_ERROR(Await(KeeperRequest::kTake, &received));
  if (!received.valid()) return std::optional<UniqueFd>();
  return std::optional<UniqueFd>(std::move(received));
}

Status KeeperLink::Release(std::string_view name) {
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kRelease, name));
  return Await(KeeperRequest::kRelease);
}

Status KeeperLink::ReleaseUnclaimed() {
  KVT_RETURN_IF_ERROR(Send(KeeperRequest::kReleaseUnclaimed));
  return Await(KeeperRequest::kReleaseUnclaimed);
}

}  // namespace kvtier

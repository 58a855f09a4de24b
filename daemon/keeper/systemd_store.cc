// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/systemd_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace kvtier {
namespace {

// systemd answers within milliseconds, also at the boot of a busy machine.
constexpr uint64_t kBarrierUs = 5'000'000;
constexpr const char* kProbeName = "probe";

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// Returns false if systemd's socket cannot be reached.
bool Store(const std::string& name, int descriptor) {
  // Without FDPOLL=0 systemd drops descriptors that report an error or a hang-up.
  const std::string message = fmt::format("FDSTORE=1\nFDNAME={}\nFDPOLL=0", name);
  return ::sd_pid_notify_with_fds(0, /*unset_environment=*/0, message.c_str(), &descriptor, 1) > 0;
}

// Whether both are of one file. A driver's files all have one number: the kernel is asked about
// them, and two count as different where a sandbox forbids that.
bool IsSameFile(int first, int second) {
  struct stat one {
  }, other{};
  if (::fstat(first, &one) != 0 || ::fstat(second, &other) != 0) return false;
  if (S_ISREG(one.st_mode)) return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  return ::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, first, second) == 0;
}

// Removes the descriptor of the name; nothing happens if there is none.
void Remove(std::string_view name) {
  (void)::sd_notify(/*unset_environment=*/0,
                    fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name).c_str());
}

// Gives systemd one end of a pipe: it is open at the other end only if it was stored.
bool StoresWhatItIsGiven() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  if (!Store(kProbeName, writing.get())) return false;
  writing.Reset();
  if (::sd_notify_barrier(/*unset_environment=*/0, kBarrierUs) <= 0) return false;
  pollfd looked{.fd = reading.get(), .events = POLLIN, .revents = 0};
  const bool stored = ::poll(&looked, 1, 0) == 0;
  Remove(kProbeName);
  return stored;
}

// Closes descriptors that have no name given here.
std::map<std::string, UniqueFd, std::less<>> TakePassed() {
  std::map<std::string, UniqueFd, std::less<>> passed;
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    UniqueFd descriptor(SD_LISTEN_FDS_START + i);
    const std::string name = names != nullptr && names[i] != nullptr ? names[i] : "";
    if (!name.empty()) passed[name] = std::move(descriptor);
    if (names != nullptr) std::free(names[i]);
  }
  std::free(names);
  return passed;
}

}  // namespace

std::unique_ptr<SystemdStore> SystemdStore::Open(bool probe) {
  Passed passed = TakePassed();
  const bool told = IsSet("FDSTORE") || !passed.empty();
  // Every unit's processes have an invocation; without one another program listens.
  const bool may_offer = probe && IsSet("INVOCATION_ID");
  if (!IsSet("NOTIFY_SOCKET") || (!told && !(may_offer && StoresWhatItIsGiven()))) return nullptr;
  return std::unique_ptr<SystemdStore>(new SystemdStore(std::move(passed)));
}

SystemdStore::SystemdStore(Passed passed) : passed_(std::move(passed)) {
  for (const auto& [name, descriptor] : passed_) held_[name] = nullptr;
}

DescriptorStore::Holder SystemdStore::holder() const {
  return {.name = "systemd", .pid = 1, .until = "the unit is stopped", .reason = ""};
}

std::optional<UniqueFd> SystemdStore::DoTake(std::string_view name) {
  const auto found = passed_.find(name);
  if (found == passed_.end()) return std::nullopt;
  UniqueFd taken = std::move(found->second);
  passed_.erase(found);
  held_[std::string(name)] =
      std::make_shared<const UniqueFd>(::fcntl(taken.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  return taken;
}

// systemd would keep several under one name, and has none between the two messages; a file that it
// has already stays there untouched. It handles messages in this order, also after this process's
// end.
Status SystemdStore::DoKeep(const std::string& name, const Descriptor& descriptor) {
  Descriptor& held = held_[name];
  if (held != nullptr && IsSameFile(held->get(), descriptor->get())) return {};
  Remove(name);
  held = descriptor;
  if (Store(name, descriptor->get())) return {};
  held = nullptr;
  return MakeError(ErrorCode::kUnavailable, "nothing_keeps", "systemd cannot be reached");
}

void SystemdStore::DoRelease(std::string_view name) {
  if (const auto found = passed_.find(name); found != passed_.end()) passed_.erase(found);
  if (const auto found = held_.find(name); found != held_.end()) held_.erase(found);
  Remove(name);
}

void SystemdStore::ReleaseUnclaimed() {
  for (const auto& [name, descriptor] : passed_) Remove(name);
  passed_.clear();
}

void SystemdStore::DoReleaseAll() {
  for (const auto& [name, descriptor] : held_) Remove(name);
  held_.clear();
  passed_.clear();
}

}  // namespace kvtier

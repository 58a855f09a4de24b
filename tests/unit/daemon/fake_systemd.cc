// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/daemon/fake_systemd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/result.h"

namespace kvtier {
namespace {

// The value of NAME=value in a message of lines; empty without.
std::string ValueOf(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::vector<UniqueFd> DescriptorsOf(msghdr* message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (part->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

FakeSystemd::FakeSystemd(size_t max_descriptors)
    : max_descriptors_(max_descriptors), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const std::string path = directory_.path() / "notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVT_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  KVT_CHECK(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  int ends[2];
  KVT_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  stop_reading_ = UniqueFd(ends[0]);
  stop_writing_ = UniqueFd(ends[1]);
  thread_ = std::thread([this] { Listen(); });
}

FakeSystemd::~FakeSystemd() {
  stop_writing_.Reset();
  thread_.join();
}

void FakeSystemd::Listen() {
  for (;;) {
    pollfd waiting[] = {{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                        {.fd = stop_reading_.get(), .events = POLLIN, .revents = 0}};
    ::poll(waiting, 2, -1);
    if (waiting[0].revents == 0) return;
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    iovec bytes{text, sizeof(text)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (received < 0) continue;
    OnMessage(std::string(text, static_cast<size_t>(received)), DescriptorsOf(&message));
  }
}

// Descriptors of a barrier are closed at the end; the sender waits for that.
void FakeSystemd::OnMessage(const std::string& text, std::vector<UniqueFd> descriptors) {
  const std::lock_guard lock(mutex_);
  messages_ += text + "\n";
  came_.notify_all();
  const std::string name = ValueOf(text, "FDNAME");
  if (ValueOf(text, "FDSTOREREMOVE") == "1") {
    std::erase_if(kept_, [&](const auto& kept) { return kept.first == name; });
  } else if (ValueOf(text, "FDSTORE") == "1") {
    for (UniqueFd& descriptor : descriptors) {
      if (kept_.size() < max_descriptors_) kept_.emplace_back(name, std::move(descriptor));
    }
  }
}

void FakeSystemd::Pass(const std::vector<int>& descriptors, const std::string& names,
                       bool says_so) const {
  ::setenv("NOTIFY_SOCKET", (directory_.path() / "notify").c_str(), 1);
  ::setenv("INVOCATION_ID", "0123456789abcdef0123456789abcdef", 1);
  if (says_so) ::setenv("FDSTORE", std::to_string(max_descriptors_).c_str(), 1);
  if (descriptors.empty()) return;
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", std::to_string(descriptors.size()).c_str(), 1);
  ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
  // Above all of their places first, so that none takes that of one that is still to come.
  std::vector<int> moved;
  for (const int descriptor : descriptors) moved.push_back(::fcntl(descriptor, F_DUPFD, 100));
  for (size_t i = 0; i < moved.size(); ++i) {
    ::dup2(moved[i], static_cast<int>(3 + i));
    ::close(moved[i]);
  }
}

pid_t FakeSystemd::Fork(const std::function<void()>& child, bool says_so) {
  std::vector<int> descriptors;
  std::string names;
  const std::lock_guard lock(mutex_);
  messages_.clear();
  for (const auto& [name, descriptor] : kept_) {
    names += (names.empty() ? "" : ":") + name;
    descriptors.push_back(descriptor.get());
  }
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  Pass(descriptors, names, says_so);
  child();
  ::_exit(127);
}

int FakeSystemd::Start(const std::function<int()>& process, bool says_so) {
  const pid_t pid = Fork([&] { ::_exit(process()); }, says_so);
  int status = 0;
  KVT_CHECK(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

pid_t FakeSystemd::Spawn(const std::vector<std::string>& arguments, bool says_so, int output) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.data()));
  argv.push_back(nullptr);
  // Above the descriptors that are passed.
  const UniqueFd kept_open(::fcntl(output, F_DUPFD_CLOEXEC, 100));
  return Fork(
      [&] {
        ::dup2(kept_open.get(), STDOUT_FILENO);
        ::dup2(kept_open.get(), STDERR_FILENO);
        ::execv(argv[0], argv.data());
      },
      says_so);
}

bool FakeSystemd::WaitFor(const std::string& text) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, std::chrono::seconds(60),
                        [&] { return messages_.find(text) != std::string::npos; });
}

std::string FakeSystemd::Messages() {
  const std::lock_guard lock(mutex_);
  return messages_;
}

std::vector<std::string> FakeSystemd::Names() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, descriptor] : kept_) names.push_back(name);
  return names;
}

}  // namespace kvtier

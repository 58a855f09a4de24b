// SPDX-License-Identifier: Apache-2.0
// kvtier-keeper SOCKET: started by kvtierd, see keeper.h. Returns once the keeper listens; the
// keeper goes on in the background, as no process's child. Ends with 3 if another one runs there.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "daemon/keeper/keeper.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// Nothing of the daemon's may stay open here, above all no listening socket.
void CloseInherited() { (void)::close_range(STDERR_FILENO + 1, ~0u, 0); }

// A reader of the daemon's output would otherwise wait for the keeper's end, too.
void LeaveOutput() {
  const kvtier::UniqueFd nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (nowhere.valid()) ::dup2(nowhere.get(), fd);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] != '/') {
    static constexpr char kUsage[] = "kvtier-keeper is started by kvtierd\n";
    (void)!::write(STDERR_FILENO, kUsage, sizeof(kUsage) - 1);
    return kExitUsage;
  }
  CloseInherited();
  ::umask(0177);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  (void)::setsid();
  // No file system is kept busy.
  if (::chdir("/") != 0) return kExitFailed;
  kvtier::Keeper keeper(argv[1]);
  switch (keeper.Open()) {
    case kvtier::Keeper::Opened::kFailed:
      return kExitFailed;
    case kvtier::Keeper::Opened::kAnotherRuns:
      return kvtier::kKeeperExitAnotherRuns;
    case kvtier::Keeper::Opened::kListening:
      break;
  }
  const pid_t child = ::fork();
  // The parent does not return, because that would remove the keeper's files.
  if (child != 0) ::_exit(child < 0 ? kExitFailed : 0);
  LeaveOutput();
  keeper.Run();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "daemon/net/peer.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "tests/unit/daemon/bystander.h"

namespace kvtier {
namespace {

TEST(SocketPeerInspector, TellsTheProcessAtTheOtherEnd) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd near(fds[0]);
  const UniqueFd far(fds[1]);
  const Result<Peer> peer = SocketPeerInspector().Inspect(near.get());
  ASSERT_TRUE(peer) << peer.error().ToString();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
  EXPECT_FALSE(ProcessHasEnded(peer->pidfd.get()));
}

TEST(SocketPeerInspector, RefusesWhatIsNotASocket) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd reading(fds[0]);
  const UniqueFd writing(fds[1]);
  EXPECT_FALSE(SocketPeerInspector().Inspect(reading.get()));
}

// Runs `check` as another user, in a process that sees those of no other user in /proc; needs root.
// Returns its exit status.
int CheckWhereProcIsHidden(const std::function<int()>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool hidden = ::unshare(CLONE_NEWNS) == 0 &&
                        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                        ::mount("proc", "/proc", "proc", 0, "hidepid=2") == 0 &&
                        ::setgid(65534) == 0 && ::setuid(65534) == 0;
    ::_exit(hidden ? check() : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WEXITSTATUS(status);
}

TEST(IdentityOf, IsKnownWhereProcHidesTheProcess) {
  const Bystander process;
  const ProcessIdentity seen = IdentityOf(process.pid());
  ASSERT_NE(seen.birth, 0u);
  const int same = CheckWhereProcIsHidden([&] {
    if (std::ifstream("/proc/" + std::to_string(process.pid()) + "/stat")) return 99;
    const ProcessIdentity hidden = IdentityOf(process.pid());
    // Kernels before 6.9 do not number processes: nothing is known then.
    return hidden.birth == 0 ? 98 : hidden == seen ? 0 : 1;
  });
  if (same == 99) GTEST_SKIP() << "skipped: /proc cannot be hidden here";
  if (same == 98) GTEST_SKIP() << "skipped: this kernel has no numbers of processes";
  EXPECT_EQ(same, 0);
}

TEST(IdentityOf, IsThatOfNoOtherProcess) {
  const Bystander one, two;
  EXPECT_EQ(IdentityOf(one.pid()), IdentityOf(one.pid()));
  EXPECT_NE(IdentityOf(one.pid()).birth, 0u);
  EXPECT_NE(IdentityOf(one.pid()), IdentityOf(two.pid()));
}

TEST(IsSameProcess, NumbersTellProcessesApartThatLive) {
  Bystander one, two;
  EXPECT_TRUE(IsSameProcess(one.peer(), one.peer()));
  EXPECT_FALSE(IsSameProcess(one.peer(), two.peer()));
  const Peer known = one.peer();
  Peer later = two.peer();
  later.pid = one.pid();
  one.Kill();
  EXPECT_FALSE(IsSameProcess(known, later)) << "the number was given to another after its end";
}

TEST(IsSameProcess, TheKernelTellsThoseApartThatHaveNoNumberHere) {
  Bystander one, two;
  EXPECT_FALSE(IsSameProcess(one.foreign_peer(), two.foreign_peer()));
  EXPECT_FALSE(IsSameProcess(one.foreign_peer(), one.peer()));
  if (!one.CanBeToldWithoutANumber()) GTEST_SKIP() << "only kernels since 6.9 can";
  EXPECT_TRUE(IsSameProcess(one.foreign_peer(), one.foreign_peer()));
}

TEST(TenantMap, UsersComeBeforeGroups) {
  const TenantMap tenants({{.name = "a", .uids = {1}}, {.name = "b", .uids = {2}, .gids = {10}}},
                          /*own_uid=*/77);
  const auto tenant_of = [&tenants](uint32_t uid, uint32_t gid) {
    Peer peer;
    peer.uid = uid;
    peer.gid = gid;
    const Result<std::string> tenant = tenants.TenantOf(peer);
    return tenant ? *tenant : tenant.error().reason;
  };
  EXPECT_EQ(tenant_of(1, 10), "a");
  EXPECT_EQ(tenant_of(2, 11), "b");
  EXPECT_EQ(tenant_of(3, 10), "b");
  EXPECT_EQ(tenant_of(3, 11), "unknown_user");
  // A user that is not named has no tenant, the daemon's own user and root included.
  EXPECT_EQ(tenant_of(77, 11), "unknown_user");
  EXPECT_EQ(tenant_of(0, 0), "unknown_user");
}

TEST(TenantMap, WithoutTenantsTheOwnUserIsTheDefault) {
  const TenantMap tenants({}, /*own_uid=*/77);
  Peer peer;
  peer.uid = 77;
  EXPECT_EQ(tenants.TenantOf(peer).value(), "default");
  peer.uid = 78;
  EXPECT_FALSE(tenants.TenantOf(peer));
}

}  // namespace
}  // namespace kvtier

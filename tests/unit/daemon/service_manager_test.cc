// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "daemon/runtime/supervision.h"
#include "tests/unit/daemon/notify_socket.h"

namespace kvtier {
namespace {

TEST(ServiceManager, SaysWhenItIsReadyAndWhatItDoes) {
  NotifySocket systemd;
  ServiceManager manager;
  manager.Extend("Rebuilding", 2000);
  EXPECT_EQ(systemd.Receive(), "STATUS=Rebuilding\nEXTEND_TIMEOUT_USEC=2000000");
  manager.Ready("Serving");
  EXPECT_EQ(systemd.Receive(), "READY=1\nSTATUS=Serving");
  manager.Alive();
  EXPECT_EQ(systemd.Receive(), "WATCHDOG=1");
  manager.Stopping("Draining", 1);
  EXPECT_EQ(systemd.Receive(), "STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC=1000");
}

TEST(ServiceManager, RepeatsNoStatus) {
  NotifySocket systemd;
  ServiceManager manager;
  manager.Status("one");
  manager.Status("one");
  manager.Status("two");
  EXPECT_EQ(systemd.Receive(), "STATUS=one");
  EXPECT_EQ(systemd.Receive(), "STATUS=two");
}

TEST(ServiceManager, ReloadCarriesItsTime) {
  NotifySocket systemd;
  ServiceManager().Reloading();
  EXPECT_EQ(systemd.Receive().rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0u);
}

TEST(ServiceManager, WatchdogIsOffUnlessSystemdAsksForIt) {
  EXPECT_EQ(ServiceManager::WatchdogMs(), 0);
  ::setenv("WATCHDOG_USEC", "30000000", 1);
  EXPECT_EQ(ServiceManager::WatchdogMs(), 30'000);
  ::setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceManager::WatchdogMs(), 0) << "meant for another process";
  ::unsetenv("WATCHDOG_PID");
  ::unsetenv("WATCHDOG_USEC");
}

}  // namespace
}  // namespace kvtier

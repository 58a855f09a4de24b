// SPDX-License-Identifier: Apache-2.0
// Nothing is taken of a GPU, and nothing pinned through it, before a client wants it.
#include "gpu/on_demand_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_executor.h"
#include "tests/fakes/fake_gpus.h"
#include "tests/fakes/fake_loop.h"

namespace kvtier {
namespace {

class OnDemandDeviceTest : public testing::Test {
 protected:
  // The outcome of a client's wait; nothing while it waits.
  std::shared_ptr<std::optional<Status>> Ask() {
    const auto outcome = std::make_shared<std::optional<Status>>();
    device_.WhenOpen([outcome](const Status& opened) { *outcome = opened; });
    return outcome;
  }
  void RunAll() { loop_.RunAll(); }

  FakeLoop loop_;
  FakeExecutor executor_{&loop_};
  BlockingLoop device_loop_;
  FakeGpus gpus_{2};
  std::vector<std::string> notes_;
  DeferredPinner pinner_{gpus_.MakePinner(), &executor_,
                         [this](const std::string& note) { notes_.push_back(note); }};
  OnDemandDevice device_{gpus_.LookAt(1).value(),
                         {.executor = &executor_, .pinner = &pinner_, .open = [this] {
                            return gpus_.Open({.ordinal = 1}, &device_loop_);
                          }}};
  std::vector<std::byte> memory_ = std::vector<std::byte>(300);
};

TEST_F(OnDemandDeviceTest, IsKnownBeforeItIsOpen) {
  EXPECT_EQ(device_.info().ordinal, 1);
  EXPECT_FALSE(device_.is_open());
  EXPECT_EQ(device_.CreatePool(4096).error().reason, "device_not_open");
  LentMemory lent;
  EXPECT_EQ(device_.Borrow(&lent).error().reason, "device_not_open");
  EXPECT_EQ(device_.unreachable_counter_pages(), 0u);
  EXPECT_TRUE(gpus_.opened().empty());
}

TEST_F(OnDemandDeviceTest, IsOpenedOnceForAllWhoWait) {
  const auto first = Ask();
  const auto second = Ask();
  EXPECT_FALSE(first->has_value()) << "opening takes a tenth of a second, and the loop never waits";
  RunAll();
  EXPECT_TRUE(first->value() && second->value());
  EXPECT_EQ(gpus_.opened(), std::vector{1});
  EXPECT_TRUE(device_.CreatePool(4096));
  EXPECT_TRUE(Ask()->value()) << "within the call";
}

// A GPU's memory of 80 GiB takes a good part of a second to map.
TEST_F(OnDemandDeviceTest, MapsLentMemoryOffTheEventLoop) {
  const auto lent = std::make_shared<LentMemory>();
  lent->kind = LentMemory::Kind::kVmm;
  std::optional<Status> mapped;
  const auto map = [&] { device_.Map(lent, [&](Status status) { mapped = std::move(status); }); };
  map();
  EXPECT_EQ(mapped->error().reason, "device_not_open");
  (void)Ask();
  RunAll();
  mapped.reset();
  map();
  EXPECT_FALSE(mapped) << "the loop goes on meanwhile";
  RunAll();
  EXPECT_EQ(mapped->error().reason, "region_memory_kind") << "this GPU is a fake in host memory";
}

TEST_F(OnDemandDeviceTest, BorrowsWhatWasMapped) {
  (void)Ask();
  RunAll();
  LentMemory lent{.kind = LentMemory::Kind::kVmm};
  lent.mapped = device_.CreatePool(4096).value();
  const DevicePool* const mapped = lent.mapped.get();
  EXPECT_EQ(device_.Borrow(&lent)->get(), mapped);
}

// Its session may end before it borrows the memory.
TEST_F(OnDemandDeviceTest, LetsGoOfMappedMemoryOffTheEventLoopToo) {
  FakeDevice* gpu = nullptr;
  const auto open = [&]() -> Result<std::unique_ptr<Device>> {
    auto opened = std::make_unique<FakeDevice>(&loop_, kMiB, 1);
    gpu = opened.get();
    return opened;
  };
  OnDemandDevice device(gpus_.LookAt(0).value(),
                        {.executor = &executor_, .pinner = &pinner_, .open = open});
  ASSERT_TRUE(device.OpenNow());
  auto lent =
      std::make_shared<LentMemory>(LentMemory{.kind = LentMemory::Kind::kVmm, .bytes = 4096});
  device.Map(lent, [](const Status& mapped) { EXPECT_TRUE(mapped); });
  RunAll();
  lent.reset();
  EXPECT_EQ(gpu->lent().size(), 1u) << "the loop goes on meanwhile";
  RunAll();
  EXPECT_TRUE(gpu->lent().empty());
}

TEST_F(OnDemandDeviceTest, ThatCannotBeOpenedIsTriedAgainForTheNextClient) {
  gpus_.RefuseToOpen(1);
  const auto refused = Ask();
  RunAll();
  EXPECT_EQ(refused->value().error().reason, "cudaErrorMemoryAllocation");
  const auto again = Ask();
  RunAll();
  EXPECT_TRUE(again->value());
}

TEST_F(OnDemandDeviceTest, PinsWhatWasNotedOnceItIsOpen) {
  const std::span all(memory_);
  EXPECT_TRUE(pinner_.Pin(all.first(100)));
  EXPECT_TRUE(pinner_.Pin(all.subspan(100, 100)));
  RunAll();
  EXPECT_TRUE(gpus_.pinner()->pinned().empty()) << "pinning would make a context";
  (void)Ask();
  RunAll();
  EXPECT_EQ(gpus_.pinner()->pinned(), (std::vector{&memory_[0], &memory_[100]}));
  EXPECT_TRUE(pinner_.Pin(all.last(100)));
  EXPECT_EQ(gpus_.pinner()->pinned().size(), 3u) << "at once from now on";
  for (const size_t at : {0, 100, 200}) pinner_.Unpin(all.subspan(at, 100));
  EXPECT_TRUE(gpus_.pinner()->pinned().empty());
}

TEST_F(OnDemandDeviceTest, KeepsMemoryFromBeingTouchedWhileItOpens) {
  const auto may_touch = [this] { return pinner_.opening()->Wait(std::chrono::milliseconds(0)); };
  std::optional<bool> meanwhile;
  OnDemandDevice device(gpus_.LookAt(0).value(),
                        {.executor = &executor_, .pinner = &pinner_, .open = [&] {
                           meanwhile = may_touch();
                           return gpus_.Open({.ordinal = 0}, &device_loop_);
                         }});
  device.WhenOpen([](const Status&) {});
  RunAll();
  EXPECT_EQ(meanwhile, false);
  EXPECT_TRUE(may_touch());
}

TEST_F(OnDemandDeviceTest, ForgetsWhatIsUnpinnedBeforeItWasPinned) {
  const std::span all(memory_);
  EXPECT_TRUE(pinner_.Pin(all.first(100)));
  EXPECT_TRUE(pinner_.Pin(all.last(100)));
  pinner_.Unpin(all.first(100));
  EXPECT_TRUE(device_.OpenNow());
  RunAll();
  EXPECT_EQ(gpus_.pinner()->pinned(), std::vector{&memory_[200]});
}

TEST_F(OnDemandDeviceTest, SaysWhatCouldNotBePinnedAndGoesOnWithoutIt) {
  EXPECT_TRUE(pinner_.Pin(memory_));
  gpus_.pinner()->Refuse();
  EXPECT_TRUE(device_.OpenNow());
  RunAll();
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("no_pins"), std::string::npos);
  pinner_.Unpin(memory_);  // which the pinner does not know
}

}  // namespace
}  // namespace kvtier

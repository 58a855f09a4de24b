// SPDX-License-Identifier: Apache-2.0
// Streams and scratch memory on GPUs that are not there.
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/service/device_stream.h"
#include "tests/fakes/fake_kernel_table.h"

namespace kvtier::kernels {
namespace {

class DeviceBufferTest : public testing::Test {
 protected:
  // The test that uses them last leaves nothing behind, and makes no mistake.
  void TearDown() override {
    stream_.reset();
    for (int32_t gpu = 0; gpu < FakeKernelTable::kGpus; ++gpu) {
      EXPECT_EQ(gpus_.BytesOn(gpu), 0u) << gpu;
      EXPECT_EQ(gpus_.StreamsOn(gpu), 0u) << gpu;
    }
    EXPECT_EQ(gpus_.mistakes(), std::vector<std::string>());
  }
  DeviceStream& StreamOn(int32_t gpu) {
    EXPECT_EQ(stream_.emplace().Open({gpus_.table(), gpu}), KVT_KERNEL_OK);
    return *stream_;
  }

  FakeKernelTable gpus_;
  std::optional<DeviceStream> stream_;
};

TEST_F(DeviceBufferTest, GrowsToAPowerOfTwoAndNeverShrinks) {
  const DeviceStream& stream = StreamOn(2);
  DeviceBuffer buffer;
  ASSERT_EQ(buffer.Reserve(stream, 1), KVT_KERNEL_OK);
  EXPECT_EQ(buffer.bytes(), DeviceBuffer::kMinBytes);
  ASSERT_EQ(buffer.Reserve(stream, 5 * DeviceBuffer::kMinBytes), KVT_KERNEL_OK);
  EXPECT_EQ(buffer.bytes(), 8 * DeviceBuffer::kMinBytes);
  const void* const memory = buffer.memory();
  ASSERT_EQ(buffer.Reserve(stream, 1), KVT_KERNEL_OK);
  EXPECT_EQ(buffer.memory(), memory);
  // Its earlier memory is given back.
  EXPECT_EQ(gpus_.BytesOn(2), 8 * DeviceBuffer::kMinBytes);
}

TEST_F(DeviceBufferTest, WaitsForTheStreamBeforeItGivesMemoryBack) {
  const DeviceStream& stream = StreamOn(0);
  DeviceBuffer buffer;
  ASSERT_EQ(buffer.Reserve(stream, 1), KVT_KERNEL_OK);
  const int before = gpus_.synchronised();
  ASSERT_EQ(buffer.Reserve(stream, DeviceBuffer::kMinBytes), KVT_KERNEL_OK);
  EXPECT_EQ(gpus_.synchronised(), before);
  ASSERT_EQ(buffer.Reserve(stream, DeviceBuffer::kMinBytes + 1), KVT_KERNEL_OK);
  EXPECT_EQ(gpus_.synchronised(), before + 1);
}

TEST_F(DeviceBufferTest, HasNoRoomAfterMemoryWasRefused) {
  const DeviceStream& stream = StreamOn(0);
  DeviceBuffer buffer;
  ASSERT_EQ(buffer.Reserve(stream, 1), KVT_KERNEL_OK);
  gpus_.allocate_answer = KVT_KERNEL_OUT_OF_MEMORY;
  EXPECT_EQ(buffer.Reserve(stream, 2 * DeviceBuffer::kMinBytes), KVT_KERNEL_OUT_OF_MEMORY);
  EXPECT_EQ(buffer.bytes(), 0u);
  EXPECT_EQ(buffer.memory(), nullptr);
  EXPECT_EQ(buffer.Upload(stream, "abc", 3), KVT_KERNEL_OUT_OF_MEMORY);
  gpus_.allocate_answer = KVT_KERNEL_OK;
  EXPECT_EQ(buffer.Reserve(stream, 1), KVT_KERNEL_OK);
}

TEST_F(DeviceBufferTest, TakesWhatIsUploaded) {
  const DeviceStream& stream = StreamOn(1);
  const std::vector<int32_t> numbers = {3, 1, 4, 1, 5};
  DeviceBuffer buffer;
  ASSERT_EQ(buffer.Upload(stream, numbers.data(), numbers.size() * 4), KVT_KERNEL_OK);
  const auto* const there = static_cast<const int32_t*>(buffer.memory());
  EXPECT_EQ(std::vector<int32_t>(there, there + numbers.size()), numbers);
  EXPECT_EQ(buffer.Upload(stream, nullptr, 0), KVT_KERNEL_OK);
}

TEST_F(DeviceBufferTest, MemoryBelongsToWhomItWasMovedTo) {
  const DeviceStream& stream = StreamOn(3);
  DeviceBuffer first;
  ASSERT_EQ(first.Reserve(stream, 1), KVT_KERNEL_OK);
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(gpus_.BytesOn(3), DeviceBuffer::kMinBytes);
  DeviceBuffer third;
  ASSERT_EQ(third.Reserve(stream, 2 * DeviceBuffer::kMinBytes), KVT_KERNEL_OK);
  third = std::move(second);
  EXPECT_EQ(gpus_.BytesOn(3), DeviceBuffer::kMinBytes);
  EXPECT_EQ(third.bytes(), DeviceBuffer::kMinBytes);
}

TEST_F(DeviceBufferTest, EachGpusIsGivenBackThereFromAnyThread) {
  DeviceStream one, other;
  ASSERT_EQ(one.Open({gpus_.table(), 0}), KVT_KERNEL_OK);
  ASSERT_EQ(other.Open({gpus_.table(), 1}), KVT_KERNEL_OK);
  DeviceBuffer of_one, of_other;
  ASSERT_EQ(of_one.Reserve(one, 1), KVT_KERNEL_OK);
  ASSERT_EQ(of_other.Reserve(other, 1), KVT_KERNEL_OK);
  // The second GPU is this thread's current one, the first the other thread's.
  std::thread([&] {
    ASSERT_EQ(of_other.Reserve(other, 2 * DeviceBuffer::kMinBytes), KVT_KERNEL_OK);
    of_other = DeviceBuffer();
  }).join();
  of_one = DeviceBuffer();
  EXPECT_EQ(one.Synchronize(), KVT_KERNEL_OK);
  EXPECT_EQ(other.Synchronize(), KVT_KERNEL_OK);
}

TEST_F(DeviceBufferTest, AStreamThatIsMovedIsStillOne) {
  DeviceStream moved;
  {
    DeviceStream made;
    ASSERT_EQ(made.Open({gpus_.table(), 1}), KVT_KERNEL_OK);
    moved = std::move(made);
  }
  EXPECT_EQ(gpus_.StreamsOn(1), 1u);
  EXPECT_EQ(moved.Synchronize(), KVT_KERNEL_OK);
}

TEST_F(DeviceBufferTest, AGpuThatIsNotThereHasNoStream) {
  DeviceStream stream;
  EXPECT_EQ(stream.Open({gpus_.table(), FakeKernelTable::kGpus}), KVT_KERNEL_UNSUPPORTED);
  gpus_.stream_answer = KVT_KERNEL_LAUNCH_FAILED;
  EXPECT_EQ(stream.Open({gpus_.table(), 0}), KVT_KERNEL_LAUNCH_FAILED);
  EXPECT_EQ(stream.get(), nullptr);
}

}  // namespace
}  // namespace kvtier::kernels

// SPDX-License-Identifier: Apache-2.0
// Questions for many files: how many are asked for, by how many threads, and whose turn it is.
#include "daemon/cold/files/file_question.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/posix.h"
#include "tests/fakes/shared_directory.h"
#include "tests/unit/daemon/files_host.h"

namespace kvtier {
namespace {

// Answers a question for a file after a while; or the first one, and others when so many are asked
// together.
class SlowFiles final : public FileSystem {
 public:
  int Open(int directory, const char* path, int flags) override {
    if (flags == O_PATH) Wait();
    return FileSystem::Open(directory, path, flags);
  }

  size_t together = 1;
  std::atomic<size_t> asked = 0;
  std::atomic<bool> were_together = false;

 private:
  void Wait() {
    constexpr std::chrono::milliseconds kSlow{2};
    std::unique_lock lock(mutex_);
    const bool is_first = ++asked == 1;
    if (++waiting_ >= together) were_together = true;
    changed_.notify_all();
    if (is_first || together == 1) {
      changed_.wait_for(lock, kSlow, [] { return false; });
    } else {
      changed_.wait_for(lock, std::chrono::minutes(1), [this] { return were_together.load(); });
    }
    --waiting_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_ = 0;
};

// Answers questions for kFile when it is told to: for a few, and then for the others.
class HeldFiles final : public FileSystem {
 public:
  int Open(int directory, const char* path, int flags) override {
    if (flags == O_PATH && std::string(path).ends_with("/abcdef")) {
      begun_.wait();
      if (++asked_ > kFew) goes_on_.wait();
    }
    return FileSystem::Open(directory, path, flags);
  }

  std::promise<void> begin, go_on;

 private:
  static constexpr size_t kFew = 64;
  const std::shared_future<void> begun_ = begin.get_future().share();
  const std::shared_future<void> goes_on_ = go_on.get_future().share();
  std::atomic<size_t> asked_ = 0;
};

// Fails for one file, or hangs.
class UnevenFiles final : public FileSystem {
 public:
  int Open(int directory, const char* path, int flags) override {
    if (!std::string(path).ends_with(uneven)) return FileSystem::Open(directory, path, flags);
    if (error != 0) return -error;
    has_hung = true;
    released.wait();
    return -ENOENT;
  }

  const std::string uneven = "17hash";
  std::atomic<int> error = 0;  // 0: it hangs
  std::atomic<bool> has_hung = false;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
};

class FileQuestionTest : public SharedDirectoryTest {};

TEST_F(FileQuestionTest, APrefixIsAskedForUntilTheFirstThatIsAbsent) {
  Host host(root());
  for (const char* const hash : {"aa11", "aa22", "bb44"}) {
    ASSERT_EQ(host.Put(std::string("kvtier/1/a/m/") + hash, "x").status, KVT_COLD_OK);
  }
  const std::vector<std::string> names = {"kvtier/1/a/m/aa11", "kvtier/1/a/m/bb33",
                                          "kvtier/1/a/m/aa22", "kvtier/1/a/m/bb44"};
  EXPECT_EQ(host.Exists(names), "1000");
  EXPECT_EQ(host.Exists(names, true), "1011");
  EXPECT_EQ(host.Exists({"kvtier/probe"}), "0");
}

TEST_F(FileQuestionTest, ASlowFileSystemIsAskedForManyFilesAtOnce) {
  const auto files = std::make_shared<SlowFiles>();
  files->together = 6;
  Host host(root(), files);
  std::vector<std::string> names;
  for (int i = 10; i < 50; ++i) names.push_back("kvtier/1/a/m/" + std::to_string(i) + "hash");
  for (const std::string& name : names) ASSERT_EQ(host.Put(name, "x").status, KVT_COLD_OK);
  EXPECT_EQ(host.Exists(names), std::string(40, '1'));
  EXPECT_TRUE(files->were_together);
  const std::vector<std::string> gone(names.begin() + 17, names.begin() + 33);
  ASSERT_EQ(host.Remove(gone).status, KVT_COLD_OK);
  EXPECT_EQ(host.Exists(names), std::string(17, '1') + std::string(23, '0'));
  EXPECT_EQ(host.Exists(names, true),
            std::string(17, '1') + std::string(16, '0') + std::string(7, '1'));
}

TEST_F(FileQuestionTest, ASlowFileSystemThatHasNothingOfAPrefixIsAskedOnce) {
  const auto files = std::make_shared<SlowFiles>();
  Host host(root(), files);
  const std::vector<std::string> names(100, kName);
  EXPECT_EQ(host.Exists(names), std::string(100, '0'));
  EXPECT_EQ(files->asked, 1u);
}

TEST_F(FileQuestionTest, APrefixIsToldAsFarAsItIsKnownInTime) {
  constexpr size_t kNames = 320'000;
  Host host(root(), std::make_shared<SlowFiles>());
  ASSERT_EQ(host.Put(kName, "x").status, KVT_COLD_OK);
  std::string present;
  size_t known = 0;
  // A busy machine may come to none in that time.
  for (int64_t timeout_ms = 1000; known == 0; timeout_ms *= 2) {
    present = host.Exists(std::vector<std::string>(kNames, kName), false, timeout_ms);
    known = present.find('0');
  }
  EXPECT_LT(known, kNames);
  EXPECT_EQ(present, std::string(known, '1') + std::string(kNames - known, '0'));
}

TEST_F(FileQuestionTest, AFileThatFailsOrHangsLeavesWhatIsKnownOfAPrefix) {
  std::vector<std::string> names;
  for (int i = 10; i < 20; ++i) names.push_back("kvtier/1/a/m/" + std::to_string(i) + "hash");
  for (const std::string& name : names) ASSERT_EQ(Host(root()).Put(name, "x").status, KVT_COLD_OK);
  const auto files = std::make_shared<UnevenFiles>();
  Host host(root(), files);
  for (const int error : {EACCES, EIO}) {
    files->error = error;
    EXPECT_EQ(host.Exists(names), "1111000000");
    EXPECT_TRUE(host.Exists(names, true).starts_with(ErrnoName(error)));
    EXPECT_TRUE(host.Exists({names[7], names[0]}).starts_with(ErrnoName(error)));
  }
  files->error = 0;
  std::future<Told> told;
  // A busy machine may pass the end before it comes to that file.
  for (int64_t timeout_ms = 100; !files->has_hung; timeout_ms *= 2) {
    told = host.Begin([&](uint64_t call) { host.store().Exists(call, names, false, timeout_ms); });
    EXPECT_EQ(told.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  }
  files->release.set_value();
  EXPECT_EQ(told.get().text, std::string(4, '\1') + std::string(6, '\0'));
}

TEST_F(FileQuestionTest, AQuestionGoesOnWithoutAThreadThatCouldNotHelp) {
  const std::vector<std::string> names(4, kName);
  ASSERT_EQ(Host(root()).Put(kName, "x").status, KVT_COLD_OK);
  FileQuestion question(std::make_shared<ObjectFiles>(root(), std::make_shared<SlowFiles>()), names,
                        false, FileQuestion::Time::max());
  question.Enter(1);
  const auto refuse = [&](size_t threads) {
    question.Enter(threads);
    for (; threads > 0; --threads) question.Leave({.status = KVT_COLD_BUSY, .text = "too many"});
  };
  std::optional<FileOutcome> end;
  while (!(end = question.TakeEnd())) question.Ask(refuse, [] { return true; });
  EXPECT_EQ(end->text, std::string(4, '\1'));
}

TEST_F(FileQuestionTest, AQuestionEndsWithTheLastThreadThatCouldNotGoOn) {
  for (const bool each : {false, true}) {
    ASSERT_EQ(Host(root()).Put(kName, "x").status, KVT_COLD_OK);
    FileQuestion question(std::make_shared<ObjectFiles>(root(), std::make_shared<SlowFiles>()),
                          std::vector<std::string>(400, kName), each, FileQuestion::Time::max());
    question.Enter(1);
    size_t entered = 0;
    const auto enter = [&](size_t threads) {
      question.Enter(threads);
      entered += threads;
    };
    question.Ask(enter, [] { return true; });
    ASSERT_GT(entered, 0u) << "a thread gives way after its turn";
    EXPECT_FALSE(question.TakeEnd());
    for (; entered > 0; --entered) question.Leave({.status = KVT_COLD_LATE, .text = "late"});
    question.Leave({});
    const std::optional<FileOutcome> end = question.TakeEnd();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->status, each ? KVT_COLD_LATE : KVT_COLD_OK) << "part of a prefix is of use";
  }
}

TEST_F(FileQuestionTest, AQuestionForEachEndsAtItsDeadline) {
  const auto files = std::make_shared<SlowFiles>();
  FileQuestion question(std::make_shared<ObjectFiles>(root(), files),
                        std::vector<std::string>(400, kName), true, FileQuestion::Time::min());
  question.Enter(1);
  question.Ask([](size_t) {}, [] { return false; });
  question.Leave({});
  EXPECT_EQ(question.TakeEnd()->status, KVT_COLD_LATE);
  EXPECT_LE(files->asked, 1u);
}

TEST_F(FileQuestionTest, AFloodOfQuestionsHoldsUpNoOtherTenants) {
  const std::string bobs = "kvtier/1/bob/model-4096/fedcba";
  for (const std::string& name : {kName, bobs}) {
    ASSERT_EQ(Host(root()).Put(name, "x").status, KVT_COLD_OK);
  }
  struct Flood {
    size_t questions, names;
  };
  for (const Flood& flood : {Flood{100, 8}, Flood{4, 400}}) {
    const auto files = std::make_shared<HeldFiles>();
    Host host(root(), files);
    std::vector<std::future<Told>> told;
    for (size_t i = 0; i < flood.questions; ++i) {
      const std::vector<std::string> names(flood.names, kName);
      told.push_back(
          host.Begin([&](uint64_t call) { host.store().Exists(call, names, true, kTimeoutMs); }));
    }
    std::future<Told> other =
        host.Begin([&](uint64_t call) { host.store().Exists(call, {bobs}, false, kTimeoutMs); });
    files->begin.set_value();
    EXPECT_EQ(other.wait_for(std::chrono::minutes(1)), std::future_status::ready);
    files->go_on.set_value();
    EXPECT_EQ(other.get().text, std::string(1, '\1'));
    for (std::future<Told>& one : told) EXPECT_EQ(one.get().text, std::string(flood.names, '\1'));
  }
}

}  // namespace
}  // namespace kvtier

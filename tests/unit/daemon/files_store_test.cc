// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/files/files_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/shared_directory.h"
#include "tests/unit/daemon/files_host.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

// Fails as it is told, for as many calls as it is told.
class FailingFiles final : public FileSystem {
 public:
  int Open(int directory, const char* name, int flags) override {
    if (hanging_opens) {
      ++hanging;
      released.wait();
    }
    if ((flags & O_PATH) == 0 && Fails(&opens)) return -error;
    return FileSystem::Open(directory, name, flags);
  }
  int Stat(int directory, const char* name, struct stat* found) override {
    return Fails(&stats) ? -error : FileSystem::Stat(directory, name, found);
  }
  ssize_t Read(int file, std::span<std::byte> into, off_t offset) override {
    return Fails(&reads) ? -error : FileSystem::Read(file, into, offset);
  }
  ssize_t Write(int file, std::span<const std::byte> bytes, off_t offset) override {
    return Fails(&writes) ? -error : FileSystem::Write(file, bytes.first(1), offset);
  }
  int Close(int file) override {
    const int closed = FileSystem::Close(file);
    return Fails(&closes) ? -error : closed;
  }
  int Rename(int directory, const char* from, const char* to) override {
    return Fails(&renames) ? -error : FileSystem::Rename(directory, from, to);
  }
  int Unlink(int directory, const char* name, int flags) override {
    return Fails(&unlinks) ? -error : FileSystem::Unlink(directory, name, flags);
  }

  // Counts of calls to fail; `error` is set before them.
  std::atomic<int> opens = 0, stats = 0, reads = 0, writes = 0, closes = 0, renames = 0,
                   unlinks = 0;
  std::atomic<int> error = 0;
  std::atomic<bool> hanging_opens = false;
  std::atomic<int> hanging = 0;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();

 private:
  [[nodiscard]] static bool Fails(std::atomic<int>* left) {
    if (*left == 0) return false;
    --*left;
    return true;
  }
};

class FilesStoreTest : public SharedDirectoryTest {};

TEST_F(FilesStoreTest, WhatOneHostWritesAnotherReads) {
  Host one(root());
  Host other(root());
  EXPECT_EQ(other.Get(kName, 5).status, KVT_COLD_ABSENT);
  EXPECT_EQ(one.Put(kName, "bytes").status, KVT_COLD_OK);
  EXPECT_EQ(other.Get(kName, 5).text, "bytes");
  EXPECT_EQ(other.Get(kName, 3).bytes, 4u) << "a longer one is not read whole";
  EXPECT_EQ(one.Put(kName, "again").status, KVT_COLD_OK);
  EXPECT_EQ(other.Get(kName, 5).text, "again");
  EXPECT_EQ(other.Remove({kName, kName}).status, KVT_COLD_OK);
  EXPECT_EQ(one.Get(kName, 5).status, KVT_COLD_ABSENT);
  EXPECT_EQ(CountFiles(), 0u);
}

TEST_F(FilesStoreTest, AFilePastItsEndIsAbsentOnEachHost) {
  Host host(root());
  EXPECT_EQ(host.Put(kName, "bytes", 3600).status, KVT_COLD_OK);
  struct stat found {};
  ASSERT_EQ(::stat((root() / kFile).c_str(), &found), 0);
  EXPECT_NEAR(static_cast<double>(found.st_mtime - std::time(nullptr)), 3600, 60);
  MakeFile(kFile, std::time(nullptr) - 1);
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_ABSENT);
  EXPECT_EQ(host.Exists({kName}), "0");
}

TEST_F(FilesStoreTest, NoNameLeadsOutOfTheDirectory) {
  Host host(root());
  EXPECT_EQ(host.Put("kvtier/1/../../hash", "bytes").status, KVT_COLD_OK);
  EXPECT_TRUE(fs::exists(root() / "kvtier/1/%2E./%2E./ha/hash"));
  for (const char* const name : {"", "hash", "/etc/hash", "a//hash", "a/b c/hash", "a/hash/"}) {
    EXPECT_EQ(host.Put(name, "bytes").status, KVT_COLD_REFUSED) << name;
    EXPECT_EQ(host.Get(name, 5).status, KVT_COLD_REFUSED) << name;
    EXPECT_EQ(host.Exists({name}), "0") << name;
  }
}

TEST_F(FilesStoreTest, SymbolicLinksAreNotFollowed) {
  Host host(root());
  const fs::path outside = directory_.path() / "outside";
  fs::create_directories(outside);
  std::ofstream(outside / "abcdef") << "bytes";
  ASSERT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  fs::remove(root() / kFile);
  fs::create_symlink(outside / "abcdef", root() / kFile);
  EXPECT_EQ(host.Get(kName, 5).text, "ELOOP: a foreign file stands there");
  EXPECT_EQ(host.Exists({kName}), "0");
  EXPECT_EQ(host.Put(kName, "other").status, KVT_COLD_OK) << "the link is replaced";
  fs::remove_all(root() / "kvtier/1/alice/model-4096/ab");
  fs::create_directory_symlink(outside, root() / "kvtier/1/alice/model-4096/ab");
  EXPECT_EQ(host.Put(kName, "other").text, "ENOTDIR: a foreign file stands there");
  EXPECT_EQ(host.Get(kName, 5).text, "ELOOP: a foreign file stands there");
  EXPECT_EQ(host.Exists({kName}), "0");
  EXPECT_EQ(host.Remove({kName}).status, KVT_COLD_REFUSED);
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice/").status, KVT_COLD_OK);
  EXPECT_TRUE(fs::exists(outside / "abcdef"));
  EXPECT_EQ(fs::file_size(outside / "abcdef"), 5u);
}

TEST_F(FilesStoreTest, ForeignFilesInTheirPlacesAreRefused) {
  Host host(root());
  fs::create_directories((root() / kFile).parent_path());
  ASSERT_EQ(::mkfifo((root() / kFile).c_str(), 0600), 0);
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_REFUSED) << "without waiting for its writer";
  EXPECT_EQ(host.Exists({kName}), "0");
  fs::remove(root() / kFile);
  fs::create_directories(root() / kFile / "below");
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_REFUSED);
  EXPECT_EQ(host.Put(kName, "bytes").text, "EISDIR: a foreign file stands there");
  EXPECT_EQ(CountFiles(), 0u) << "no temporary file is left";
}

TEST_F(FilesStoreTest, AWriteThatFailsTellsWhyAndLeavesNothing) {
  const auto files = std::make_shared<FailingFiles>();
  Host host(root(), files);
  ASSERT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  for (std::atomic<int>* const call :
       {&files->opens, &files->writes, &files->closes, &files->renames}) {
    for (const int error : {ENOSPC, EDQUOT, EROFS, EACCES}) {
      files->error = error;
      *call = 1;
      const Told told = host.Put(kName, "other");
      EXPECT_EQ(told.status, KVT_COLD_REFUSED);
      EXPECT_TRUE(told.text.starts_with(ErrnoName(error) + ": ")) << told.text;
      EXPECT_EQ(host.Get(kName, 5).text, "bytes") << "as it was";
      EXPECT_EQ(CountFiles(), 1u);
    }
  }
}

TEST_F(FilesStoreTest, AFileSystemThatFailsIsUnavailable) {
  const auto files = std::make_shared<FailingFiles>();
  Host host(root(), files);
  ASSERT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  files->error = EIO;
  files->reads = 1;
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_UNAVAILABLE);
  files->stats = 1;
  EXPECT_EQ(host.Exists({kName}), "EIO: Input/output error");
  files->unlinks = 1;
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice/").status, KVT_COLD_UNAVAILABLE);
  files->error = EMFILE;
  files->opens = 1;
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_BUSY);
}

TEST_F(FilesStoreTest, AStaleHandleIsTriedOnceMore) {
  const auto files = std::make_shared<FailingFiles>();
  Host host(root(), files);
  files->error = ESTALE;
  files->renames = 1;
  EXPECT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  files->reads = 1;
  EXPECT_EQ(host.Get(kName, 5).text, "bytes");
  files->stats = 1;
  EXPECT_EQ(host.Exists({kName}), "1");
  files->reads = 2;
  EXPECT_EQ(host.Get(kName, 5).status, KVT_COLD_UNAVAILABLE);
}

TEST_F(FilesStoreTest, ADirectoryThatIsNotMountedIsUnavailableAndIsNotMade) {
  fs::remove_all(root());
  Host host(root());
  EXPECT_EQ(host.Exists({kName}), "ENODEV: the directory is not there");
  EXPECT_EQ(host.Put(kName, "bytes").status, KVT_COLD_UNAVAILABLE);
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice/").status, KVT_COLD_UNAVAILABLE);
  EXPECT_FALSE(fs::exists(root()));
  fs::create_directory(root());
  EXPECT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK) << "it was mounted late";
}

TEST_F(FilesStoreTest, CallsThatAreMadeTogetherAreSentTogether) {
  constexpr size_t kCalls = 64;
  Host host(root());
  const std::string bytes = "bytes";
  std::vector<std::future<Told>> puts;
  for (size_t i = 0; i < kCalls; ++i) {
    const std::string name = "kvtier/1/a/m/" + std::to_string(10 + i) + "hash";
    puts.push_back(host.Make([&](uint64_t call) {
      host.store().Put(call, name, bytes.data(), bytes.size(), kDayS, kTimeoutMs);
    }));
  }
  EXPECT_EQ(CountFiles(), 0u) << "none begins before";
  host.store().Send();
  for (std::future<Told>& put : puts) EXPECT_EQ(put.get().status, KVT_COLD_OK);
  EXPECT_EQ(CountFiles(), kCalls);
}

// An inode's time of access is written by a mount with `relatime` if it is not later than the
// others.
TEST_F(FilesStoreTest, AReadLeavesTheFilesTimesAsTheyAre) {
  Host host(root());
  ASSERT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat((root() / kFile).c_str(), &before), 0);
  EXPECT_GT(before.st_atim.tv_sec, before.st_mtim.tv_sec);
  EXPECT_EQ(host.Get(kName, 5).text, "bytes");
  ASSERT_EQ(::stat((root() / kFile).c_str(), &after), 0);
  EXPECT_EQ(after.st_atim.tv_sec, before.st_atim.tv_sec);
}

TEST_F(FilesStoreTest, ATruncatedFileTellsItsLength) {
  Host host(root());
  ASSERT_EQ(host.Put(kName, "bytes").status, KVT_COLD_OK);
  fs::resize_file(root() / kFile, 2);
  ASSERT_NO_FATAL_FAILURE(MakeFile(kFile, std::time(nullptr) + kDayS, 2));
  EXPECT_EQ(host.Get(kName, 5).bytes, 2u);
}

TEST_F(FilesStoreTest, AllFilesOfATenantAreRemovedInPartsAndNoOthers) {
  Host host(root());
  constexpr size_t kFiles = 600;
  for (size_t i = 0; i < kFiles; ++i) {
    MakeFile("kvtier/1/alice/model/" + std::to_string(10 + i % 90) + "/f" + std::to_string(i), 1);
  }
  MakeFile("kvtier/1/alice/model/10/.tmp.host.1.2.3", 1);
  MakeFile("kvtier/1/alice2/model/ab/abcd", 1);
  const Told told = host.RemoveAll("kvtier/1/alice/");
  EXPECT_EQ(told.status, KVT_COLD_OK) << told.text;
  EXPECT_GE(told.bytes, 3u) << "calls";
  EXPECT_FALSE(fs::exists(root() / "kvtier/1/alice")) << "the name goes, too";
  EXPECT_EQ(CountFiles(), 1u);
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice/").bytes, 1u);
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice").status, KVT_COLD_REFUSED) << "no whole name";
}

TEST_F(FilesStoreTest, EmptyDirectoriesOfATenantAreRemovedInPartsToo) {
  Host host(root());
  for (int i = 0; i < 150; ++i) {
    fs::create_directories(root() / "kvtier/1/alice" / std::to_string(i) / "ab");
  }
  const Told told = host.RemoveAll("kvtier/1/alice/");
  EXPECT_EQ(told.status, KVT_COLD_OK) << told.text;
  EXPECT_GE(told.bytes, 3u) << "calls";
  EXPECT_FALSE(fs::exists(root() / "kvtier/1/alice"));
}

// The calls of one host hang; those of the other do not.
TEST_F(FilesStoreTest, AFileSystemThatHangsHoldsNeitherAnotherHostNorTheStop) {
  const auto files = std::make_shared<FailingFiles>();
  const std::string bytes = "bytes";
  std::string into(6, '\0');
  Host host(root(), files);
  Host other(root());
  ASSERT_EQ(other.Put(kName, bytes).status, KVT_COLD_OK);
  files->hanging_opens = true;
  const auto get =
      host.Begin([&](uint64_t call) { host.store().Get(call, kName, into.data(), 5, kTimeoutMs); });
  while (files->hanging < 1) std::this_thread::yield();
  EXPECT_EQ(other.Get(kName, 5).text, bytes);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(host.Stop());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  files->release.set_value();
  while (!host.Stop()) {
  }
  EXPECT_NE(get.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

// Begins a write that hangs, and lets its time pass.
void HangPut(Host* host, FailingFiles* files) {
  static const std::string bytes = "bytes";
  files->hanging_opens = true;
  std::vector<std::future<Told>> puts;
  std::chrono::steady_clock::time_point deadline;
  // A busy machine may begin one too late, which ends then.
  for (; files->hanging < 1; std::this_thread::yield()) {
    if (!puts.empty() && std::chrono::steady_clock::now() < deadline) continue;
    deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    puts.push_back(host->Begin([&](uint64_t call) {
      host->store().Put(call, kName, bytes.data(), bytes.size(), kDayS, 99);
    }));
  }
  while (std::chrono::steady_clock::now() <= deadline) std::this_thread::yield();
  files->hanging_opens = false;
}

// It might come back after the erasure.
TEST_F(FilesStoreTest, AnErasureFailsWhileAWriteThatWasGivenUpHangs) {
  const auto files = std::make_shared<FailingFiles>();
  Host host(root(), files);
  HangPut(&host, files.get());
  EXPECT_EQ(host.RemoveAll("kvtier/1/alice/").text, "a write that was given up has not ended");
  files->release.set_value();
  while (CountFiles() == 0) std::this_thread::yield();
  while (host.RemoveAll("kvtier/1/alice/").status != KVT_COLD_OK) std::this_thread::yield();
  EXPECT_EQ(CountFiles(), 0u);
}

TEST_F(FilesStoreTest, ADeletionIsNotDoneWhileAWriteOfTheObjectThatWasGivenUpHangs) {
  const auto files = std::make_shared<FailingFiles>();
  Host host(root(), files);
  HangPut(&host, files.get());
  EXPECT_EQ(Host(root()).Put(kName, "others").status, KVT_COLD_OK);
  EXPECT_EQ(host.Remove({kName}).status, KVT_COLD_BUSY);
  EXPECT_EQ(CountFiles(), 0u) << "what is there goes nevertheless";
  EXPECT_EQ(host.Remove({kName + "0"}).status, KVT_COLD_OK);
  files->release.set_value();
  while (CountFiles() == 0) std::this_thread::yield();
  while (host.Remove({kName}).status != KVT_COLD_OK) std::this_thread::yield();
  EXPECT_EQ(CountFiles(), 0u);
}

}  // namespace
}  // namespace kvtier

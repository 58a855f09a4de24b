// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>

namespace kvtier {
namespace {

using boost::system::system_category;
using testing::AllOf;
using testing::HasSubstr;

template <typename Exception>
std::string Told(const Exception& exception) {
  const std::optional<Error> error = ErrorOf(std::make_exception_ptr(exception));
  return error ? error->ToString() : "nothing";
}

boost::system::system_error FromBoost(int error_number) {
  return {boost::system::error_code(error_number, system_category()), "call"};
}

std::system_error FromStandard(int error_number) {
  return {error_number, std::system_category(), "call"};
}

TEST(ErrorOfExceptions, WhatCannotBeHadIsNamedWithTheLimits) {
  const auto exhausted = [](const std::string& reason) {
    return AllOf(HasSubstr("resource_exhausted: " + reason), HasSubstr("; limits: "));
  };
  EXPECT_THAT(Told(FromBoost(EMFILE)), exhausted("no_descriptor"));
  EXPECT_THAT(Told(FromStandard(ENFILE)), exhausted("no_descriptor"));
  EXPECT_THAT(Told(FromBoost(EAGAIN)), exhausted("no_thread"));
  EXPECT_THAT(Told(FromStandard(EAGAIN)), exhausted("no_thread"));
  EXPECT_THAT(Told(FromBoost(ENOMEM)), exhausted("no_memory"));
  EXPECT_THAT(Told(std::bad_alloc()), exhausted("no_memory"));
}

TEST(ErrorOfExceptions, OtherErrorsOfTheSystemAreWhatTheyAre) {
  EXPECT_THAT(Told(FromBoost(EPERM)), HasSubstr("io_error: EPERM (call: "));
  EXPECT_THAT(Told(FromStandard(ENOSPC)), HasSubstr("io_error: ENOSPC (call: "));
  const boost::system::system_error no_errno(boost::asio::error::already_open, "call");
  EXPECT_THAT(Told(no_errno), HasSubstr("io_error: system_error (call: "));
}

TEST(ErrorOfExceptions, ErrorsOfTheProgramAreNone) {
  EXPECT_EQ(Told(std::logic_error("wrong")), "nothing");
}

TEST(CoreDumpsDeathTest, AProcessThatForbidsThemLeavesNone) {
  const auto end = [] {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_CORE, &limit);
    ForbidCoreDumps();
    (void)::getrlimit(RLIMIT_CORE, &limit);
    if (limit.rlim_cur > 1) std::_Exit(0);
    std::abort();
  };
  EXPECT_EXIT(
      end(), [](int status) { return WIFSIGNALED(status) && !WCOREDUMP(status); }, "");
}

}  // namespace
}  // namespace kvtier

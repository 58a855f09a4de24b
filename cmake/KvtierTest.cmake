# SPDX-License-Identifier: Apache-2.0
# kvtier_test(NAME name [ALONE] SOURCES a.cc b.cc LIBS lib... [LABELS l...] [TIMEOUT s])
# declares one GoogleTest program; ctest runs each of its cases apart, and with ALONE no other beside.

find_package(GTest REQUIRED)
include(GoogleTest)

# How the sources of tests are optimised; what they test is built as always. Compiling them takes much of a
# first build, and their own loops are short. Measured for one file under the address sanitizer: 20 s
# instead of 42.
if(KVTIER_SANITIZE MATCHES "address")
  set(KVTIER_TEST_OPTIMISATION -O0)
elseif(NOT KVTIER_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(KVTIER_TEST_OPTIMISATION -O1)
endif()

function(kvtier_test)
  cmake_parse_arguments(T "ALONE" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  target_compile_options(${T_NAME} PRIVATE ${KVTIER_TEST_OPTIMISATION})
  target_link_libraries(${T_NAME} PRIVATE ${T_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${T_NAME}
    DISCOVERY_MODE PRE_TEST
    PROPERTIES RUN_SERIAL ${T_ALONE} TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()

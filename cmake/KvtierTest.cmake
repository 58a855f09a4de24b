# SPDX-License-Identifier: Apache-2.0
# kvtier_test(NAME name [ALONE] SOURCES a.cc b.cc LIBS lib... [LABELS l...] [TIMEOUT s])
# declares one GoogleTest program; ctest runs each of its cases apart, and with ALONE no other beside.

find_package(GTest REQUIRED)
include(GoogleTest)

function(kvtier_test)
  cmake_parse_arguments(T "ALONE" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  target_link_libraries(${T_NAME} PRIVATE ${T_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${T_NAME}
    DISCOVERY_MODE PRE_TEST
    PROPERTIES RUN_SERIAL ${T_ALONE} TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()

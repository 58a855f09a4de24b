# SPDX-License-Identifier: Apache-2.0
# Warnings, optimisation and sanitizers, the same for every target.

# Objects do not name the directory of the source: neither in messages nor for debuggers, which find the files from
# the root of the tree. So ccache serves a second clone, and packages are the same bytes from each.
set(KVTIER_PREFIX_MAPS -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
file(RELATIVE_PATH to_source ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
if(to_source MATCHES "^(.+[^/])/?$")
  # As ccache names it to the compiler.
  list(APPEND KVTIER_PREFIX_MAPS -ffile-prefix-map=${CMAKE_MATCH_1}=.)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${KVTIER_PREFIX_MAPS}>")
# The preset demo sets this. A newcomer waits for the compiler and then runs the demonstration once, so the build
# leaves out warnings, debug information, fmt's checks of formats, and ccache's own work, and precompiles headers,
# which ccache would not serve. With -O1, the units up to tiers/ took 170 s of processor time instead of 282.
option(KVTIER_FIRST_LOOK "Compile as fast as possible, for the demonstration" OFF)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT KVTIER_FIRST_LOOK)
  set(launcher ${CCACHE_PROGRAM})
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    # Below it, ccache compares paths from the build directory on.
    list(PREPEND launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()

if(KVTIER_FIRST_LOOK)
  add_compile_options(-w)
  add_compile_definitions(FMT_CONSTEVAL=)
else()
  add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
  # Optimised builds keep frame pointers and line numbers, so that a profile or a core can be read.
  add_compile_options(-fno-omit-frame-pointer -g1)
endif()
include_directories(${CMAKE_SOURCE_DIR})

# kvtier_compile_apart(SOURCE...): where CMAKE_UNITY_BUILD makes the compiler read several sources as one, to
# read their headers once, these stay by themselves, because names or templates that are theirs alone occur in others.
function(kvtier_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY kvtier_compiled_apart ${ARGN})
endfunction()

# kvtier_unite_folders(TARGET SOURCE...): of these sources of a library only those of the same folder are read
# as one, so that a program that links its own copies of a folder does not meet the library's.
function(kvtier_unite_folders target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    list(APPEND ${folder}_sources ${source})
    list(LENGTH ${folder}_sources count)
    math(EXPR batch "(${count} - 1) / 8")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
  endforeach()
endfunction()

# kvtier_precompile_headers(TARGET...): in the demonstration's build these targets, and the one that they all link, share
# one precompiled file of the headers that most sources include, which takes 1.5 s of a processor for each unit.
function(kvtier_precompile_headers)
  if(NOT KVTIER_FIRST_LOOK)
    return()
  endif()
  target_precompile_headers(kvtier_base PRIVATE
    <algorithm> <array> <chrono> <deque> <filesystem> <functional> <map> <memory> <mutex> <optional> <span> <string>
    <thread> <unordered_map> <vector> <fmt/format.h> <tl/expected.hpp>)
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM kvtier_base)
  endforeach()
endfunction()

if(KVTIER_SANITIZE)
  add_compile_options(-fsanitize=${KVTIER_SANITIZE} -fno-sanitize-recover=all -O1)
  add_link_options(-fsanitize=${KVTIER_SANITIZE})
  # g++ 12 reports false positives of these under sanitizer instrumentation.
  add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-restrict)
  if(KVTIER_SANITIZE MATCHES "thread")
    # Asio's standalone fences are invisible to ThreadSanitizer and would be reported as races.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
    add_compile_options(-Wno-tsan)
  endif()
endif()

# SPDX-License-Identifier: Apache-2.0
# The installed files and their places. Components are named after the packages that they become.

# Debian's directory for libraries, which the prefix /usr alone would not be given here.
if(EXISTS /etc/debian_version AND CMAKE_LIBRARY_ARCHITECTURE)
  set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "Libraries")
endif()
include(GNUInstallDirs)

# Installing and packaging take the files already built; they do not build tests first.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

# The configuration that is installed is written by the daemon itself, from its table of keys.
set(example_config ${CMAKE_BINARY_DIR}/kvtierd.toml)
add_custom_command(OUTPUT ${example_config}
  COMMAND kvtierd --print-config-example > ${example_config}
  DEPENDS kvtierd COMMENT "Writing kvtierd.toml" VERBATIM)
add_custom_target(kvtierd_example_config ALL DEPENDS ${example_config})

# --- kvtierd ---
set(systemd ${CMAKE_SOURCE_DIR}/daemon/systemd)
install(TARGETS kvtierd RUNTIME DESTINATION ${CMAKE_INSTALL_SBINDIR} COMPONENT kvtierd)
# Where the daemon looks for it; nothing else starts it.
install(TARGETS kvtier-keeper
  RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/kvtier COMPONENT kvtierd)
# The unit names the program by its full path, which the prefix decides at the time of installing.
install(CODE "
  file(READ \"${systemd}/kvtierd.service\" unit)
  string(REPLACE /usr/sbin \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_SBINDIR}\" unit \"\${unit}\")
  file(WRITE \"${CMAKE_BINARY_DIR}/systemd/kvtierd.service\" \"\${unit}\")"
  COMPONENT kvtierd)
install(FILES ${CMAKE_BINARY_DIR}/systemd/kvtierd.service
  DESTINATION lib/systemd/system COMPONENT kvtierd)
install(FILES ${systemd}/sysusers.conf
  DESTINATION lib/sysusers.d RENAME kvtier.conf COMPONENT kvtierd)
install(FILES ${systemd}/tmpfiles.conf
  DESTINATION lib/tmpfiles.d RENAME kvtier.conf COMPONENT kvtierd)
# Where the unit looks for it, whatever the prefix.
install(FILES ${example_config} DESTINATION /etc/kvtier COMPONENT kvtierd)
# All pages, since they link to each other.
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/kvtierd COMPONENT kvtierd
  FILES_MATCHING PATTERN "*.md" PATTERN images EXCLUDE)
# Alerts name METRICS.md by its path there.
install(FILES tools/monitoring/kvtier.rules.yml tools/monitoring/kvtier-dashboard.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/kvtierd/monitoring COMPONENT kvtierd)

# The kernels, where there was a compiler for them; opened at run time, so not among the libraries to
# link with.
target_compile_definitions(kvtier_kernel_library PRIVATE
  KVTIER_KERNELS_DIRECTORY="${CMAKE_INSTALL_LIBDIR}/kvtier")
if(KVTIER_HAS_CUDA_KERNELS)
  install(TARGETS kvtier_kernels
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvtier COMPONENT kvtierd OPTIONAL)
endif()

# --- libraries for cold stores: with the daemon, or a package where the client library is ---
# The daemon looks there, relative to its own place.
install(TARGETS kvtier-cold-files LIBRARY DESTINATION lib/kvtier COMPONENT kvtierd)
set(KVTIER_COLD_PACKAGES "")
foreach(library kvtier-cold-resp kvtier-cold-s3)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION lib/kvtier COMPONENT ${library})
    list(APPEND KVTIER_COLD_PACKAGES ${library})
  endif()
endforeach()

# --- kvtier-tools ---
install(TARGETS kvtierctl
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT kvtier-tools)

# --- manual pages and completions, each with its program ---
set(share ${CMAKE_BINARY_DIR}/share)
# kvtier_install_page(page section component): compressed, as Debian wants it.
function(kvtier_install_page page section component)
  set(file ${share}/man/man${section}/${page}.${section})
  install(CODE "execute_process(COMMAND gzip -9nc \"${file}\" OUTPUT_FILE \"${file}.gz\"
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
  install(FILES ${file}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT ${component})
endfunction()
if(KVTIER_PANDOC)
  kvtier_install_page(kvtierd 8 kvtierd)
  kvtier_install_page(kvtierd.toml 5 kvtierd)
  kvtier_install_page(kvtierctl 1 kvtier-tools)
endif()
foreach(program_and_component kvtierd:kvtierd kvtierctl:kvtier-tools)
  string(REPLACE ":" ";" pair ${program_and_component})
  list(GET pair 0 program)
  list(GET pair 1 component)
  install(FILES ${share}/bash-completion/completions/${program}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${component})
  install(FILES ${share}/zsh/vendor-completions/_${program}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT ${component})
  install(FILES ${share}/fish/vendor_completions.d/${program}.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT ${component})
endforeach()

# --- libkvtier0, libkvtier-dev ---
install(TARGETS kvtier
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libkvtier0
  NAMELINK_COMPONENT libkvtier-dev)
# Programs include <kvtier/kvtier.h>.
install(DIRECTORY client/include/kvtier
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libkvtier-dev)
# For engines that launch the kernels themselves.
install(DIRECTORY kernels/include/kvtier
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libkvtier-dev)
install(CODE "
  set(PROJECT_VERSION ${PROJECT_VERSION})
  set(CMAKE_INSTALL_LIBDIR ${CMAKE_INSTALL_LIBDIR})
  set(CMAKE_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
  configure_file(\"${CMAKE_SOURCE_DIR}/tools/packaging/kvtier.pc.in\"
    \"${CMAKE_BINARY_DIR}/kvtier.pc\" @ONLY)"
  COMPONENT libkvtier-dev)
install(FILES ${CMAKE_BINARY_DIR}/kvtier.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libkvtier-dev)

# --- what every package has ---
# The packages' maintainer is who builds them, named by the variables that Debian's own tools read.
set(maintainer_name "$ENV{DEBFULLNAME}")
set(maintainer_address "$ENV{DEBEMAIL}")
if(NOT maintainer_name)
  set(maintainer_name "Local build")
endif()
if(NOT maintainer_address)
  set(maintainer_address "root@localhost")
endif()
set(KVTIER_MAINTAINER "${maintainer_name} <${maintainer_address}>" CACHE STRING
  "Maintainer of the packages: NAME <ADDRESS>")
set(changelog ${CMAKE_BINARY_DIR}/packaging/changelog.Debian.gz)
configure_file(tools/packaging/changelog.in ${CMAKE_BINARY_DIR}/packaging/changelog @ONLY)
execute_process(COMMAND gzip -9nc ${CMAKE_BINARY_DIR}/packaging/changelog
  OUTPUT_FILE ${changelog} COMMAND_ERROR_IS_FATAL ANY)
foreach(component kvtierd kvtier-tools libkvtier0 libkvtier-dev ${KVTIER_COLD_PACKAGES})
  install(FILES tools/packaging/copyright ${changelog}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${component} COMPONENT ${component})
endforeach()

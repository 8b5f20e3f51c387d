# What is installed, and how other builds find it: dlock-config.cmake and dlock.pc.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dlock)

install(TARGETS dlock_shared EXPORT dlock-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS dlock_static EXPORT dlock-static-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/dlock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# The static library names its dependencies in an export of its own, so that users of the shared one need not
# have their development packages.
install(EXPORT dlock-targets NAMESPACE dlock:: DESTINATION ${package_dir})
install(EXPORT dlock-static-targets NAMESPACE dlock:: DESTINATION ${package_dir})
configure_package_config_file(cmake/dlock-config.cmake.in ${PROJECT_BINARY_DIR}/dlock-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dlock-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dlock-config.cmake ${PROJECT_BINARY_DIR}/dlock-config-version.cmake
  DESTINATION ${package_dir})

string(REPLACE ";" " " DLOCK_PC_REQUIRES_LINE "${DLOCK_PC_REQUIRES}")
# The prefix is said from where dlock.pc lies, so that `cmake --install --prefix` and packagers may move the whole.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(DLOCK_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(DLOCK_PC_PREFIX "\${pcfiledir}/${up}")
endif()
# GNUInstallDirs allows absolute folders; dlock.pc has to say them as they are.
foreach(dir IN ITEMS LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(DLOCK_PC_${dir} "${CMAKE_INSTALL_${dir}}")
  else()
    set(DLOCK_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
configure_file(cmake/dlock.pc.in ${PROJECT_BINARY_DIR}/dlock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dlock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET dlock_cli)
  # The command finds the library beside it under any prefix.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(dlock_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  install(TARGETS dlock_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/docs/dlock.1)
  install(FILES docs/dlock.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/cli/dlock.bash-completion)
  install(FILES cli/dlock.bash-completion DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME dlock)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY config/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.yaml")

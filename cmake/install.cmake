# What is installed, and how other builds find it: dlock-config.cmake and dlock.pc.
#
# The components are those that packages are made of: library, development, command.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dlock)

install(TARGETS dlock_shared EXPORT dlock-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS dlock_static EXPORT dlock-static-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/dlock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# The static library names its dependencies in an export of its own, so that users of the shared one need not
# have their development packages.
install(EXPORT dlock-targets NAMESPACE dlock:: DESTINATION ${package_dir} COMPONENT development)
install(EXPORT dlock-static-targets NAMESPACE dlock:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/dlock-config.cmake.in ${PROJECT_BINARY_DIR}/dlock-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dlock-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dlock-config.cmake ${PROJECT_BINARY_DIR}/dlock-config-version.cmake
  DESTINATION ${package_dir} COMPONENT development)

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
install(FILES ${PROJECT_BINARY_DIR}/dlock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# The command finds the library beside it under any prefix.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(dlock_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
install(TARGETS dlock_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
# The pages of the functions are made from the headers; they have the date of the command's.
find_program(DLOCK_AWK awk REQUIRED)
file(STRINGS docs/dlock.1 manual_date REGEX "^\\.Dd ")
string(REPLACE ".Dd " "" manual_date "${manual_date}")
set(manual ${PROJECT_BINARY_DIR}/man3)
set(headers ${PROJECT_SOURCE_DIR}/include/dlock/dlock.h ${PROJECT_SOURCE_DIR}/include/dlock/driver.h)
add_custom_command(OUTPUT ${manual}/libdlock.3
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}
  COMMAND ${DLOCK_AWK} -v folder=${manual} -v date=${manual_date} -v "release=libdlock ${PROJECT_VERSION}"
    -f ${PROJECT_SOURCE_DIR}/scripts/manual.awk ${headers}
  DEPENDS scripts/manual.awk docs/dlock.1 ${headers}
  COMMENT "Writing the manual pages of the functions" VERBATIM)
add_custom_target(manual ALL DEPENDS ${manual}/libdlock.3)
install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT development)
install(FILES docs/dlock.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT command)
install(FILES docs/dlock.yaml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 COMPONENT command)
install(FILES cli/dlock.bash-completion DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME dlock
  COMPONENT command)
# In packages the licence is part of the copyright file.
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT licence)
install(DIRECTORY config/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT command FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.c" PATTERN "*.h" PATTERN CMakeLists.txt PATTERN build EXCLUDE PATTERN compose EXCLUDE)

add_custom_target(uninstall
  COMMAND ${CMAKE_COMMAND} -DBUILD_DIR=${PROJECT_BINARY_DIR} -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake
  COMMENT "Removing what was installed" VERBATIM)

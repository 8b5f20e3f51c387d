# The packages libdlock0, libdlock-dev and dlock, which scripts/package has made by `cpack -G DEB`.
#
# Only a build for /usr can be packaged: then the folder of the libraries is Debian's for this architecture.
find_program(DLOCK_DPKG dpkg)
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr" OR NOT DLOCK_DPKG)
  return()
endif()
set(library libdlock${PROJECT_VERSION_MAJOR})
# Older than revision 1, which a distribution would call its own first package.
set(revision 0.1)
set(made ${PROJECT_BINARY_DIR}/debian)
set(sources ${PROJECT_SOURCE_DIR}/cmake/debian)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "libdlock maintainers <maintainers@users.noreply.example>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL library development command)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PRE_BUILD_SCRIPTS ${sources}/finish.cmake)
set(CPACK_PROJECT_CONFIG_FILE ${sources}/depends.cmake)
set(CPACK_DLOCK_BUILD ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SOURCE dlock)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${revision})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# Each package has a summary of its own.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(what "libdlock is one lock for threads, processes and machines, over a backend
that a configuration file selects: SQLite on one host, Redis servers, MySQL or
MariaDB. It renews leases, tells of locks that are lost, and gives fencing
tokens.
.
")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "distributed locks over exchangeable backends (library)
${what}This package has the shared library.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${made}/shlibs;${sources}/triggers;${sources}/postrm)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libdlock-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "distributed locks over exchangeable backends (development)
${what}This package has what programs are built with: headers, the static library,
files for CMake and pkg-config, manual pages of the functions, and examples.")
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME dlock)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_COMMAND_DESCRIPTION "run commands under a distributed lock
${what}This package has the command dlock: for shell scripts, timers and crontabs,
and to look after the locks of other programs.")

# Before 1.0 a new minor version may break its users, though it has the same soname.
math(EXPR next_minor "${PROJECT_VERSION_MINOR} + 1")
file(CONFIGURE OUTPUT ${made}/shlibs @ONLY CONTENT
  "libdlock @PROJECT_VERSION_MAJOR@ @library@ (>= @PROJECT_VERSION@), @library@ (<< @PROJECT_VERSION_MAJOR@.@next_minor@~)\n")

# The static library needs all that pkg-config names for it; and pkg-config wants to find what dlock.pc requires in any case.
set(depends "${library} (= ${PROJECT_VERSION}-${revision})")
foreach(pair IN LISTS DLOCK_PC_PAIRS)
  string(REGEX REPLACE ":.*" "" prefix ${pair})
  foreach(name IN LISTS ${prefix}_STATIC_LIBRARIES)
    unset(place)
    find_library(place ${name} NO_CACHE)
    execute_process(COMMAND ${DLOCK_DPKG} -S ${place} OUTPUT_VARIABLE owner RESULT_VARIABLE failed ERROR_QUIET)
    if(failed)
      message(STATUS "No packages can be made: no package of this system has the library ${name}")
      return()
    endif()
    string(REGEX REPLACE "[:,].*" "" owner "${owner}")
    list(APPEND depends ${owner})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES depends)
list(JOIN depends ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "dlock, pkgconf")

# What only packages have in their documentation. The time is SOURCE_DATE_EPOCH where that is set.
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/debian/changelog.in ${made}/changelog.Debian @ONLY)
foreach(package IN ITEMS library:${library} development:libdlock-dev command:dlock)
  string(REPLACE ":" ";" package ${package})
  list(POP_FRONT package component)
  set(place share/doc/${package})
  install(FILES ${made}/changelog.Debian cmake/debian/copyright DESTINATION ${place}
    COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES CHANGELOG.md DESTINATION ${place} RENAME changelog COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)

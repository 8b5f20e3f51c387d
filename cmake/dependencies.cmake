# Finds what the library is linked with, and notes it for users who link the static library.
#
# DLOCK_PRIVATE_LIBS   targets that the library's own code needs
# DLOCK_PC_REQUIRES    the same as pkg-config modules, for dlock.pc
# DLOCK_PC_PAIRS       the same as PREFIX:module, for dlock-config.cmake
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

set(DLOCK_PRIVATE_LIBS Threads::Threads)
set(DLOCK_PC_REQUIRES "")
set(DLOCK_PC_PAIRS "")

# Each driver's client library is looked for only where that driver is wanted.
macro(dlock_requires prefix module)
  pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${module})
  list(APPEND DLOCK_PRIVATE_LIBS PkgConfig::${prefix})
  list(APPEND DLOCK_PC_REQUIRES ${module})
  list(APPEND DLOCK_PC_PAIRS ${prefix}:${module})
endmacro()

dlock_requires(YAML yaml-0.1)
if(DLOCK_WITH_SQLITE)
  dlock_requires(SQLITE sqlite3)
elseif(DLOCK_BUILD_EXAMPLES)
  # The stock of the examples is an SQLite file, whatever the lock's backend is.
  pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
endif()
if(DLOCK_WITH_REDIS)
  dlock_requires(HIREDIS hiredis)
  if(DLOCK_WITH_TLS)
    # Our own sockets carry TLS, so that it does not depend on how hiredis was built.
    dlock_requires(OPENSSL openssl)
  endif()
endif()
if(DLOCK_WITH_MYSQL)
  # Both name their header <mysql.h>; which one it is, the code asks the header.
  set(clients libmariadb mysqlclient)
  if(DLOCK_MYSQL_CLIENT STREQUAL "mariadb")
    set(clients libmariadb)
  elseif(DLOCK_MYSQL_CLIENT STREQUAL "mysql")
    set(clients mysqlclient)
  elseif(NOT DLOCK_MYSQL_CLIENT STREQUAL "auto")
    message(FATAL_ERROR "DLOCK_MYSQL_CLIENT is '${DLOCK_MYSQL_CLIENT}'; it can be auto, mariadb or mysql")
  endif()
  pkg_search_module(MYSQL_CLIENT REQUIRED QUIET ${clients})
  dlock_requires(MYSQL ${MYSQL_CLIENT_MODULE_NAME})
endif()

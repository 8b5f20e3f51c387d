# Removes what the last `cmake --install` of this build made: cmake -DBUILD_DIR=DIR -P uninstall.cmake
#
# The manifest names the files, without DESTDIR. Folders that are empty then go too, up to the one that all files have in
# common: the prefix. Of /usr and /usr/local only those go that are ours by name: their bin stays, empty or not.
set(manifest "${BUILD_DIR}/install_manifest.txt")
if(NOT EXISTS "${manifest}")
  # With the blank it stays on one line.
  message(FATAL_ERROR " nothing was installed from this build: there is no ${manifest}")
endif()
file(STRINGS "${manifest}" files)

list(GET files 0 prefix)
foreach(file IN LISTS files)
  # A semicolon in the prefix ends a line of the manifest.
  if(NOT IS_ABSOLUTE "${file}")
    message(FATAL_ERROR " ${manifest} has a line that is no whole path: ${file}")
  endif()
  cmake_path(IS_PREFIX prefix "${file}" common)
  while(NOT common)
    cmake_path(GET prefix PARENT_PATH prefix)
    cmake_path(IS_PREFIX prefix "${file}" common)
  endwhile()
endforeach()
set(removable ".")
if(prefix MATCHES "^/(usr(/local)?)?$")
  set(removable "/dlock(/|$)")
endif()

foreach(file IN LISTS files)
  message("-- Removing: $ENV{DESTDIR}${file}")
  file(REMOVE "$ENV{DESTDIR}${file}")
  if(EXISTS "$ENV{DESTDIR}${file}" OR IS_SYMLINK "$ENV{DESTDIR}${file}")
    message(FATAL_ERROR " cannot be removed, perhaps for want of rights: $ENV{DESTDIR}${file}")
  endif()
  cmake_path(GET file PARENT_PATH folder)
  set(failed FALSE)
  while(NOT failed AND NOT folder STREQUAL prefix AND folder MATCHES "${removable}")
    # It leaves a folder that is not empty.
    execute_process(COMMAND rmdir "$ENV{DESTDIR}${folder}" RESULT_VARIABLE failed ERROR_QUIET)
    cmake_path(GET folder PARENT_PATH folder)
  endwhile()
endforeach()
file(REMOVE "${manifest}")

# Run by cpack first: asks dpkg-shlibdeps which packages the library and the command need.
#
# CPack's own way to do so would add scripts that call ldconfig, which is the trigger's task. Of our own library
# dpkg-shlibdeps knows from shlibs.local.
set(made ${CPACK_DLOCK_BUILD}/debian)
file(MAKE_DIRECTORY ${made}/shlibdeps/debian)
file(WRITE ${made}/shlibdeps/debian/control "Source: dlock\n")
file(COPY_FILE ${made}/shlibs ${made}/shlibdeps/debian/shlibs.local)
foreach(program IN ITEMS LIBRARY:libdlock.so COMMAND:cli/dlock)
  string(REPLACE ":" ";" program ${program})
  list(POP_FRONT program component)
  execute_process(COMMAND dpkg-shlibdeps -l${CPACK_DLOCK_BUILD} -O -e${CPACK_DLOCK_BUILD}/${program}
    WORKING_DIRECTORY ${made}/shlibdeps OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^shlibs:Depends=|\n" "" CPACK_DEBIAN_${component}_PACKAGE_DEPENDS "${needed}")
endforeach()

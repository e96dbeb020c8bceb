# A project that takes us in with add_subdirectory installs its own things, not ours. But it links our targets, and so
# must see those of the packages that we found; CMake shows them to our own folder only.
if(NOT PROJECT_IS_TOP_LEVEL)
  get_property(imported DIRECTORY PROPERTY IMPORTED_TARGETS)
  if(imported)
    set_target_properties(${imported} PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
  return()
endif()
include(CMakePackageConfigHelpers)

# tessera_find_lines(VARIABLE TARGET...)
# The find_dependency lines for the packages that the targets pass on to whoever links them. Read from the targets, so
# that a module's new dependency cannot be forgotten here: a package this does not know stops the configuration.
function(tessera_find_lines variable)
  set(known_fmt "fmt CONFIG")
  set(known_spdlog "spdlog CONFIG")
  set(known_nlohmann_json "nlohmann_json CONFIG")
  set(known_tomlplusplus "tomlplusplus CONFIG")
  set(known_Threads "Threads")
  set(known_MPI "MPI COMPONENTS CXX")
  set(known_OpenSSL "OpenSSL 3.0")
  set(lines "find_dependency(Threads)")
  foreach(target IN LISTS ARGN)
    get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
    # What exists only in our own build is not passed on.
    list(FILTER links EXCLUDE REGEX "BUILD_INTERFACE:")
    string(REGEX MATCHALL "PkgConfig::[A-Za-z0-9_]+" libraries "${links}")
    foreach(library IN LISTS libraries)
      string(REPLACE "PkgConfig::" "" library "${library}")
      list(APPEND lines "tessera_find_library(${library})")
    endforeach()
    string(REGEX MATCHALL "[A-Za-z0-9_]+::" packages "${links}")
    foreach(package IN LISTS packages)
      string(REPLACE "::" "" package "${package}")
      if(package STREQUAL "tessera" OR package STREQUAL "PkgConfig")
        continue()
      elseif(NOT known_${package})
        message(FATAL_ERROR "${target} passes on ${package}::..., and cmake/TesseraInstall.cmake does not say how "
          "those who use the installed package find that.")
      endif()
      list(APPEND lines "find_dependency(${known_${package}})")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES lines)
  list(JOIN lines "\n" lines)
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

get_property(modules GLOBAL PROPERTY TESSERA_MODULES)
tessera_find_lines(TESSERA_FIND_LINES ${modules})
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

install(TARGETS tessera_all ${modules} EXPORT tesseraTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION "${package_folder}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tessera" "${PROJECT_BINARY_DIR}/include/tessera"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/tesseraConfig.cmake" INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/tesseraConfig.cmake" "${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake"
  DESTINATION "${package_folder}")

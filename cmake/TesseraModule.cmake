# Flags for every target of ours. LibTorch's headers arrive as system includes, so its warnings stay silent.
add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
if(TESSERA_SANITIZE)
  # GCC's checks for uninitialized values see the sanitizers' own code too, and warn of what LibTorch's headers never do.
  # ThreadSanitizer does not know fences; ours are for readers in other processes, which it does not see either.
  target_compile_options(tessera_flags INTERFACE
    -fsanitize=${TESSERA_SANITIZE} $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

# One precompiled header serves every target that uses LibTorch: parsing it costs more than all of ours together.
if(TESSERA_PCH)
  add_library(tessera_torch_pch OBJECT "${PROJECT_SOURCE_DIR}/src/torch_pch.cpp")
  target_link_libraries(tessera_torch_pch PRIVATE $<BUILD_INTERFACE:tessera_flags> torch)
  target_compile_definitions(tessera_torch_pch PRIVATE FMT_HEADER_ONLY=1)
  target_precompile_headers(tessera_torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/src/torch_pch.h")
endif()

function(tessera_use_torch target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY=1)
  if(TESSERA_PCH)
    # CMake compiles executables with -fPIE, libraries with -fPIC; a precompiled header serves one of them only.
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
    target_precompile_headers(${target} REUSE_FROM tessera_torch_pch)
  endif()
endfunction()

# tessera_module(NAME SOURCES ... [DEPENDS ...] [PRIVATE_DEPENDS ...] [TORCH])
# A static library tessera_NAME, exported as tessera::NAME, whose public headers are include/tessera/NAME.
function(tessera_module name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(target tessera_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(tessera::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:tessera_flags> ${arg_PRIVATE_DEPENDS})
  if(arg_TORCH)
    target_link_libraries(${target} PUBLIC torch)
    tessera_use_torch(${target})
  endif()
  set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES ${target})
endfunction()

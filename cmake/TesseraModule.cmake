# Flags for every target of ours. LibTorch's headers arrive as system includes, so its warnings stay silent.
add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
# Objects do not tell where they were built, so that a clone in another place finds them in ccache.
target_compile_options(tessera_flags INTERFACE "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
# A precompiled header of clang states when its sources were written, which differs in every clone. And clang blames us for
# what libstdc++'s std::stable_sort calls; g++, which builds the release, still tells of deprecated functions.
target_compile_options(tessera_flags INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp> $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)

# Note [Unity builds]
# Nearly all of the time for a file goes into LibTorch's templates, for every file again. So the files of a target are
# compiled as one, sixteen at a time, and names in their unnamed namespaces must differ. A type there, used by a class of
# the same file, looks to the compiler as if it came from a header; the preset `separate` still warns of those that do.
set(CMAKE_UNITY_BUILD ${TESSERA_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
if(TESSERA_UNITY)
  target_compile_options(tessera_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

if(TESSERA_SANITIZE)
  # GCC's checks for uninitialized values see the sanitizers' own code too, and warn of what LibTorch's headers never do.
  # ThreadSanitizer does not know fences; ours are for readers in other processes, which it does not see either.
  target_compile_options(tessera_flags INTERFACE
    -fsanitize=${TESSERA_SANITIZE} $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

# tessera_sum_of_pch(HEADER): what ccache takes for the precompiled header's content. See Note [ccache and precompiled
# headers]. It depends on our two headers, on LibTorch's build (whose version names its commit), and on the compiler with
# its flags.
function(tessera_sum_of_pch header)
  set(sum "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(APPEND sum " ${CMAKE_CXX_FLAGS_${type}} ${TESSERA_SANITIZE} ${TESSERA_WITH_NCCL}")
  cmake_path(SET torch NORMALIZE "${Torch_DIR}/../../..")
  foreach(file IN ITEMS "${PROJECT_SOURCE_DIR}/src/torch_pch.h" "${PROJECT_SOURCE_DIR}/src/torch_nn_pch.h"
      "${torch}/version.py" "${torch}/build-hash" "${torch}/include/torch/version.h")
    if(EXISTS "${file}")
      file(SHA256 "${file}" hash)
      string(APPEND sum " ${hash}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  endforeach()
  foreach(kind IN ITEMS pch gch)
    file(CONFIGURE OUTPUT "${header}.${kind}.sum" CONTENT "${sum}\n" @ONLY)
  endforeach()
endfunction()

# Two precompiled headers serve every target that uses LibTorch: parsing it costs more than all of ours together. The
# second one, for targets that deal with modules and optimizers, takes four times as long to load.
if(TESSERA_PCH)
  foreach(pch IN ITEMS torch_pch torch_nn_pch)
    add_library(tessera_${pch} OBJECT "${PROJECT_SOURCE_DIR}/src/${pch}.cpp")
    set_target_properties(tessera_${pch} PROPERTIES CXX_COMPILER_LAUNCHER "")
    target_link_libraries(tessera_${pch} PRIVATE $<BUILD_INTERFACE:tessera_flags> torch)
    target_compile_definitions(tessera_${pch} PRIVATE FMT_HEADER_ONLY=1)
    target_precompile_headers(tessera_${pch} PRIVATE "${PROJECT_SOURCE_DIR}/src/${pch}.h")
    tessera_sum_of_pch("${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/tessera_${pch}.dir/cmake_pch.hxx")
  endforeach()
endif()

# tessera_use_torch(TARGET [NN]): NN when most of its files include torch/nn or torch/optim.
function(tessera_use_torch target)
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY=1)
  if(TESSERA_PCH)
    # CMake compiles executables with -fPIE, libraries with -fPIC; a precompiled header serves one of them only.
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE -fPIC)
    endif()
    if("NN" IN_LIST ARGN)
      target_precompile_headers(${target} REUSE_FROM tessera_torch_nn_pch)
    else()
      target_precompile_headers(${target} REUSE_FROM tessera_torch_pch)
    endif()
  endif()
endfunction()

# tessera_module(NAME SOURCES ... [DEPENDS ...] [PRIVATE_DEPENDS ...] [TORCH | TORCH_NN])
# A static library tessera_NAME, exported as tessera::NAME. Its public headers are include/tessera/NAME; those that other
# modules use and programs do not are internal/tessera/NAME, which is not installed.
function(tessera_module name)
  cmake_parse_arguments(arg "TORCH;TORCH_NN" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(target tessera_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(tessera::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/internal>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PUBLIC ${arg_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:tessera_flags> ${arg_PRIVATE_DEPENDS})
  if(arg_TORCH OR arg_TORCH_NN)
    target_link_libraries(${target} PUBLIC torch)
    if(arg_TORCH_NN)
      tessera_use_torch(${target} NN)
    else()
      tessera_use_torch(${target})
    endif()
  endif()
  set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES ${target})
endfunction()
